"""Starting and ending background tasks."""

import asyncio
import contextvars
from collections.abc import Coroutine, Iterable
from typing import Any

AGAIN_S = 1.0


def start_apart(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
    """Start a task that lives longer than the call that starts it, and is no part of that call's trace."""
    return asyncio.get_running_loop().create_task(work, name=name, context=contextvars.Context())


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until all of them have ended. Ignores their exceptions.

    Cancels once per second until they have ended, because up to Python 3.11 `asyncio.wait_for`, which redis-py uses,
    loses a cancellation that arrives at the moment at which it completes.
    """
    ending = list(tasks)
    left = {task for task in ending if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    # Retrieve the exceptions, so that asyncio does not report them as unhandled.
    await asyncio.gather(*ending, return_exceptions=True)
