from exported_runs import runs  # noqa: F401
