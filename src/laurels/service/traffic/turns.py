"""Turns for heavy reads, so that the large pages of one pod don't delay the calls of the others.

A large page takes milliseconds, during which the event loop does nothing else. Heavy reads therefore run one after
the other, the pods in fair order, and between two of them the loop does all other work that is due.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from laurels.core.fair_queue import FairQueue
from laurels.errors import Unavailable
from laurels.metrics import SHED_CALLS

# Between two turns: a write needs a few rounds of the loop from its request to its response.
ROUNDS = 4
# The maximum number of heavy reads of one pod that wait, and how long each may wait.
WAITING = 200
PATIENCE_S = 5.0


class Turns:
    """`at_once`: how many heavy reads may run at the same time; more than one if they wait for something else."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._running = 0
        self._is_resting = False

    @contextlib.asynccontextmanager
    async def turn(self, pod_id: str, rows: int) -> AsyncIterator[None]:
        """Wait for a turn to read this many rows. Raises Unavailable if too many reads of the pod wait, or too long."""
        await self._wait(pod_id, rows)
        try:
            yield
        finally:
            self._end()

    async def _wait(self, pod_id: str, rows: int) -> None:
        if not self._is_resting and self._running < self._at_once and not self._queue:
            self._running += 1
            self._queue.charge(pod_id, rows)
            return
        if self._queue.waiting_of(pod_id) >= WAITING:
            raise _overloaded()
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        self._queue.add(pod_id, rows, granted)
        expiry = loop.call_later(PATIENCE_S, _expire, granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                # The turn came in the same moment.
                self._end()
            raise
        finally:
            expiry.cancel()

    def _end(self) -> None:
        self._running -= 1
        if not self._is_resting:
            self._is_resting = True
            self._rest(ROUNDS)

    def _rest(self, rounds: int) -> None:
        if rounds:
            asyncio.get_running_loop().call_soon(self._rest, rounds - 1)
            return
        self._is_resting = False
        while self._queue and self._running < self._at_once:
            pod_id, rows, granted = self._queue.take()
            if granted.done():
                # The reader was cancelled, or has waited too long.
                self._queue.charge(pod_id, -rows)
                continue
            self._running += 1
            granted.set_result(None)
        if not self._queue and not self._running:
            self._queue.forget()


def _expire(granted: "asyncio.Future[None]") -> None:
    if not granted.done():
        granted.set_exception(_overloaded())


def _overloaded() -> Unavailable:
    SHED_CALLS.labels("heavy").inc()
    return Unavailable("overloaded", "The server has more large reads than it can answer soon. Ask for fewer rows.")
