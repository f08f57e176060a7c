"""What the engine plays in: `batched_env` (the interface, and compiled environments), `retry` (levels that begin again
after a failure), `host` (environments in Python behind one callback a turn), `host_environment` (what such an
environment is) and `level_splits`.
"""
