from raw_server import raw_server  # noqa: F401
from serving import serve  # noqa: F401
