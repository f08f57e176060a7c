from raw_server import raw_server  # noqa: F401
