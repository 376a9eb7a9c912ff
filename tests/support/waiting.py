"""Waiting for what a running system will show: one patience for all tests, since a loaded machine is not a fault."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60


def until(ready: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """The first answer that is true."""
    end = time.monotonic() + within_s
    while not (found := ready()):
        assert time.monotonic() < end, f"{what}: not within {within_s} s, but {found!r}"
        time.sleep(0.02)
    return found


async def until_async(ready: Callable[[], Awaitable[T]], what: str, within_s: float = PATIENCE_S) -> T:
    end = time.monotonic() + within_s
    while not (found := await ready()):
        assert time.monotonic() < end, f"{what}: not within {within_s} s, but {found!r}"
        await asyncio.sleep(0.02)
    return found
