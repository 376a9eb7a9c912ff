"""The HTTP API. `routes.py` is its map; a request goes call.py → a handler → the service."""
