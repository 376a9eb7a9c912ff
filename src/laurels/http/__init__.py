"""The HTTP API. `routes.py` is its map: a request passes through call.py to a handler, which calls the service."""
