"""The synchronous and the asynchronous client have the same source, except for words such as `await`."""

import re
from pathlib import Path

CLIENT = Path(__file__).parents[2] / "src/laurels/client"
WORDS = [
    ("A client for programs that use asyncio.", "A client for synchronous programs."),
    (
        "The client for programs that use asyncio: the same calls as the synchronous one, with `await`.",
        "The client for synchronous programs.",
    ),
    ("import asyncio\nimport threading", "import threading\nimport time"),
    ("asyncio", "time"),
    ("AsyncIterator, Callable, Coroutine, Sequence", "Callable, Iterator, Sequence"),
    ("Coroutine[Any, Any, T]", "T"),
    ("AsyncIterator", "Iterator"),
    ("AsyncBaseTransport", "BaseTransport"),
    ("AsyncClient", "Client"),
    ("async ", ""),
    ("await ", ""),
    ("aiter_bytes", "iter_bytes"),
    ("aread", "read"),
    ("aclose", "close"),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
]


def test_synchronous_and_asynchronous_clients_have_the_same_source() -> None:
    text = (CLIENT / "asynchronous.py").read_text("utf-8")
    text = re.sub(r"( +)for (\w+) in (\S+):\n +yield \2\n", r"\1yield from \3\n", text)
    for word, other in WORDS:
        assert word in text
        text = text.replace(word, other)
    # The formatter breaks lines differently.
    assert re.sub(r"\s+", "", text) == re.sub(r"\s+", "", (CLIENT / "synchronous.py").read_text("utf-8"))
