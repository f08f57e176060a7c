"""The maze of LMRL-Gym; see `services.environments`."""
