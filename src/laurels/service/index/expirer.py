"""Scores that expire: on a board with `scoreTtlSeconds`, a user whose last score is older leaves the rankings.

The ledger marks such a row as expired, with a new version, and it reaches the index like any other change. Every read
of the board first lets expire what is due, so no read shows a user later than that moment, also after a restart. A task
does the same between reads, for live subscribers.

A server knows when the next row is due from the ledger, which it asks again at least every LOOK_EVERY_US, and from the
rows that it writes itself. Only a score with an old timestamp that another server has just taken can be due earlier.
Nothing expires after the end of its period, so final ranks are those of that moment.
"""

import asyncio
import math

import structlog

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.windows import Period, PeriodState
from laurels.errors import LaurelsError, Unavailable
from laurels.ports import Clock, Ledger, Row
from laurels.service.boards.boards import Boards
from laurels.service.index.updater import IndexUpdater
from laurels.tasks import end_tasks

log = structlog.get_logger()

ROWS_PER_STEP = 1000
LOOK_EVERY_US = SECOND_US
TICK_S = 0.25


class Expirer:
    def __init__(self, ledger: Ledger, updater: IndexUpdater, boards: Boards, clock: Clock) -> None:
        self._ledger = ledger
        self._updater = updater
        self._boards = boards
        self._clock = clock
        # By board: when a row is due next, and when the ledger was asked.
        self._due_at: dict[int, float] = {}
        self._looked_at: dict[int, int] = {}
        self._settling: dict[int, asyncio.Lock] = {}
        self._ticking: asyncio.Task[None] | None = None
        updater.on_expiring_rows, updater.before_ranks = self.note, self._settle_before_write

    def start(self) -> None:
        self._ticking = asyncio.create_task(self._tick(), name="let scores expire")

    async def close(self) -> None:
        await end_tasks([] if self._ticking is None else [self._ticking])

    def note(self, board: Board, rows: list[Row]) -> None:
        """Note rows that this server has written."""
        ttl = (board.score_ttl_s or 0) * SECOND_US
        known = self._due_at.get(board.id)
        if known is not None:
            dues = (row.standing.last_at + ttl for row in rows if row.standing and row.standing.last_at is not None)
            self._due_at[board.id] = min(known, min(dues, default=math.inf))

    async def settle(self, board: Board) -> None:
        """Let the scores of a board expire that are due.

        Raises Unavailable if some are, or may be, and the ledger is unreachable.
        """
        if board.score_ttl_s is None:
            return
        async with self._settling.setdefault(board.id, asyncio.Lock()):
            now, known = self._clock.now_us(), self._due_at.get(board.id)
            if known is not None and now < known and now < self._looked_at.get(board.id, 0) + LOOK_EVERY_US:
                return
            # From now on `note` adds to what the ledger is about to tell.
            self._due_at[board.id] = math.inf
            try:
                await self._expire(board, board.periods, now)
                self._looked_at[board.id] = now
            except Unavailable:
                self._restore(board, known)
                if known is None or now >= known:
                    raise
            except BaseException:
                self._restore(board, known)
                raise

    async def _settle_before_write(self, board: Board) -> None:
        """Do as `settle` before rows are ranked. Rows that are stored are ranked in any case."""
        try:
            await self.settle(board)
        except LaurelsError as error:
            log.debug("scores_not_expired", board=board.uuid, reason=error.message)

    def _restore(self, board: Board, known: float | None) -> None:
        if known is None:
            self._due_at.pop(board.id, None)
        else:
            self._due_at[board.id] = min(known, self._due_at.get(board.id, math.inf))

    async def settle_period(self, board: Board, period: Period) -> None:
        """Let the scores of a period expire that were due before its end, because its final ranks are being written."""
        if board.score_ttl_s is not None:
            await self._expire(board, [period], self._clock.now_us())

    async def _expire(self, board: Board, periods: "tuple[Period, ...] | list[Period]", now: int) -> None:
        ttl = (board.score_ttl_s or 0) * SECOND_US
        ends = {period.id: _end_of(board, period) for period in periods}
        oldest = await self._ledger.oldest_last_at(list(ends))
        while cutoffs := [
            (period_id, int(min(now, ends[period_id])) - ttl)
            for period_id, last_at in oldest.items()
            if last_at + ttl <= min(now, ends[period_id])
        ]:
            as_of = self._ledger.as_of
            rows = await self._ledger.expire(board.id, cutoffs, ROWS_PER_STEP)
            await self._updater.apply(rows, as_of, at_once=True, expired=True)
            oldest = await self._ledger.oldest_last_at(list(ends))
            await asyncio.sleep(0)
        due = min((at + ttl for period_id, at in oldest.items() if at + ttl <= ends[period_id]), default=math.inf)
        self._due_at[board.id] = min(self._due_at.get(board.id, math.inf), due)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for board in self._boards.all():
                if board.score_ttl_s is not None:
                    try:
                        await self.settle(board)
                    except LaurelsError as error:
                        log.debug("scores_not_expired", board=board.uuid, reason=error.message)
                    except Exception:
                        log.exception("scores_not_expired", board=board.uuid)


def _end_of(board: Board, period: Period) -> float:
    """Return after which instant nothing expires in a period."""
    end = period.end if period.state is PeriodState.REFREEZING else board.end_of(period)
    return math.inf if end is None else end
