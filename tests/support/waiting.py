"""Waiting for what a running system will show. A loaded machine is not a fault: the patience is for all tests, and
only what the service promises within a time has a time of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 30


def until(ready: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """The first answer that is true."""
    end = time.monotonic() + within_s
    while not (found := ready()):
        assert time.monotonic() < end, f"{what}: not within {within_s} s"
        time.sleep(0.02)
    return found


def until_equal(read: Callable[[], object], wanted: object, within_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + within_s
    while (found := read()) != wanted:
        assert time.monotonic() < end, f"not {wanted!r} within {within_s} s, but {found!r}"
        time.sleep(0.02)


async def until_async(ready: Callable[[], Awaitable[T]], what: str, within_s: float = PATIENCE_S) -> T:
    end = time.monotonic() + within_s
    while not (found := await ready()):
        assert time.monotonic() < end, f"{what}: not within {within_s} s"
        await asyncio.sleep(0.02)
    return found


async def until_so(holds: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """As `until`, while the tasks of the event loop go on."""

    async def ready() -> bool:
        return holds()

    await until_async(ready, what, within_s)
