"""Laurels from Python: `Client`, and the same with `await`, `AsyncClient`.

    from laurels.client import Client

    with Client("http://127.0.0.1:8080", key) as laurels:
        laurels.submit("default", "ada", 120)
        print(laurels.rank("default", "ada").rank)

What can be tried again is, with the same event id, so nothing counts twice. What is refused raises an error of
`laurels.errors`, with the server's `code`.
"""

from laurels.client.asks import Ask, Score
from laurels.client.asynchronous import AsyncClient
from laurels.client.following import LiveView
from laurels.client.synchronous import Client
from laurels.http.answers import Entry

__all__ = ["Ask", "AsyncClient", "Client", "Entry", "LiveView", "Score"]
