"""Buffered boards: their rankings are fed every `flushMs` with one batch, so very many writes are few to the index.

Each ranking has two buffers. One gathers the newest row of each user while the other is being sent; then they are
swapped. Scores are durable before their answer all the same; it is the rank that comes later.
"""

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable, Sequence

from laurels.core.board import Board, Ranking, reserve_of
from laurels.core.order import encode_key
from laurels.metrics import BUFFERED
from laurels.ports import AsOf, Row
from laurels.tasks import end_tasks

# From here on a buffer does not wait for its time.
FULL_ROWS = 50_000

Send = Callable[[Board, Ranking, list[Row], AsOf], Awaitable[object]]


class Buffers:
    def __init__(self, send: Send) -> None:
        self._send = send
        # With what was known of the ledger before the first of the rows was read.
        self._rows: dict[Ranking, tuple[Board, dict[str, Row], AsOf]] = {}
        self._flushing: dict[Ranking, asyncio.Task[None]] = {}
        self._full: dict[Ranking, asyncio.Event] = {}

    def add(self, board: Board, ranking: Ranking, rows: Sequence[Row], as_of: AsOf) -> None:
        assert board.flush_ms is not None
        _, gathered, _ = self._rows.setdefault(ranking, (board, {}, as_of))
        for row in rows:
            if (held := gathered.get(row.user_id)) is None or row.version > held.version:
                gathered[row.user_id] = row
        BUFFERED.set(sum(len(waiting) for _, waiting, _ in self._rows.values()))
        flushing = self._flushing.get(ranking)
        if flushing is None or flushing.done():
            self._full[ranking] = asyncio.Event()
            flush_s = board.flush_ms / 1000
            self._flushing[ranking] = asyncio.create_task(self._flush_after(ranking, flush_s), name="flush a board")
        if len(gathered) >= FULL_ROWS:
            self._full[ranking].set()

    async def flush(self) -> None:
        """Send everything now."""
        while self._rows:
            for ranking in list(self._rows):
                await self._flush(ranking)

    async def close(self) -> None:
        await self.flush()
        await end_tasks(self._flushing.values())

    async def _flush_after(self, ranking: Ranking, wait_s: float) -> None:
        """Goes on while there is something to send."""
        full = self._full[ranking]
        while ranking in self._rows:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await full.wait()
            full.clear()
            await self._flush(ranking)
        del self._flushing[ranking], self._full[ranking]

    async def _flush(self, ranking: Ranking) -> None:
        board, gathered, as_of = self._rows.pop(ranking, (None, {}, AsOf()))
        if board is not None:
            await self._send(board, ranking, list(gathered.values()), as_of)
            BUFFERED.set(sum(len(waiting) for _, waiting, _ in self._rows.values()))


def reach_capacity(board: Board, rows: list[Row]) -> tuple[list[Row], int]:
    """The rows that can be ranked, the best first; and how many can't be, for enough others are better.

    Only where scores never get worse: else one of them may be ranked now, and has to leave. See Index.apply.
    """
    if board.capacity is None or board.flush_ms is None or not board.forgets:
        return rows, 0
    wanted = board.capacity + reserve_of(board.capacity)
    if len(rows) <= wanted:
        return rows, 0
    assert all(row.ranked is not None for row in rows), "who is removed is not buffered"

    def key(row: Row) -> bytes:
        standing = row.standing
        assert standing is not None
        return encode_key(board.order, board.ties, standing.score, standing.achieved_at, row.user_id)

    best = heapq.nsmallest(wanted, rows, key=key)
    return best, len(rows) - len(best)
