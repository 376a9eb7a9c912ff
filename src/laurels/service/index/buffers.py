"""Buffered boards: the index gets their rows in one batch every `flushMs`, so that many writes become few.

Each ranking has two buffers. One collects the newest row of each user while the other is being sent; then they are
swapped. Scores are still durable before the sender gets an answer; only the rank is delayed.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from laurels.core.board import Board, Ranking
from laurels.metrics import BUFFERED
from laurels.ports import AsOf, Row
from laurels.tasks import end_tasks, start_apart

# A buffer with this many rows is flushed immediately.
FULL_ROWS = 50_000

Send = Callable[[Board, Ranking, list[Row], AsOf], Awaitable[object]]


class Buffers:
    def __init__(self, send: Send) -> None:
        self._send = send
        # The AsOf is from before the first of the rows was read.
        self.rows: dict[Ranking, tuple[Board, dict[str, Row], AsOf]] = {}
        self._flushing: dict[Ranking, asyncio.Task[None]] = {}
        self._sending: set[asyncio.Future[object]] = set()
        self._full: dict[Ranking, asyncio.Event] = {}

    def add(self, board: Board, ranking: Ranking, rows: Sequence[Row], as_of: AsOf) -> None:
        assert board.flush_ms is not None
        _, gathered, _ = self.rows.setdefault(ranking, (board, {}, as_of))
        for row in rows:
            if (held := gathered.get(row.user_id)) is None or row.version > held.version:
                gathered[row.user_id] = row
        BUFFERED.set(sum(len(waiting) for _, waiting, _ in self.rows.values()))
        flushing = self._flushing.get(ranking)
        if flushing is None or flushing.done():
            self._full[ranking] = asyncio.Event()
            flush_s = board.flush_ms / 1000
            self._flushing[ranking] = start_apart(self._flush_after(ranking, flush_s), "flush a board")
        if len(gathered) >= FULL_ROWS:
            self._full[ranking].set()

    @property
    def is_flushing(self) -> bool:
        return bool(self._flushing)

    async def flush(self) -> None:
        """Send all buffered rows now. When it returns, rows that were being sent before have been sent, too."""
        while self.rows or self._sending:
            for ranking in list(self.rows):
                await self._flush(ranking)
            if self._sending:
                await asyncio.wait(self._sending)

    async def close(self) -> None:
        await self.flush()
        await end_tasks(self._flushing.values())

    async def _flush_after(self, ranking: Ranking, wait_s: float) -> None:
        """Flush a ranking every `wait_s` seconds, earlier if its buffer is full, until no rows are left."""
        full = self._full[ranking]
        while ranking in self.rows:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await full.wait()
            full.clear()
            await self._flush(ranking)
        del self._flushing[ranking], self._full[ranking]

    async def _flush(self, ranking: Ranking) -> None:
        board, gathered, as_of = self.rows.pop(ranking, (None, {}, AsOf()))
        if board is not None:
            sending = asyncio.ensure_future(self._send(board, ranking, list(gathered.values()), as_of))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
            await sending
            BUFFERED.set(sum(len(waiting) for _, waiting, _ in self.rows.values()))
