"""The last result of a check that many callers may ask for, such as the metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """A result that is made anew at most once per interval, however often it is asked for."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._made: tuple[float, T] | None = None
        self._making = asyncio.Lock()

    async def get(self, make: Callable[[], Awaitable[T]]) -> T:
        """Return the last result, or the one of `make` if the last one is older than the interval."""
        async with self._making:
            if self._made is None or time.monotonic() > self._made[0] + self._interval_s:
                self._made = (time.monotonic(), await make())
            return self._made[1]
