"""Functions that wait for a condition of a running system.

A slow machine is not a failure, so all tests share one generous timeout. Only a time that the service promises has a
timeout of its own.
"""

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 30
PAUSE_S = 0.02


class _Stalls(threading.Thread):
    """A thread that measures how long the machine stalled: it sleeps briefly and adds up how late it wakes."""

    def __init__(self) -> None:
        super().__init__(name="stalls", daemon=True)
        self.total_s = 0.0

    def run(self) -> None:
        while True:
            start = time.monotonic()
            time.sleep(PAUSE_S)
            self.total_s += max(0.0, time.monotonic() - start - 2 * PAUSE_S)


@functools.cache
def _stalls() -> _Stalls:
    measuring = _Stalls()
    measuring.start()
    return measuring


class Patience:
    """A timeout that does not count the time during which the machine stalled."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._start = time.monotonic()
        self._stalled_s = _stalls().total_s

    @property
    def is_over(self) -> bool:
        if time.monotonic() - self._start < self._within_s:
            return False
        # The measuring thread may have been stalled too: let it catch up.
        time.sleep(3 * PAUSE_S)
        passed_s = time.monotonic() - self._start - (_stalls().total_s - self._stalled_s)
        return passed_s >= self._within_s


def until(ready: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """Call `ready` until its result is true, and return that result."""
    patience = Patience(within_s)
    while not (found := ready()):
        assert not patience.is_over, f"{what}: not within {within_s} s"
        time.sleep(PAUSE_S)
    return found


def until_equal(read: Callable[[], object], wanted: object, within_s: float = PATIENCE_S) -> None:
    patience = Patience(within_s)
    while (found := read()) != wanted:
        assert not patience.is_over, f"not {wanted!r} within {within_s} s, but {found!r}"
        time.sleep(PAUSE_S)


async def until_async(ready: Callable[[], Awaitable[T]], what: str, within_s: float = PATIENCE_S) -> T:
    patience = Patience(within_s)
    while not (found := await ready()):
        assert not patience.is_over, f"{what}: not within {within_s} s"
        await asyncio.sleep(PAUSE_S)
    return found


async def until_so(holds: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds, while the tasks of the event loop run."""

    async def ready() -> bool:
        return holds()

    await until_async(ready, what, within_s)
