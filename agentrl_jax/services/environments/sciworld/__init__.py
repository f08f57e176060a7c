"""ScienceWorld; `pool` has its Java processes, `scripted` its policies; see `services.environments`."""
