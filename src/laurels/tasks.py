"""How tasks that run on their own are ended."""

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 1.0


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended, however that is.

    Again and again: up to Python 3.11 `asyncio.wait_for`, which redis-py uses, loses a cancellation that comes in the
    moment in which it is done.
    """
    ending = list(tasks)
    left = {task for task in ending if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    # Whatever they died of is no news any more.
    await asyncio.gather(*ending, return_exceptions=True)
