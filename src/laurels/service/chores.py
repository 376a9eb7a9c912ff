"""The jobs that there are, and when each is due.

- periods: makes the next periods ahead of their time, freezes those that are over, in order, sweeps the frozen ones;
- webhooks: delivers what the outbox has;
- retention: removes what need not be kept any longer.
"""

from typing import Any

from laurels.core.instants import SECOND_US
from laurels.core.periods import missing_spans
from laurels.ports import Clock, Ledger
from laurels.service.boards import Boards
from laurels.service.freezing import SWEEP_AFTER_US, Freezer
from laurels.service.jobs import Job
from laurels.service.retention import Retention
from laurels.service.webhooks import Webhooks

RETENTION_EVERY_US = 3600 * SECOND_US
# So often it is looked for what is due only now and then, and asked of the ledger.
LOOK_EVERY_US = 10 * SECOND_US
PERIODS = "periods"
WEBHOOKS = "webhooks"
RETENTION = "retention"


class Chores:
    def __init__(
        self,
        ledger: Ledger,
        freezer: Freezer,
        boards: Boards,
        webhooks: Webhooks,
        retention: Retention,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._freezer = freezer
        self._boards = boards
        self._webhooks = webhooks
        self._retention = retention
        self._clock = clock
        self._looked_for_unswept = 0
        self._looked_for_retention = 0

    @property
    def jobs(self) -> list[Job]:
        return [
            Job(PERIODS, self._periods_are_due, self._see_to_periods),
            Job(WEBHOOKS, self._webhooks.has_due, self._webhooks.deliver),
            Job(RETENTION, self._retention_is_due, self._retain),
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

    async def _retention_is_due(self) -> bool:
        now = self._clock.now_us()
        if now < self._looked_for_retention + LOOK_EVERY_US:
            return False
        self._looked_for_retention = now
        last = next((run.finished_at for run in await self._ledger.jobs.runs() if run.name == RETENTION), None)
        return last is None or now >= last + RETENTION_EVERY_US

    async def _retain(self) -> dict[str, Any]:
        removed = await self._retention.prune() if self._retention.is_wanted() else {}
        return removed | {"messages": await self._webhooks.forget()}
