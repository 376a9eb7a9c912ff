"""The Python client of Laurels: `Client`, and `AsyncClient` for asyncio.

    from laurels.client import Client

    with Client("http://127.0.0.1:8080", key) as laurels:
        laurels.submit("default", "ada", 120)
        print(laurels.rank("default", "ada").rank)

Temporary failures are retried with the same event id, so that nothing counts twice. A call that the server refuses
raises an error of `laurels.errors` with the server's `code`.
"""

from laurels.client.asynchronous import AsyncClient
from laurels.client.endpoints import Request, Score
from laurels.client.live import LiveView
from laurels.client.synchronous import Client
from laurels.http.answers import Entry

__all__ = ["AsyncClient", "Client", "Entry", "LiveView", "Request", "Score"]
