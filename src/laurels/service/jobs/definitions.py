"""The jobs, and when each is due.

- periods: creates the next periods ahead of time, freezes periods that are over, in order, and sweeps frozen ones;
- webhooks: delivers the messages in the outbox;
- publish: publishes score changes, period ends and rewards to Kafka, if there is one;
- trim: drops rankings that belong to no period from the index;
- reshard: switches boards whose number of shards changes to their new rankings, and drops the old ones;
- check: once per day, compares all rankings with the events and rebuilds those that differ;
- segments: completes the rankings of segments that were added to boards;
- deletions: removes what deleted boards had;
- retention: removes data that is past its retention time;
- moderation: continues actions whose server died, and removes the last traces of erased users.
"""

import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import structlog

from laurels.core.board import Board, Ranking
from laurels.core.fair_queue import FairQueue
from laurels.core.instants import SECOND_US
from laurels.core.order import Order, Ties
from laurels.core.people import GLOBAL
from laurels.core.periods import missing_spans
from laurels.core.windows import Period
from laurels.errors import LaurelsError, Unavailable
from laurels.logs import LogLimit
from laurels.ports import Clock, Index, Ledger
from laurels.service.audit.audit_log import AuditLog
from laurels.service.boards.boards import Boards
from laurels.service.boards.deletions import Deletions
from laurels.service.index.inspections import Inspections
from laurels.service.index.resharder import Resharder
from laurels.service.jobs.retention import Retention
from laurels.service.jobs.runner import Job
from laurels.service.moderation.moderation import Moderation
from laurels.service.people.erasures import Erasures
from laurels.service.people.segment_filler import SegmentFiller
from laurels.service.publish.publisher import Publisher
from laurels.service.publish.webhooks import Webhooks
from laurels.service.seasons.freezer import SWEEP_AFTER_US, Freezer

log = structlog.get_logger()

MAKE_AHEAD_EVERY_S = 1.0
# For how long one run of the job starts to freeze and sweep periods.
FREEZE_FOR_S = 10.0
# What a freeze, a refreeze or a step of a sweep costs besides its rows, in rows.
ROWS_PER_STEP = 100
EVERY_US = 3600 * SECOND_US
# A daily check that failed runs again after this time.
CHECK_AGAIN_US = 900 * SECOND_US
# Minimum interval between queries to the ledger for work that is rarely due.
LOOK_EVERY_US = 10 * SECOND_US
PERIODS = "periods"
WEBHOOKS = "webhooks"
PUBLISH = "publish"
MODERATION = "moderation"
RETENTION = "retention"
TRIM = "trim"
RESHARD = "reshard"
CHECK = "check"
DELETIONS = "deletions"
SEGMENTS = "segments"


# A step for a period: adds to the counts, and returns how many rows it took and whether it was the last one.
_Step = Callable[[Board, Period, dict[str, int]], Awaitable[tuple[int, bool]]]


class JobDefinitions:
    def __init__(
        self,
        ledger: Ledger,
        index: Index,
        freezer: Freezer,
        boards: Boards,
        webhooks: Webhooks,
        retention: Retention,
        audit_log: AuditLog,
        moderation: Moderation,
        erasures: Erasures,
        publisher: Publisher | None,
        resharder: Resharder,
        inspections: Inspections,
        deletions: Deletions,
        segment_filler: SegmentFiller,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._freezer = freezer
        self._boards = boards
        self._webhooks = webhooks
        self._retention = retention
        self._audit_log = audit_log
        self._moderation = moderation
        self._erasures = erasures
        self._publisher = publisher
        self._resharder = resharder
        self._inspections = inspections
        self._deletions = deletions
        self._segment_filler = segment_filler
        self._looked_for_acts = 0
        self._clock = clock
        self._looked_for_unswept = 0
        self._looked_for_runs = 0
        self._last_runs: dict[str, int] = {}
        # When the last run of a job that failed began.
        self._failed_at: dict[str, int] = {}
        # True after a ranking could not be dropped in this run of the job.
        self._waits_to_sweep = False
        self._sweep_log = LogLimit()

    @property
    def jobs(self) -> list[Job]:
        jobs = [
            Job(PERIODS, self._periods_are_due, self._see_to_periods),
            Job(WEBHOOKS, self._webhooks.has_due, self._webhooks.deliver),
            Job(TRIM, lambda: self._is_due_hourly(TRIM), self._trim),
            Job(RESHARD, self._resharder.is_due, self._resharder.run),
            Job(CHECK, self._check_is_due, self._inspections.check),
            Job(SEGMENTS, self._segment_filler.is_due, self._segment_filler.fill),
            Job(DELETIONS, self._deletions.is_due, self._deletions.purge),
            Job(MODERATION, self._moderation_is_due, self._moderate),
            Job(RETENTION, lambda: self._is_due_hourly(RETENTION), self._retain),
        ]
        if self._publisher is not None:
            jobs.append(Job(PUBLISH, self._publisher.is_due, self._publisher.publish))
        return jobs

    async def _periods_are_due(self) -> bool:
        now = self._clock.now_us()
        if (
            self._freezer.is_requested
            or self._freezer.due()
            or any(self._lacks_periods(board) for board in self._boards.all())
        ):
            return True
        if now < self._looked_for_unswept + LOOK_EVERY_US:
            return False
        self._looked_for_unswept = now
        seasons = self._ledger.periods
        return bool(await seasons.unswept(now - SWEEP_AFTER_US)) or bool(await seasons.refreezing())

    async def _see_to_periods(self) -> dict[str, Any]:
        """Create, freeze, refreeze and sweep periods.

        Creates first, and at least every `MAKE_AHEAD_EVERY_S` seconds between the other steps, so that new scores
        always find their period. The pods take turns, so that one with very many resets does not delay those of the
        others. Freezes alternate with refreezes and sweeps, so that neither waits for all of the other. A board that
        fails does not block the others: the errors are raised together at the end.
        """
        await self._boards.reload()
        failures: dict[str, str] = {}
        counts = {"made": 0, "frozen": 0, "finalRanks": 0, "refrozen": 0, "swept": 0}
        freezes, others = _Turns(), await self._find_others()
        made_at = -math.inf
        ends = time.monotonic() + FREEZE_FOR_S
        while True:
            if time.monotonic() > made_at + MAKE_AHEAD_EVERY_S:
                counts["made"] += await self._make_ahead(failures)
                # Other periods may have ended meanwhile.
                for board, period in self._freezer.due():
                    freezes.add(board, period, self._freeze)
                made_at = time.monotonic()
            if not (freezes or others) or time.monotonic() > ends:
                break
            for turns in (freezes, others):
                if turns:
                    await turns.take_one(counts, failures)
        if others:
            # What is left is due at once.
            self._looked_for_unswept = 0
        if failures:
            raise Unavailable("internal", "; ".join(f"{uuid}: {reason}" for uuid, reason in failures.items()))
        return counts

    async def _find_others(self) -> "_Turns":
        """Return the refreezes and the sweeps that are due."""
        turns = _Turns()
        for board, period in await self._freezer.refreezing():
            turns.add(board, period, self._refreeze)
        for board, period in await self._freezer.unswept():
            turns.add(board, period, self._sweep)
        self._waits_to_sweep = False
        return turns

    async def _freeze(self, board: Board, period: Period, counts: dict[str, int]) -> tuple[int, bool]:
        total = await self._freezer.freeze(board, period)
        counts["frozen"] += total is not None
        counts["finalRanks"] += total or 0
        return total or 0, True

    async def _refreeze(self, board: Board, period: Period, counts: dict[str, int]) -> tuple[int, bool]:
        counts["refrozen"] += await self._freezer.refreeze(board, period)
        return 0, True

    async def _sweep(self, board: Board, period: Period, counts: dict[str, int]) -> tuple[int, bool]:
        if self._waits_to_sweep:
            return 0, True
        try:
            removed, is_done = await self._freezer.sweep_some(board, period)
        except LaurelsError as error:
            # The index is away: no other ranking can be dropped either. A later run tries again.
            self._waits_to_sweep = True
            if (count := self._sweep_log.count()) is not None:
                log.info("sweep_waits", period=period.name, reason=error.message, count=count)
            return 0, True
        counts["swept"] += is_done
        return removed, is_done

    async def _make_ahead(self, failures: dict[str, str]) -> int:
        made = 0
        turns: FairQueue[Board] = FairQueue()
        for board in self._boards.all():
            if self._lacks_periods(board):
                turns.add(board.pod_id, 1, board)
        while turns:
            _, _, board = turns.take()
            with _noted(failures, board):
                known = {period.id for period in board.periods}
                fresh = await self._boards.make_ahead(board)
                made += sum(period.id not in known for period in fresh.periods)
        return made

    def _lacks_periods(self, board: Board) -> bool:
        try:
            return bool(missing_spans(board, self._clock.now_us()))
        except Exception:  # noqa: BLE001 - the job reports it
            return True

    async def _moderation_is_due(self) -> bool:
        now = self._clock.now_us()
        if now < self._looked_for_acts + LOOK_EVERY_US:
            return False
        self._looked_for_acts = now
        return bool(await self._moderation.lost_actions()) or await self._erasures.is_unswept()

    async def _moderate(self) -> dict[str, Any]:
        return {"acts": await self._moderation.go_on(), "erased": await self._erasures.sweep()}

    async def _is_due_hourly(self, name: str) -> bool:
        now = self._clock.now_us()
        last = await self._last_run(name, now)
        if last is not None and now < last + EVERY_US:
            return False
        # This or another server runs the job now, so it is not due again for an hour.
        self._last_runs[name] = now
        return True

    async def _check_is_due(self) -> bool:
        due = self._inspections.last_due_us()
        if due is None:
            return False
        now = self._clock.now_us()
        last = await self._last_run(CHECK, now)
        if last is None:
            # A new ledger waits for the next time.
            last = min((board.created_at for board in self._boards.all()), default=now)
        is_due = last < due or (self._failed_at.get(CHECK) == last and now >= last + CHECK_AGAIN_US)
        if is_due:
            self._last_runs[CHECK] = now
        return is_due

    async def _last_run(self, name: str, now: int) -> int | None:
        """Return when a job last began, on any server; None if it never did."""
        if now >= self._looked_for_runs + LOOK_EVERY_US:
            self._looked_for_runs = now
            for run in await self._ledger.jobs.runs():
                self._last_runs[run.name] = max(run.started_at, self._last_runs.get(run.name, 0))
                if run.error is not None:
                    self._failed_at[run.name] = run.started_at
        return self._last_runs.get(name)

    async def _trim(self) -> dict[str, Any]:
        """Drop rankings of periods that were swept or lost, and those with a number of parts that no board has.

        An index that was restored from a backup may contain them again.
        """
        dropped = 0
        async for found in self._index.built():
            owned = await self._ledger.periods.owned_periods([period_id for period_id, _ in found]) if found else set()
            await self._boards.reload()
            parts = {
                period.id: {ranking.parts for ranking in board.rankings(period.id)}
                for board in self._boards.all()
                for period in board.periods
            }
            for period_id, number in set(found):
                if period_id in owned and (self._index.instant is not None or number in parts.get(period_id, {number})):
                    continue
                # Only the period id and the number of parts matter here; the rest of the ranking is unknown.
                await self._index.drop(Ranking(period_id, GLOBAL, Order.DESC, Ties.EARLIEST, None, None, number))
                dropped += 1
        return {"dropped": dropped}

    async def _retain(self) -> dict[str, Any]:
        removed = await self._retention.prune() if self._retention.is_wanted() else {}
        forgotten = {
            "messages": await self._webhooks.forget(),
            "changes": await self._retention.forget_changes(),
            "auditEntries": await self._audit_log.forget(),
        }
        return removed | forgotten


class _Turns:
    """Steps for periods, in which pods take turns. Each period is added once per run of the job."""

    def __init__(self) -> None:
        self._queue: FairQueue[tuple[Board, Period, _Step]] = FairQueue()
        self._known: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, board: Board, period: Period, step: "_Step") -> None:
        if period.id not in self._known:
            self._known.add(period.id)
            self._queue.add(board.pod_id, ROWS_PER_STEP, (board, period, step))

    async def take_one(self, counts: dict[str, int], failures: dict[str, str]) -> None:
        pod_id, _, (board, period, step) = self._queue.take()
        with _noted(failures, board):
            rows, is_done = await step(board, period, counts)
            self._queue.charge(pod_id, rows)
            if not is_done:
                self._queue.add(pod_id, ROWS_PER_STEP, (board, period, step))


@contextlib.contextmanager
def _noted(failures: dict[str, str], board: Board) -> Iterator[None]:
    try:
        yield
    except LaurelsError as error:
        failures[board.uuid] = error.message
    except Exception as error:
        log.exception("board_job_failed", board=board.uuid)
        failures[board.uuid] = f"{type(error).__name__}: {error}"
