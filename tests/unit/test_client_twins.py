"""The client that waits and the one with `await` are the same text, but for the words that this takes."""

import re
from pathlib import Path

CLIENT = Path(__file__).parents[2] / "src/laurels/client"
WORDS = [
    (
        "The client for programs that run on an event loop: the same calls, with `await`.",
        "The client for programs that wait.",
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


def test_the_two_clients_are_the_same() -> None:
    text = (CLIENT / "asynchronous.py").read_text("utf-8")
    text = re.sub(r"( +)for (\w+) in (\S+):\n +yield \2\n", r"\1yield from \3\n", text)
    for word, other in WORDS:
        assert word in text
        text = text.replace(word, other)
    # How lines are broken is left to the formatter.
    assert re.sub(r"\s+", "", text) == re.sub(r"\s+", "", (CLIENT / "synchronous.py").read_text("utf-8"))
