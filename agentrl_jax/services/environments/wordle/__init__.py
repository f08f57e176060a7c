"""The Wordle of LMRL-Gym; see `services.environments`."""
