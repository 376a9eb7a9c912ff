"""Waiting for what a running system will show. A loaded machine is not a fault: the patience is for all tests, and
only what the service promises within a time has a time of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 30
PAUSE_S = 0.02
LOOK_S = 0.1


class Patience:
    """A time that passes only while the machine works: what a short sleep or a look takes too long is not counted."""

    def __init__(self, within_s: float) -> None:
        self._end = time.monotonic() + within_s

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def pause(self) -> None:
        self._forgive(lambda: time.sleep(PAUSE_S), 2 * PAUSE_S)

    def look(self, read: Callable[[], T]) -> T:
        return self._forgive(read, LOOK_S)

    def _forgive(self, work: Callable[[], T], expected_s: float) -> T:
        start = time.monotonic()
        done = work()
        self._end += max(0.0, time.monotonic() - start - expected_s)
        return done


def until(ready: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """The first answer that is true."""
    patience = Patience(within_s)
    while not (found := patience.look(ready)):
        assert not patience.is_over, f"{what}: not within {within_s} s"
        patience.pause()
    return found


def until_equal(read: Callable[[], object], wanted: object, within_s: float = PATIENCE_S) -> None:
    patience = Patience(within_s)
    while (found := patience.look(read)) != wanted:
        assert not patience.is_over, f"not {wanted!r} within {within_s} s, but {found!r}"
        patience.pause()


async def until_async(ready: Callable[[], Awaitable[T]], what: str, within_s: float = PATIENCE_S) -> T:
    end = time.monotonic() + within_s
    while not (found := await ready()):
        assert time.monotonic() < end, f"{what}: not within {within_s} s"
        await asyncio.sleep(PAUSE_S)
    return found


async def until_so(holds: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """As `until`, while the tasks of the event loop go on."""

    async def ready() -> bool:
        return holds()

    await until_async(ready, what, within_s)
