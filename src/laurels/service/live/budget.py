"""The budget of rows that live views may read per second, shared fairly between pods.

While the budget lasts, a read starts at once. Beyond it reads wait, and those of the pod that was served least come
first, so the views of one pod can't delay the updates of another for long.
"""

import asyncio
import time

from laurels.core.fair_queue import FairQueue
from laurels.tasks import end_tasks, start_apart


class Budget:
    """`rows_per_s` rows per second, in bursts of up to `at_once`."""

    def __init__(self, rows_per_s: int, at_once: int) -> None:
        self._each_s = 1 / rows_per_s
        self._ahead_s = at_once / rows_per_s
        # When all rows that were taken are paid for, at `rows_per_s`.
        self._spent_until = 0.0
        # The reads that wait, each with its rows.
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._serving: asyncio.Task[None] | None = None

    async def take(self, pod_id: str, rows: int) -> None:
        """Return when a pod may read this many rows."""
        if self._serving is None and self._wait_s() <= 0:
            self._spend(rows)
            # Always yields to other tasks, because a read from memory does not.
            await asyncio.sleep(0)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(pod_id, rows, turn)
        if self._serving is None:
            self._serving = start_apart(self._serve(), "serve live views in turn")
        await turn

    def correct(self, pod_id: str, rows: int) -> None:
        """Count what a read took besides what it was charged before: negative if it found fewer rows."""
        self._waiting.charge(pod_id, rows)
        self._spent_until += rows * self._each_s

    async def close(self) -> None:
        if self._serving is not None:
            await end_tasks([self._serving])

    def _wait_s(self) -> float:
        return self._spent_until - time.monotonic() - self._ahead_s

    def _spend(self, rows: float) -> None:
        self._spent_until = max(self._spent_until, time.monotonic()) + rows * self._each_s

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(max(0.0, self._wait_s()))
                pod_id, rows, turn = self._waiting.take()
                if turn.done():
                    # A reader that was cancelled takes nothing.
                    self._waiting.charge(pod_id, -rows)
                else:
                    self._spend(rows)
                    turn.set_result(None)
        finally:
            self._serving = None
            self._waiting = FairQueue()
