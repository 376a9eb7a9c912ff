"""Brings an index that is behind the ledger up to it again. Every way is the same call, `apply`:

- the repair queue: rows that could not be applied, tried again until they can;
- the pass: now and then one of the servers applies what was changed lately, for a server may have died between the
  ledger and the index, and a Redis that took over may lack the last moments;
- the build: a ranking that is missing, or too far behind, is built anew beside the live one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog

from laurels.core.board import Board, Ranking
from laurels.errors import LaurelsError
from laurels.metrics import BUILDS, REPAIR_QUEUE, REPAIRED
from laurels.ports import Applied, AsOf, Index, IndexState, Ledger, Position, Row, Standby
from laurels.service.buffers import reach_capacity
from laurels.tasks import end_tasks

log = structlog.get_logger()

RETRY_S = 0.1
MAX_RETRY_S = 1.0
REFILLS = 5
REFILL_ROWS = 10_000
MENDS_AT_ONCE = 4
# One call of the index holds all others up.
APPLY_ROWS = 1000
# Rows that may wait to be applied again; more are left to the pass, which finds them in the ledger.
QUEUE_ROWS = 100_000
# From this many changes on, building anew is quicker than catching up.
CATCH_UP_EVENTS = 200_000

Stream = AsyncIterator[list[Row]]


async def complete(ledger: Ledger, index: Index, ranking: Ranking) -> None:
    """Refill a trimmed ranking while it runs low."""
    # Once is enough, unless it is overtaken by another refill or a build.
    for _ in range(REFILLS):
        refill = await index.begin_refill(ranking)
        if refill is None:
            return
        as_of = await ledger.read_as_of()
        if refill.wanted > REFILL_ROWS:
            # More than fits into one call.
            position = await ledger.position()
            await index.load(ranking, ledger.rows(ranking.period_id), position)
        else:
            await index.refill(ranking, refill, await ledger.best_rows(ranking, refill.wanted), as_of)


async def apply_reduced(
    ledger: Ledger, index: Index, board: Board, ranking: Ranking, rows: list[Row], as_of: AsOf
) -> Applied:
    """Apply what can be ranked of some rows, a part at a time. No placements: the ranking is behind."""
    rows, left_out = reach_capacity(board, rows)
    ready, refused = True, False
    for start in range(0, len(rows), APPLY_ROWS):
        some = rows[start : start + APPLY_ROWS]
        is_last = start + APPLY_ROWS >= len(rows)
        applied = await index.apply(ranking, some, board.rank_style, left_out if is_last else 0, as_of)
        ready, refused = ready and applied.placements is not None, refused or applied.refused
        if applied.short:
            await complete(ledger, index, ranking)
    return Applied([] if ready else None, refused=refused)


class Healer:
    """`interval_s` None: no pass is needed, for nobody else writes to this ledger and index."""

    def __init__(self, ledger: Ledger, index: Index, interval_s: float | None) -> None:
        self._ledger = ledger
        self._index = index
        self._interval_s = interval_s
        # By period.
        self._mending: dict[int, asyncio.Task[None]] = {}
        self._queue: dict[int, dict[str, Row]] = {}
        # More rows were missing than the queue takes.
        self._overflowed: set[int] = set()
        self._outages_mended = 0
        # The history that the ledger is in, and periods whose rankings may still be of another.
        self._history = ledger.as_of.history
        self._suspects: set[int] = set()
        self._wake = asyncio.Event()
        # Each board as it is now: an event in flight may carry an older one.
        self._boards: dict[int, Board] = {}
        self._by_period: dict[int, Board] = {}
        self._refresh: Callable[[], Awaitable[None]] | None = None
        self._passing: asyncio.Task[None] | None = None
        # After a loss of everything, not all rankings of all boards at once.
        self._slots = asyncio.Semaphore(MENDS_AT_ONCE)

    def start(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` brings the boards up to date, so that a pass does not undo what another server changed."""
        self._refresh = refresh
        if self._interval_s is not None:
            self._passing = asyncio.create_task(self._pass_regularly(self._interval_s), name="repair pass")

    async def close(self) -> None:
        await end_tasks([*self._mending.values(), *([self._passing] if self._passing else [])])

    def know(self, board: Board) -> None:
        """Rankings of periods that it does not have any more are final, and nobody's business here."""
        before = self._boards.get(board.id)
        self._boards[board.id] = board
        for period in before.periods if before is not None else ():
            self._by_period.pop(period.id, None)
        for period in board.periods:
            self._by_period[period.id] = board
        for period_id in {*self._queue, *self._overflowed} - set(self._by_period):
            self._queue.pop(period_id, None)
            self._overflowed.discard(period_id)

    def drop_board(self, board: Board) -> None:
        """Forget a board that the ledger has lost. The `trim` job drops its rankings, which nobody owns any more."""
        known = self._boards.pop(board.id, None)
        for period in (*board.periods, *(known.periods if known is not None else ())):
            self._by_period.pop(period.id, None)
            self._queue.pop(period.id, None)
            self._overflowed.discard(period.id)

    def board_of(self, period_id: int) -> Board | None:
        """The board of a period that is not final."""
        return self._by_period.get(period_id)

    @property
    def is_mending(self) -> bool:
        return any(not task.done() for task in self._mending.values())

    def hurry(self) -> None:
        """Don't wait for the next pass: somebody would like to read."""
        self._wake.set()

    @property
    def waiting(self) -> int:
        """How many rows wait to be applied again."""
        return sum(len(rows) for rows in self._queue.values())

    def mend(self, board: Board, ranking: Ranking, rows: Sequence[Row] = (), error: LaurelsError | None = None) -> None:
        """See to a ranking that is behind, in the background; `rows` are known to be missing from it."""
        period_id = ranking.period_id
        if ranking.period_id not in self._by_period:
            return
        if rows:
            queued = self._queue.setdefault(period_id, {})
            for row in rows:
                if (held := queued.get(row.user_id)) is None or row.version > held.version:
                    queued[row.user_id] = row
            if self.waiting > QUEUE_ROWS:
                del self._queue[period_id]
                self._overflowed.add(period_id)
            REPAIR_QUEUE.set(self.waiting)
        mending = self._mending.get(period_id)
        if mending is None or mending.done():
            if error is not None:
                log.info("index_mending", board=board.uuid, period=ranking.period_id, reason=error.message)
            task = asyncio.create_task(self._mend_until_done(board.id, period_id), name=f"mend {board.uuid}")
            self._mending[period_id] = task

    def is_behind(self, ranking: Ranking) -> bool:
        """Whether rows are known to be missing from it, or may be, for the index was away."""
        period_id = ranking.period_id
        return (
            period_id in self._queue
            or period_id in self._overflowed
            or period_id in self._suspected()
            or (self._interval_s is not None and self._index.outages != self._outages_mended)
        )

    async def build(
        self,
        board: Board,
        ranking: Ranking,
        watch: Callable[[Stream], Stream] = lambda rows: rows,
        replacing: str | None = None,
    ) -> None:
        """Build a ranking anew from the ledger and put it in its place. `watch` sees the rows go by."""
        await self._ledger.read_as_of()
        position = await self._ledger.position()
        await self._index.load(ranking, watch(self._ledger.rows(ranking.period_id)), position, replacing)
        if position.history == self._ledger.as_of.history:
            self._suspected().discard(ranking.period_id)
        await complete(self._ledger, self._index, ranking)
        if (changed := self._by_period.get(ranking.period_id)) is None:
            # It became final meanwhile, and may have been swept.
            await self._index.drop(ranking)
        elif changed.ranking(ranking.period_id) != ranking:
            # Another capacity: this one may have been put in the place of the right one.
            self.mend(changed, ranking)
        BUILDS.inc()
        log.debug("index_built", board=board.uuid, period=ranking.period_id)

    async def pass_once(self) -> None:
        """Look at every ranking, and apply what was changed since it was last known to be complete."""
        if self._refresh is not None:
            await self._refresh()
        outages = self._index.outages
        await self._ledger.mark()
        await self._ledger.read_as_of()
        position = await self._ledger.position()
        # All of them were complete up to the same position, unless one was left out of a pass.
        followed: dict[Position, dict[int, tuple[Ranking, IndexState]]] = {}
        for ranking, state, lost in await self._states():
            if ranking.period_id not in self._by_period:
                continue
            if state.standby is Standby.BEHIND or lost or _needs_build(ranking, state):
                self.mend(self._by_period[ranking.period_id], ranking)
            elif state.position is not None:
                followed.setdefault(state.position, {})[ranking.period_id] = (ranking, state)
        for since, some in followed.items():
            if await self._is_far(since):
                for ranking, _ in some.values():
                    if (board := self._by_period.get(ranking.period_id)) is not None:
                        self._overflowed.add(ranking.period_id)
                        self.mend(board, ranking)
            else:
                await self._catch_up(since, some, position)
        self._outages_mended = outages

    async def look(self) -> None:
        """Before the first read: rankings that are not of the ledger's history are not to be shown."""
        self._suspected().update(self._by_period)
        with contextlib.suppress(LaurelsError):
            await self._states()

    # Inside

    def _suspected(self) -> set[int]:
        """Periods whose rankings may be of another history. All that are known, when the ledger begins a new one."""
        if self._ledger.as_of.history != self._history:
            self._history = self._ledger.as_of.history
            if self._interval_s is not None:
                self._suspects = set(self._by_period)
                self.hurry()
        return self._suspects

    async def _states(self) -> list[tuple[Ranking, IndexState, bool]]:
        """All rankings that can be reached, how each stands, and whether the ledger has lost what it holds."""
        history = self._ledger.as_of.history
        rankings = [board.ranking(period.id) for board in self._boards.values() for period in board.periods]
        found = [
            (ranking, state)
            for ranking, state in zip(rankings, await self._index.states(rankings), strict=True)
            if state.standby is not Standby.UNREACHABLE
        ]
        positions = {state.position for _, state in found if state.position is not None}
        known = {position: await self._ledger.knows(position) for position in positions}
        states = [
            (ranking, state, state.position is not None and not known[state.position]) for ranking, state in found
        ]
        if history == self._ledger.as_of.history:
            suspects = self._suspected()
            suspects.difference_update(
                ranking.period_id for ranking, state, lost in states if state.position is not None and not lost
            )
            suspects.intersection_update(self._by_period)
        return states

    async def _pass_regularly(self, interval_s: float) -> None:
        """The first one at once, for nobody knows how the index stands; then one server at a time."""
        may_pass = True
        told = ""
        while True:
            try:
                if may_pass:
                    await self.pass_once()
                await self._pause(interval_s)
                # However many are in a hurry.
                await asyncio.sleep(RETRY_S)
                # After an outage of the index every server looks for itself.
                missed = self._index.outages != self._outages_mended
                may_pass = missed or await self._index.claim("repair", interval_s * 0.9)
                if not may_pass and self._suspected():
                    # Another server builds them anew: see whether it has.
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

    async def _mend_until_done(self, board_id: int, period_id: int) -> None:
        wait_s = RETRY_S
        told = ""
        while True:
            try:
                async with self._slots:
                    done = await self._mend_once(board_id, period_id)
            except LaurelsError as error:
                if error.message != told and error.code not in {"build_running", "index_unavailable"}:
                    log.warning("mending_failed", period=period_id, reason=error.message)
                told = error.message
                done = False
            except Exception:
                log.exception("mending_failed", period=period_id)
                done = False
            if done:
                log.debug("index_healed", period=period_id)
                if self._mending.get(period_id) is asyncio.current_task():
                    del self._mending[period_id]
                return
            await asyncio.sleep(wait_s)
            wait_s = min(MAX_RETRY_S, wait_s * 2)

    async def _mend_once(self, board_id: int, period_id: int) -> bool:
        """Whether the ranking was seen to be complete, or is needed no more."""
        if period_id not in self._by_period:
            return True
        board = self._boards[board_id]
        ranking = board.ranking(period_id)
        as_of = await self._ledger.read_as_of()
        position = await self._ledger.position()
        (state,) = await self._index.states([ranking])
        if state.standby is Standby.UNREACHABLE:
            return False
        lacks = state.standby is Standby.BEHIND or period_id in self._overflowed
        lost = state.position is not None and not await self._ledger.knows(state.position)
        if lost or _needs_build(ranking, state) or (lacks and await self._is_far(state.position)):
            await self.build(board, ranking, replacing=state.generation)
            log.info("index_rebuilt", board=board.uuid, period=ranking.period_id)
        elif lacks and state.position is not None:
            if not await self._catch_up(state.position, {ranking.period_id: (ranking, state)}, position):
                return False
        else:
            await complete(self._ledger, self._index, ranking)
        self._overflowed.discard(period_id)
        (after,) = await self._index.states([ranking])
        if after.standby is not Standby.READY:
            return False
        if after.position is None or after.position.history == self._ledger.as_of.history:
            self._suspected().discard(period_id)
        if not await self._apply_queued(board, ranking, as_of):
            return False
        # Whoever found something else meanwhile left it to this task.
        changed = self._by_period.get(period_id)
        return changed is None or (
            period_id not in self._overflowed
            and period_id not in self._suspected()
            and changed.ranking(period_id) == ranking
        )

    async def _apply_queued(self, board: Board, ranking: Ranking, as_of: AsOf) -> bool:
        period_id = ranking.period_id
        while queued := self._queue.get(period_id):
            some = list(queued.values())[:APPLY_ROWS]
            # As they are now: the guard against older rows may be gone meanwhile, with a user who was erased.
            rows = await self._ledger.rows_of_users(period_id, [row.user_id for row in some])
            if rows:
                applied = await self._index.apply(ranking, rows, board.rank_style, as_of=as_of)
                if applied.refused:
                    # Known no more by now: again, with what is known then.
                    return False
                if applied.short:
                    await complete(self._ledger, self._index, ranking)
            for row in some:
                # What came meanwhile is newer, and stays.
                if queued.get(row.user_id) is row:
                    del queued[row.user_id]
            if not queued and self._queue.get(period_id) is queued:
                del self._queue[period_id]
            REPAIRED.inc(len(some))
            REPAIR_QUEUE.set(self.waiting)
        return True

    async def _is_far(self, since: Position | None) -> bool:
        return since is not None and await self._ledger.count_changes(since, CATCH_UP_EVENTS) >= CATCH_UP_EVENTS

    async def _catch_up(
        self, since: Position, followed: dict[int, tuple[Ranking, IndexState]], position: Position
    ) -> bool:
        """Apply what was changed since the rankings were complete, and say how far they are now.

        False: some could not be, and are known to lack something.
        """
        failed: set[int] = set()
        async for chunk in self._ledger.changes(since):
            rows: dict[int, list[Row]] = {}
            for row in chunk:
                if row.period_id in followed and row.period_id not in failed:
                    rows.setdefault(row.period_id, []).append(row)
            results = await asyncio.gather(
                *(self._apply_changes(followed[period_id][0], some, position) for period_id, some in rows.items())
            )
            failed |= {period_id for period_id, ok in zip(rows, results, strict=True) if not ok}
        await asyncio.gather(
            *(
                self._confirm(ranking, state, position)
                for period_id, (ranking, state) in followed.items()
                if period_id not in failed
            )
        )
        return not failed

    async def _apply_changes(self, ranking: Ranking, rows: list[Row], as_of: AsOf) -> bool:
        board = self._by_period.get(ranking.period_id)
        if board is None:
            return False
        try:
            # All of them, whoever can be ranked: some may have been removed, and the index does not know it yet.
            for start in range(0, len(rows), APPLY_ROWS):
                some = rows[start : start + APPLY_ROWS]
                applied = await self._index.apply(ranking, some, board.rank_style, as_of=as_of)
                if applied.refused:
                    self._overflowed.add(ranking.period_id)
                    self.mend(board, ranking)
                    return False
                if applied.short:
                    await complete(self._ledger, self._index, ranking)
        except LaurelsError as error:
            self._overflowed.add(ranking.period_id)
            self.mend(board, ranking, (), error)
            return False
        return True

    async def _confirm(self, ranking: Ranking, state: IndexState, position: Position) -> None:
        with contextlib.suppress(LaurelsError):
            await self._index.confirm(ranking, state, position)


def _needs_build(ranking: Ranking, state: IndexState) -> bool:
    """Missing, or made for another purpose or capacity."""
    return state.standby is Standby.COLD or state.wants_build or state.capacity != ranking.capacity
