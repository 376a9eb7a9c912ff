"""The jobs that there are, and when each is due.

- periods: makes the next periods ahead of their time, freezes those that are over, in order, sweeps the frozen ones;
- webhooks: delivers what the outbox has;
- trim: lets go of what the index holds beyond the capacity of boards that have one;
- retention: removes what need not be kept any longer.
"""

import contextlib
from typing import Any

from laurels.core.instants import SECOND_US
from laurels.core.periods import missing_spans
from laurels.errors import Unavailable
from laurels.ports import Clock, Index, Ledger
from laurels.service.boards import Boards
from laurels.service.freezing import SWEEP_AFTER_US, Freezer
from laurels.service.jobs import Job
from laurels.service.retention import Retention
from laurels.service.webhooks import Webhooks

EVERY_US = 3600 * SECOND_US
# So often it is looked for what is due only now and then, and asked of the ledger.
LOOK_EVERY_US = 10 * SECOND_US
PERIODS = "periods"
WEBHOOKS = "webhooks"
RETENTION = "retention"
TRIM = "trim"


class Chores:
    def __init__(
        self,
        ledger: Ledger,
        index: Index,
        freezer: Freezer,
        boards: Boards,
        webhooks: Webhooks,
        retention: Retention,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._freezer = freezer
        self._boards = boards
        self._webhooks = webhooks
        self._retention = retention
        self._clock = clock
        self._looked_for_unswept = 0
        self._looked_for_runs = 0
        self._last_runs: dict[str, int] = {}

    @property
    def jobs(self) -> list[Job]:
        return [
            Job(PERIODS, self._periods_are_due, self._see_to_periods),
            Job(WEBHOOKS, self._webhooks.has_due, self._webhooks.deliver),
            Job(TRIM, lambda: self._is_due_hourly(TRIM), self._trim),
            Job(RETENTION, lambda: self._is_due_hourly(RETENTION), self._retain),
        ]

    async def _periods_are_due(self) -> bool:
        now = self._clock.now_us()
        if self._freezer.due() or any(missing_spans(board, now) for board in self._boards.all()):
            return True
        if now < self._looked_for_unswept + LOOK_EVERY_US:
            return False
        self._looked_for_unswept = now
        return bool(await self._ledger.seasons.unswept(now - SWEEP_AFTER_US))

    async def _see_to_periods(self) -> dict[str, Any]:
        """The next ones first: whatever takes long, scores of the present find their period."""
        await self._boards.reload()
        made = await self._make_ahead()
        frozen = users = 0
        for board, period in self._freezer.due():
            total = await self._freezer.freeze(board, period)
            frozen += total is not None
            users += total or 0
            made += await self._make_ahead()
        return {"made": made, "frozen": frozen, "finalRanks": users, "swept": await self._freezer.sweep()}

    async def _make_ahead(self) -> int:
        made = 0
        for board in self._boards.all():
            if missing_spans(board, self._clock.now_us()):
                ids = {period.id for period in board.periods}
                board = await self._boards.make_ahead(board)  # noqa: PLW2901 - the same one
                made += sum(period.id not in ids for period in board.periods)
        return made

    async def _is_due_hourly(self, name: str) -> bool:
        now = self._clock.now_us()
        if now >= self._looked_for_runs + LOOK_EVERY_US:
            self._looked_for_runs = now
            self._last_runs = {run.name: run.started_at for run in await self._ledger.jobs.runs()}
        last = self._last_runs.get(name)
        if last is not None and now < last + EVERY_US:
            return False
        # Whoever does it now, it need not be looked at again for a while.
        self._last_runs[name] = now
        return True

    async def _trim(self) -> dict[str, Any]:
        gone = 0
        for board in self._boards.all():
            for period in board.periods if board.capacity is not None else ():
                with contextlib.suppress(Unavailable):
                    # A ranking that is being completed is trimmed the next time.
                    gone += await self._index.trim(board.ranking(period.id), forget=board.forgets)
        return {"trimmed": gone}

    async def _retain(self) -> dict[str, Any]:
        removed = await self._retention.prune() if self._retention.is_wanted() else {}
        return removed | {"messages": await self._webhooks.forget()}
