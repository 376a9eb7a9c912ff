"""The index repairer: repairs rankings that are behind the ledger, in three ways.

- the repair queue: rows that could not be applied are retried until they are;
- the repair pass: one server at a time regularly applies the latest changes, because a server may have died between its
  writes to the ledger and to the index, and a promoted Redis replica may lack the last writes;
- the build: a ranking that is missing or too far behind is built from the ledger, and then replaces the live one.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog

from laurels.core.board import Board, Ranking
from laurels.core.parts import part_of
from laurels.errors import LaurelsError
from laurels.logs import LogLimit
from laurels.metrics import BUILDS, REPAIR_QUEUE, REPAIRED
from laurels.ports import Applied, AsOf, Index, IndexHealth, IndexState, Ledger, Position, RanksWanted, Row
from laurels.retry import Backoff
from laurels.tasks import end_tasks, start_apart

log = structlog.get_logger()

RETRY_S = 0.1
MAX_RETRY_S = 1.0
REPAIRS_AT_ONCE = 4
# How many rankings with another number of shards, which reads don't use, are repaired at the same time.
OTHERS_AT_ONCE = 2
LOG_EVERY_S = 10.0
# Rows per call of the index, because one call blocks all others.
APPLY_ROWS = 1000
# The maximum size of the repair queue; beyond it, the repairer finds the missing rows in the ledger.
QUEUE_ROWS = 100_000
# From this many changes on, a stale ranking is rebuilt, which is faster than catching up, and the repair pass leaves
# the changes of the others to a repair of their own.
CATCH_UP_EVENTS = 200_000

UNREACHABLE = IndexHealth.UNREACHABLE

Stream = AsyncIterator[list[Row]]
# Rankings with the states of some of their parts.
Followed = dict[Ranking, list[IndexState]]


async def apply_in_parts(index: Index, board: Board, ranking: Ranking, rows: Sequence[Row], as_of: AsOf) -> Applied:
    """Apply rows in calls of at most APPLY_ROWS rows.

    The result's `rank_changes` is empty, or None if the ranking is stale.
    """
    ready, refused = True, False
    for start in range(0, len(rows), APPLY_ROWS):
        applied = await index.apply(
            ranking, rows[start : start + APPLY_ROWS], board.rank_style, as_of, RanksWanted.NONE
        )
        ready, refused = ready and applied.rank_changes is not None, refused or applied.refused
    return Applied([] if ready else None, refused=refused)


class IndexRepairer:
    """The repair queue, the repair pass and the builds of one server.

    `interval_s` None: no pass is needed, because no other server writes to this ledger and index.
    """

    def __init__(self, ledger: Ledger, index: Index, interval_s: float | None) -> None:
        self._ledger = ledger
        self._index = index
        self._interval_s = interval_s
        # Keyed by period id.
        self._repairs: dict[int, asyncio.Task[None]] = {}
        self._queue: dict[int, dict[str, Row]] = {}
        # Periods whose missing rows are not in the queue and must be read from the ledger.
        self._overflowed: set[int] = set()
        self._outages_repaired = 0
        # The ledger's current history, and the periods whose rankings may belong to another history.
        self._history = ledger.as_of.history
        self._suspects: set[int] = set()
        # Periods whose other rankings lack rows, while the number of shards changes, with how often that was noted: see
        # `note_other_missed`.
        self._others_missed: dict[int, int] = {}
        self._other_repairs: dict[int, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        # The current boards: an event in flight may carry an older version of its board.
        self._boards: dict[int, Board] = {}
        self._by_period: dict[int, Board] = {}
        self._refresh: Callable[[], Awaitable[None]] | None = None
        self._passing: asyncio.Task[None] | None = None
        # An outage affects all rankings at once.
        self._begun_log, self._failed_log, self._built_log = (LogLimit(LOG_EVERY_S) for _ in range(3))
        # Limits concurrent repairs, because after a loss of the index all rankings need one.
        self._slots = asyncio.Semaphore(REPAIRS_AT_ONCE)
        # A large board that gets other parts must not keep the rankings that reads use waiting.
        self._other_slots = asyncio.Semaphore(OTHERS_AT_ONCE)

    def start(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Start the repair pass.

        Each pass first calls `refresh` to reload the boards, so that it does not undo changes of other servers.
        """
        self._refresh = refresh
        if self._interval_s is not None:
            self._passing = asyncio.create_task(self._pass_regularly(self._interval_s), name="repair pass")

    async def close(self) -> None:
        passing = [self._passing] if self._passing else []
        await end_tasks([*self._repairs.values(), *self._other_repairs.values(), *passing])

    def track(self, board: Board) -> None:
        """Register a board that was created or changed.

        Periods that the board no longer has are frozen: the repairer forgets their rankings.
        """
        before = self._boards.get(board.id)
        self._boards[board.id] = board
        for period in before.periods if before is not None else ():
            self._by_period.pop(period.id, None)
        for period in board.periods:
            self._by_period[period.id] = board
        if before is not None and (before.shards != board.shards or board.reshard is None):
            for period in board.periods:
                if self._others_missed.pop(period.id, 0) and before.shards != board.shards:
                    # Reads use the other ranking now.
                    self.mark_stale(period.id)
                    self.schedule(board, board.ranking(period.id))
        for period_id in {*self._queue, *self._overflowed, *self._others_missed} - set(self._by_period):
            self._queue.pop(period_id, None)
            self._overflowed.discard(period_id)
            self._others_missed.pop(period_id, None)

    def drop_board(self, board: Board) -> None:
        """Forget a board that was deleted, or that the ledger has lost.

        The `trim` job drops its rankings, which no longer belong to a period.
        """
        known = self._boards.pop(board.id, None)
        for period in (*board.periods, *(known.periods if known is not None else ())):
            self._by_period.pop(period.id, None)
            self._queue.pop(period.id, None)
            self._overflowed.discard(period.id)

    def board_of(self, period_id: int) -> Board | None:
        """Return the board of a period; None if the period is frozen or unknown."""
        return self._by_period.get(period_id)

    @property
    def is_repairing(self) -> bool:
        return any(not task.done() for task in (*self._repairs.values(), *self._other_repairs.values()))

    def wake(self) -> None:
        """Start the next pass early, because a reader waits for a complete ranking."""
        self._wake.set()

    @property
    def waiting(self) -> int:
        """Return the number of rows in the repair queue."""
        return sum(len(rows) for rows in self._queue.values())

    @property
    def running_repairs(self) -> int:
        return len(self._repairs) + len(self._other_repairs)

    def mark_stale(self, period_id: int) -> None:
        """Treat the rankings of a period as stale until a repair has applied all changes from the ledger."""
        self._overflowed.add(period_id)

    def note_other_missed(self, board: Board, ranking: Ranking) -> None:
        """Note that rows could not be applied to the ranking with the other number of shards.

        It is repaired in the background. If reads use it before, or already, they treat it as stale until then.
        """
        period_id = ranking.period_id
        if self._is_read(ranking):
            self.mark_stale(period_id)
        else:
            self._others_missed[period_id] = self._others_missed.get(period_id, 0) + 1
        self.schedule(board, ranking)

    def schedule(
        self, board: Board, ranking: Ranking, rows: Sequence[Row] = (), error: LaurelsError | None = None
    ) -> None:
        """Repair a stale ranking in the background; `rows` are known to be missing from it."""
        period_id = ranking.period_id
        if ranking.period_id not in self._by_period:
            return
        if not self._is_read(ranking):
            self._schedule_other(board, period_id)
            return
        if rows:
            queued = self._queue.setdefault(period_id, {})
            for row in rows:
                if (held := queued.get(row.user_id)) is None or row.version > held.version:
                    queued[row.user_id] = row
            if self.waiting > QUEUE_ROWS:
                del self._queue[period_id]
                self.mark_stale(period_id)
            REPAIR_QUEUE.set(self.waiting)
        repair = self._repairs.get(period_id)
        if repair is None or repair.done():
            if error is not None and (count := self._begun_log.count(error.message)) is not None:
                log.info("index_repairing", reason=error.message, rankings=count, last_period=period_id)
            work = self._repeat(self._slots, lambda: self._repair_once(board.id, period_id), period_id)
            self._repairs[period_id] = start_apart(work, f"repair {board.uuid}")

    def _schedule_other(self, board: Board, period_id: int) -> None:
        """Build or repair the ranking with the other number of shards in the background."""
        repair = self._other_repairs.get(period_id)
        if repair is None or repair.done():
            work = self._repeat(self._other_slots, lambda: self._repair_others_once(board.id, period_id), period_id)
            self._other_repairs[period_id] = start_apart(work, f"repair other parts of {board.uuid}")

    def is_stale(self, ranking: Ranking) -> bool:
        """Return True if the ranking lacks rows, or may lack rows.

        It may if the index was unreachable, or if the ranking may belong to another history of the ledger.
        """
        period_id = ranking.period_id
        return (
            period_id in self._queue
            or period_id in self._overflowed
            or period_id in self._suspected()
            or (self._interval_s is not None and self._index.outages != self._outages_repaired)
        )

    async def build(
        self,
        board: Board,
        ranking: Ranking,
        watch: Callable[[Stream], Stream] = lambda rows: rows,
        replacing: Sequence[IndexState] | None = None,
    ) -> None:
        """Build a ranking from the ledger, then replace the live one.

        `watch` wraps the stream of rows. `replacing`: build only these parts, and only if they are still live as they
        were seen.
        """
        await self._ledger.read_as_of()
        position = await self._ledger.position()
        await self._index.load(ranking, watch(self._ledger.rows(ranking.period_id)), position, replacing)
        if replacing is None and position.history == self._ledger.as_of.history:
            self._suspected().discard(ranking.period_id)
        current = self._by_period.get(ranking.period_id)
        wanted = () if current is None else current.rankings(ranking.period_id)
        if ranking.parts not in {each.parts for each in wanted}:
            # The period was frozen during the build, or the board has another number of shards, and the ranking may
            # already have been dropped.
            await self._index.drop(ranking)
        BUILDS.inc()
        log.debug("index_built", board=board.uuid, period=ranking.period_id)

    async def run_pass(self) -> None:
        """Check every part of every ranking, and apply the changes since the position up to which it is complete.

        Schedules a repair of rankings with parts that are missing, stale, too far behind, or hold data that the ledger
        has lost.
        """
        if self._refresh is not None:
            await self._refresh()
        outages = self._index.outages
        await self._ledger.mark()
        await self._ledger.read_as_of()
        position = await self._ledger.position()
        # Grouped by position: all parts have the same one, unless a pass skipped some.
        followed: dict[Position, Followed] = {}
        for ranking, state, lost in await self._states():
            if ranking.period_id not in self._by_period:
                continue
            if state.health is IndexHealth.STALE or lost or _needs_build(state):
                self.schedule(self._by_period[ranking.period_id], ranking)
            elif state.position is not None:
                followed.setdefault(state.position, {}).setdefault(ranking, []).append(state)
        for since, some in followed.items():
            await self._follow(since, some, position)
        self._outages_repaired = outages

    async def check_histories(self) -> None:
        """Mark the rankings that don't belong to the ledger's history as stale, before the first read."""
        self._suspected().update(self._by_period)
        with contextlib.suppress(LaurelsError):
            await self._states()

    # Internals

    def _suspected(self) -> set[int]:
        """Return the periods whose rankings may belong to another history.

        When the ledger starts a new history, these are all known periods.
        """
        if self._ledger.as_of.history != self._history:
            self._history = self._ledger.as_of.history
            if self._interval_s is not None:
                self._suspects = set(self._by_period)
                self.wake()
        return self._suspects

    async def _follow(self, since: Position, followed: Followed, position: Position) -> None:
        """Apply the changes since a position to parts that are not stale.

        These have every row but those of servers that have died, however far their position is behind. So if there are
        many changes, a repair of their own applies them: other rankings don't wait for it, and reads go on.
        """
        is_known = await self._ledger.remembers(since)
        if is_known and not await self._is_far(since):
            await self._catch_up(since, followed, position)
            return
        for ranking in followed:
            if (board := self._by_period.get(ranking.period_id)) is not None:
                if not is_known and self._is_read(ranking):
                    self.mark_stale(ranking.period_id)
                self.schedule(board, ranking)

    async def _states(self) -> list[tuple[Ranking, IndexState, bool]]:
        """Return each reachable part of a ranking, its state, and whether it holds data that the ledger has lost."""
        history = self._ledger.as_of.history
        rankings = [
            ranking
            for board in self._boards.values()
            for period in board.periods
            for ranking in board.rankings(period.id)
        ]
        every = list(zip(rankings, await self._index.states(rankings), strict=True))
        found = [(ranking, state) for ranking, states in every for state in states if state.health is not UNREACHABLE]
        positions = {state.position for _, state in found if state.position is not None}
        known = {position: await self._ledger.knows(position) for position in positions}
        states = [
            (ranking, state, state.position is not None and not known[state.position]) for ranking, state in found
        ]
        if history == self._ledger.as_of.history:
            suspects = self._suspected()
            known_parts = Counter(
                (ranking.period_id, ranking.parts)
                for ranking, state, lost in states
                if state.position is not None and not lost
            )
            suspects.difference_update(
                ranking.period_id
                for ranking, parts in every
                if self._is_read(ranking) and known_parts[ranking.period_id, ranking.parts] == len(parts)
            )
            suspects.intersection_update(self._by_period)
        return states

    async def _pass_regularly(self, interval_s: float) -> None:
        """Run the first pass at once, because the state of the index is unknown, then one per interval.

        After the first pass, one server at a time runs a pass.
        """
        may_pass = True
        told = ""
        while True:
            try:
                if may_pass:
                    await self.run_pass()
                await self._pause(interval_s)
                # Limits the rate of passes, because every stale read calls `wake`.
                await asyncio.sleep(RETRY_S)
                # After an outage of the index, every server runs a pass without a claim.
                missed = self._index.outages != self._outages_repaired
                may_pass = missed or await self._index.claim("repair", interval_s * 0.9)
                if not may_pass and self._suspected():
                    # Another server rebuilds them: check whether it is done.
                    await self._states()
                told = ""
            except LaurelsError as error:
                if error.message != told:
                    log.warning("repair_pass_failed", reason=error.message)
                told = error.message
                await asyncio.sleep(min(interval_s, MAX_RETRY_S))
            except Exception:
                log.exception("repair_pass_failed")
                await asyncio.sleep(interval_s)

    async def _pause(self, interval_s: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await self._wake.wait()

    async def _repeat(self, slots: asyncio.Semaphore, repair: Callable[[], Awaitable[bool]], period_id: int) -> None:
        """Repeat a repair until it returns True, with pauses."""
        backoff = Backoff(RETRY_S, MAX_RETRY_S)
        while True:
            try:
                async with slots:
                    done = await repair()
            except LaurelsError as error:
                if error.code not in {"build_running", "index_unavailable"} and (
                    count := self._failed_log.count(error.message)
                ):
                    log.warning("repair_failed", reason=error.message, attempts=count, last_period=period_id)
                done = False
            except Exception:
                if count := self._failed_log.count():
                    log.exception("repair_failed", attempts=count, last_period=period_id)
                done = False
            if done:
                log.debug("index_repaired", period=period_id)
                for repairs in (self._repairs, self._other_repairs):
                    if repairs.get(period_id) is asyncio.current_task():
                        del repairs[period_id]
                return
            await asyncio.sleep(backoff.next_s())

    async def _repair_once(self, board_id: int, period_id: int) -> bool:
        """Repair a ranking once; return True if it is complete or no longer needed."""
        if period_id not in self._by_period:
            return True
        board = self._boards[board_id]
        ranking = board.ranking(period_id)
        as_of = await self._ledger.read_as_of()
        position = await self._ledger.position()
        if not await self._repair_ranking(board, ranking, position, lacks=period_id in self._overflowed):
            return False
        self._overflowed.discard(period_id)
        (after,) = await self._index.states([ranking])
        if any(state.health is not IndexHealth.READY for state in after):
            return False
        history = self._ledger.as_of.history
        if all(state.position is None or state.position.history == history for state in after):
            self._suspected().discard(period_id)
        if not await self._apply_queued(board, ranking, as_of):
            return False
        # `schedule` starts no second task, so problems found meanwhile are left to this one.
        return not {period_id} & (self._overflowed | self._suspected())

    async def _repair_others_once(self, board_id: int, period_id: int) -> bool:
        """Repair the rankings that reads don't use once; return True if they are complete or no longer needed."""
        board = self._by_period.get(period_id)
        if board is None or board.id != board_id:
            return True
        missed = self._others_missed.get(period_id, 0)
        for other in board.rankings(period_id)[1:]:
            await self._ledger.read_as_of()
            position = await self._ledger.position()
            if not await self._repair_ranking(board, other, position, lacks=bool(missed)):
                return False
            (states,) = await self._index.states([other])
            if any(state.health is not IndexHealth.READY for state in states):
                return False
        if self._others_missed.get(period_id, 0) != missed:
            # Rows were missed meanwhile.
            return False
        self._others_missed.pop(period_id, None)
        return True

    async def complete_others(self, board: Board) -> bool:
        """Apply everything that is committed to the rankings with the other number of shards.

        Returns False if it failed.
        """
        await self._ledger.read_as_of()
        position = await self._ledger.position()
        for period in board.periods:
            for other in board.rankings(period.id)[1:]:
                if not await self._repair_ranking(board, other, position, lacks=True):
                    return False
                (states,) = await self._index.states([other])
                if any(state.health is not IndexHealth.READY for state in states):
                    return False
        return True

    async def _repair_ranking(self, board: Board, ranking: Ranking, position: Position, *, lacks: bool) -> bool:
        """Build the parts of a ranking that need it, and apply the missing changes to the others.

        `lacks`: all parts may lack changes. Returns False if some parts are not complete.
        """
        (states,) = await self._index.states([ranking])
        if any(state.health is UNREACHABLE for state in states):
            return False
        build = [state for state in states if await self._must_build(state)]
        behind = [state for state in states if state not in build and (lacks or await self._is_behind(state))]
        if build:
            await self.build(board, ranking, replacing=build)
            # A build takes long, and the new parts are complete up to its begin.
            built = {state.part for state in build}
            (states,) = await self._index.states([ranking])
            behind += [state for state in states if state.part in built]
            position = await self._ledger.position()
            if (count := self._built_log.count()) is not None:
                log.info("index_rebuilt", rankings=count, last_board=board.uuid, last_period=ranking.period_id)
        followed: dict[Position, list[IndexState]] = {}
        for state in behind:
            if state.position is not None:
                followed.setdefault(state.position, []).append(state)
        for since, some in followed.items():
            if not await self._catch_up(since, {ranking: some}, position):
                return False
        return True

    async def _is_behind(self, state: IndexState) -> bool:
        return state.health is IndexHealth.STALE or await self._is_far(state.position)

    async def _must_build(self, state: IndexState) -> bool:
        """Return True if a part can't be completed from the changes since its position, or not fast.

        A part that is not stale has got every row since it was built, so it is never too far behind.
        """
        if _needs_build(state):
            return True
        if state.position is None:
            return False
        if not await self._ledger.knows(state.position) or not await self._ledger.remembers(state.position):
            return True
        return state.health is IndexHealth.STALE and await self._is_far(state.position)

    def _is_read(self, ranking: Ranking) -> bool:
        """Return True unless the number of shards changes, and reads use the other ranking of the period."""
        board = self._by_period.get(ranking.period_id)
        return board is None or board.shards == ranking.parts

    async def _apply_queued(self, board: Board, ranking: Ranking, as_of: AsOf) -> bool:
        period_id = ranking.period_id
        while queued := self._queue.get(period_id):
            some = list(queued.values())[:APPLY_ROWS]
            # Read the rows again: the index may have forgotten a user who was erased, and would accept an older row.
            rows = await self._ledger.rows_of_users(period_id, [row.user_id for row in some])
            if rows:
                applied = await self._index.apply(ranking, rows, board.rank_style, as_of, RanksWanted.NONE)
                if applied.refused:
                    # `as_of` is outdated by now: retry with a current one.
                    return False
            for row in some:
                # A row that was queued meanwhile is newer and stays.
                if queued.get(row.user_id) is row:
                    del queued[row.user_id]
            if not queued and self._queue.get(period_id) is queued:
                del self._queue[period_id]
            REPAIRED.inc(len(some))
            REPAIR_QUEUE.set(self.waiting)
        return True

    async def _is_far(self, since: Position | None) -> bool:
        return since is not None and await self._ledger.count_changes(since, CATCH_UP_EVENTS) >= CATCH_UP_EVENTS

    async def _catch_up(self, since: Position, followed: Followed, position: Position) -> bool:
        """Apply the changes since a position to some parts of rankings, and confirm their new position.

        Returns False if it failed for some rankings; these are marked as stale and scheduled for a repair.
        """
        failed: set[Ranking] = set()
        rankings: dict[int, list[Ranking]] = {}
        for ranking in followed:
            rankings.setdefault(ranking.period_id, []).append(ranking)
        parts = {ranking: {state.part for state in states} for ranking, states in followed.items()}
        async for chunk in self._ledger.changes(since):
            rows: dict[Ranking, list[Row]] = {}
            for row in chunk:
                for ranking in rankings.get(row.period_id, ()):
                    if ranking not in failed and part_of(row.user_id, ranking.parts) in parts[ranking]:
                        rows.setdefault(ranking, []).append(row)
            results = await asyncio.gather(
                *(self._apply_changes(ranking, some, position) for ranking, some in rows.items())
            )
            failed |= {ranking for ranking, ok in zip(rows, results, strict=True) if not ok}
        await asyncio.gather(
            *(
                self._confirm(ranking, state, position)
                for ranking, states in followed.items()
                if ranking not in failed
                for state in states
            )
        )
        return not failed

    async def _apply_changes(self, ranking: Ranking, rows: list[Row], as_of: AsOf) -> bool:
        board = self._by_period.get(ranking.period_id)
        if board is None:
            return False
        try:
            # Includes users who are not ranked, because the index may not know yet that they were removed.
            for start in range(0, len(rows), APPLY_ROWS):
                some = rows[start : start + APPLY_ROWS]
                applied = await self._index.apply(ranking, some, board.rank_style, as_of, RanksWanted.NONE)
                if applied.refused:
                    self._note_failed(board, ranking, None)
                    return False
        except LaurelsError as error:
            self._note_failed(board, ranking, error)
            return False
        return True

    def _note_failed(self, board: Board, ranking: Ranking, error: LaurelsError | None) -> None:
        if self._is_read(ranking):
            self.mark_stale(ranking.period_id)
        self.schedule(board, ranking, (), error)

    async def _confirm(self, ranking: Ranking, state: IndexState, position: Position) -> None:
        with contextlib.suppress(LaurelsError):
            await self._index.confirm(ranking, state, position)


def _needs_build(state: IndexState) -> bool:
    return state.health is IndexHealth.MISSING or state.wants_build
