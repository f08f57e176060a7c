from recorded_runs import recorded_run  # noqa: F401
