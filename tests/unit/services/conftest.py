from serving import serve  # noqa: F401
