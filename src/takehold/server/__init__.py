"""The server: an Iceberg REST catalog over HTTP, and pages for those who run it.

    $ takehold serve --warehouse ./lake

`create_app(create_service(catalog, store))` is the same as an ASGI application, for a server of your own.
"""

try:
    import httptools
    import orjson
    import prometheus_client
    import starlette
    import uvicorn
    import xxhash
except ImportError as error:
    raise ImportError("takehold.server needs Starlette, uvicorn and others: pip install 'takehold[server]'") from error

from takehold.server.access import Access
from takehold.server.app import create_app, create_service
from takehold.server.service import Service, Settings
from takehold.server.serving import Serving, serve

__all__ = ["Access", "Service", "Serving", "Settings", "create_app", "create_service", "serve"]

assert all((httptools, orjson, prometheus_client, starlette, uvicorn, xxhash))
