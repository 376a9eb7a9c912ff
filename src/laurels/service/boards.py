"""The boards: who sees which, and how they are made, changed and archived. All are held in memory, each with its
periods that are not final.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from msgspec.structs import asdict, replace

from laurels.core.board import DEFAULT_BOARD, DEFAULT_POD, Board, Status
from laurels.core.instants import SECOND_US
from laurels.core.order import Ties
from laurels.core.periods import first_spans, joining_spans, missing_spans, with_terms_kept
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, MONTHLY, Window
from laurels.errors import Conflict, Forbidden, Invalid, LaurelsError, NotFound, Stale, Unauthenticated
from laurels.ports import BoardChange, Clock, FreeInstant, Ledger
from laurels.service.access import Caller
from laurels.service.follower import Follower
from laurels.service.registry import Registry

log = structlog.get_logger()

_STATUSES = list(Status)
# Boards made with an Idempotency-Key and no UUID get one that follows from the key.
_NAMESPACE = uuid.UUID("9e0c8a5e-6f1d-5b0a-8a55-4c61757265ff")
# What the ledger gives a board; everything else is its definition.
_GIVEN = ("id", "created_at", "revision", "periods", "archived_at", "pruned_before")
ATTEMPTS = 20
# A change of what counts where begins this much later, for every server has to know of it before.
NOTICE_US = 2 * SECOND_US

# What is to become of a board as it is now.
Change = Callable[[Board], BoardChange]


class Boards:
    def __init__(self, ledger: Ledger, follower: Follower, registry: Registry, clock: Clock, max_boards: int) -> None:
        self._ledger = ledger
        self._follower = follower
        self._registry = registry
        self._clock = clock
        self._max_boards = max_boards
        self._boards: dict[str, Board] = {}
        self._by_id: dict[int, Board] = {}
        # The history of the ledger that all of them were read in: see ports/position.py.
        self.history = ""
        # One change at a time, so that two creations of the same board meet.
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Read all boards; in an empty ledger, make the default one first."""
        self.history = self._ledger.as_of.history
        boards = await self._ledger.boards()
        if not boards:
            boards = [await self._create_default()]
        for board in boards:
            self._hold(board)

    async def reload(self, ids: Sequence[int] | None = None) -> None:
        """Take over what the ledger has, of some boards or of all.

        Usually others changed it. A ledger that has lost data may also have an older revision of a board, another one
        with the same number, or no such board at all: what it has is so.
        """
        history = self._ledger.as_of.history
        asked = None if ids is None or history != self.history else set(ids)
        before = dict(self._by_id)
        found = {board.id: board for board in await self._ledger.boards(None if asked is None else sorted(asked))}
        for board in found.values():
            held = self._by_id.get(board.id)
            # What this server itself changed meanwhile may be newer than what was read.
            if held is None or (held != board if held is before.get(board.id) else board.revision > held.revision):
                self._hold(board)
        for board_id, held in before.items():
            if (asked is None or board_id in asked) and board_id not in found and self._by_id.get(board_id) is held:
                self._let_go(held)
        if asked is None:
            self.history = history

    async def prepared(self, board_id: int) -> Board:
        """The board as it is now, with a period for every time that an event may have."""
        board = self.by_id(board_id)
        if missing_spans(board, self._clock.now_us()):
            board = await self.make_ahead(board)
        return board

    async def make_ahead(self, board: Board) -> Board:
        """Make the periods that come next, in the ledger and in the index."""

        def add(fresh: Board) -> BoardChange:
            return BoardChange(fresh, spans=tuple(missing_spans(fresh, self._clock.now_us())))

        while True:
            stored = await self.update(board, add)
            await self.load_new(board, stored)
            if not missing_spans(stored, self._clock.now_us()):
                return stored
            board = stored

    async def update(self, board: Board, change: Change) -> Board:
        """Change a board as it is now, whoever else changes it."""
        for _ in range(ATTEMPTS):
            fresh = self.by_id(board.id)
            wanted = change(fresh)
            if wanted.board == fresh and not wanted.spans:
                return fresh
            changed = tuple(period for period in wanted.board.periods if period not in fresh.periods)
            try:
                stored = await self._ledger.update_board(replace(wanted, periods=changed), self.history)
            except Stale:
                await self._ledger.read_as_of()
                await self.reload()
                continue
            except Conflict as error:
                if error.code != "changed_meanwhile":
                    raise
                await self.reload([board.id])
                continue
            if stored.revision > self.by_id(board.id).revision:
                self._hold(stored)
            await self._registry.tell()
            return stored
        raise Conflict("changed_meanwhile", "This board is being changed all the time. Try again.")

    async def announce(self, board: Board) -> None:
        """The ledger changed a board by itself: take that over, and let every server know."""
        await self.reload([board.id])
        await self._registry.tell()

    def all(self) -> list[Board]:
        return list(self._boards.values())

    def by_id(self, board_id: int) -> Board:
        board = self._by_id.get(board_id)
        if board is None:
            raise NotFound("board_not_found", f"There is no board with the number {board_id}.")
        return board

    def of_pod(self, pod_id: str, board_uuid: str) -> Board:
        """The board that an event on a pod's own topic is for."""
        board = self._boards.get(board_uuid)
        if board is None:
            raise unknown_board(board_uuid)
        if board.pod_id != pod_id:
            raise Forbidden("wrong_pod", f"Board {board_uuid!r} does not belong to pod {pod_id!r}.", field="UUID")
        return board

    def to_read(self, caller: Caller, board_uuid: str) -> Board:
        """A board that the caller may read. What exists unseen gets the same answer as what does not exist."""
        board = self._boards.get(board_uuid)
        if board is None or not caller.sees(board):
            if caller.role is None:
                raise Unauthenticated(
                    "key_required",
                    f"There is no public board {board_uuid!r}. To see others, send a key: "
                    "'Authorization: Bearer KEY' or 'X-API-Key: KEY'.",
                )
            raise unknown_board(board_uuid)
        return board

    def to_read_with_key(self, caller: Caller, board_uuid: str) -> Board:
        """A board whose details (events, metadata) the caller may read: its own pod's, public or not."""
        caller.require_key()
        board = self.to_read(caller, board_uuid)
        if not caller.is_admin and board.pod_id != caller.pod_id:
            raise Forbidden("role_forbidden", "Only keys of the board's own pod may do this.")
        return board

    def to_write(self, caller: Caller, board_uuid: str) -> Board:
        caller.require_key()
        board = self.to_read_with_key(caller, board_uuid)
        caller.require_writer()
        return board

    def page(self, caller: Caller, pod_id: str | None, status: Status | None, after_id: int, limit: int) -> list[Board]:
        """Boards in the order of their making: of one's pod, all for an admin, the public ones without a key.

        Archived ones only when asked for.
        """
        if pod_id is not None and caller.role is not None:
            pod_id = caller.require_pod(pod_id)
        elif caller.role is not None and not caller.is_admin:
            pod_id = caller.pod_id
        now = self._clock.now_us()
        page: list[Board] = []
        # Those that other servers made came to us in another order.
        for board in sorted(self._boards.values(), key=lambda board: board.id):
            if board.id <= after_id or not caller.sees(board) or (pod_id is not None and board.pod_id != pod_id):
                continue
            found = board.status_at(now)
            if found is status or (status is None and found is not Status.ARCHIVED):
                page.append(board)
                if len(page) == limit:
                    break
        return page

    async def create(self, board: Board, idempotency_key: str | None) -> Board:
        """Idempotent: the same definition under the same UUID (or Idempotency-Key) gives the board that is there."""
        self._follower.require_ready()
        # What is known here may have been lost since.
        await self._registry.refresh()
        from_key = not board.uuid and idempotency_key is not None
        if not board.uuid:
            name = f"{board.pod_id}/{idempotency_key}"
            made = uuid.uuid5(_NAMESPACE, name) if idempotency_key is not None else uuid.uuid4()
            board = replace(board, uuid=str(made))
        _check_bounds(board)
        async with self._changing:
            existing = self._boards.get(board.uuid)
            if existing is not None and _definition(existing) == _definition(board):
                return existing
            if existing is not None and from_key:
                raise Conflict(
                    "board_exists",
                    "This Idempotency-Key made a board with another definition before. That one stays.",
                    field="Idempotency-Key",
                )
            owned = sum(other.pod_id == board.pod_id for other in self._boards.values())
            if owned >= self._max_boards:
                raise Conflict("too_many_boards", f"The pod has {owned} boards, as many as LAURELS_MAX_BOARDS allows.")
            created = await self._create(replace(board, created_at=self._clock.now_us()))
            self._hold(created)
            await self._follower.load(created)
        await self._registry.tell()
        return created

    async def change(self, board: Board, fields: Mapping[str, Any], status: Status | None = None) -> Board:
        """Change some fields, or move the status forward by hand."""
        self._follower.require_ready()
        now = self._clock.now_us()
        before = board.status_at(now)
        if before is Status.ARCHIVED:
            if status is Status.ARCHIVED and not fields:
                return board
            raise Conflict("board_archived", "An archived board can't be changed.")

        def change(fresh: Board, moment: int = now, to: Status | None = status) -> Board:
            changed = replace(with_terms_kept(fresh, now), **fields)
            _check_bounds(changed)
            if to is not None:
                changed = _with_status(changed, to, moment)
            after = changed.status_at(now) if to is None else to
            if _STATUSES.index(after) < _STATUSES.index(before):
                raise Conflict("status_backwards", f"The board is {before}: it can't become {after} again.")
            return changed

        async with self._changing:
            stored = board
            if "windows" in fields:
                stored = await self._add_windows(board, lambda fresh: change(fresh, now, None))
            if status in {Status.ENDED, Status.ARCHIVED} and before in {Status.SCHEDULED, Status.ACTIVE}:
                stored = await self._end(board, change, fields)
            elif "windows" not in fields or status is not None:
                stored = await self.update(board, lambda fresh: _with_end_checked(fresh, change(fresh)))
            if (stored.capacity, stored.forgets) != (board.capacity, board.forgets):
                await self._follower.load(stored)
            else:
                await self.load_new(board, stored)
        return stored

    async def _end(self, board: Board, change: Callable[[Board, int], Board], fields: Mapping[str, Any]) -> Board:
        """End a board now, or after the last of its scores, if some are ahead of the clock: all that it took count."""
        for _ in range(ATTEMPTS):
            free = await self._ledger.free_instant(board.id, self._clock.now_us(), 0)

            def end(fresh: Board, free: FreeInstant = free) -> BoardChange:
                changed = change(fresh, free.at)
                # Another end may have been asked for with it.
                return (
                    BoardChange(changed, ends_at=free)
                    if changed.ended_at == free.at
                    else _with_end_checked(fresh, changed)
                )

            try:
                return await self.update(board, end)
            except Conflict as error:
                # Some came in meanwhile.
                if error.code != "end_before_scores" or "end_at" in fields:
                    raise
        raise Conflict("changed_meanwhile", "Scores ahead of the clock come in all the time. Try again.")

    async def _add_windows(self, board: Board, change: Callable[[Board], Board]) -> Board:
        """What was scored before a window joins does not count in it."""
        start = await self.next_free_instant(board)

        def add(fresh: Board) -> BoardChange:
            changed = change(fresh)
            if changed.windows[: len(fresh.windows)] != fresh.windows:
                raise Conflict("changed_meanwhile", "Somebody added windows at the same time. Read it and try again.")
            spans = joining_spans(changed.windows[len(fresh.windows) :], start)
            ends_at = _with_end_checked(fresh, changed).ends_at
            return BoardChange(changed, spans=tuple(spans), free_from=start if spans else None, ends_at=ends_at)

        try:
            return await self.update(board, add)
        except Conflict as error:
            if error.code != "period_has_scores":
                raise
            raise Conflict("changed_meanwhile", "Scores ahead of the clock came in just now. Try again.") from None

    async def load_new(self, before: Board, after: Board) -> None:
        """Bring the rankings of new periods into the index."""
        known = {period.id for period in before.periods}
        for period in after.periods:
            if period.id not in known:
                await self._follower.load_period(after, period)

    async def next_free_instant(self, board: Board) -> int:
        """An instant that every server will have heard of before it comes, and from which on there is no event yet."""
        return (await self._ledger.free_instant(board.id, self._clock.now_us(), NOTICE_US)).at

    def _hold(self, board: Board) -> None:
        before = self._by_id.get(board.id)
        if before is not None and before.uuid != board.uuid and self._boards.get(before.uuid) is before:
            # A ledger that has lost a board gave its number to another one.
            self._let_go(before)
        self._boards[board.uuid] = self._by_id[board.id] = board
        self._follower.know(board)

    def _let_go(self, board: Board) -> None:
        """The ledger has no such board: it was lost."""
        log.warning("board_lost", board=board.uuid)
        del self._by_id[board.id]
        if self._boards.get(board.uuid) is board:
            del self._boards[board.uuid]
        self._follower.drop_board(board)

    async def _create(self, board: Board) -> Board:
        try:
            return await self._ledger.create_board(board, first_spans(board.windows, board.created_at))
        except Conflict:
            # Another server may just have made the same board.
            await self._registry.refresh()
            existing = self._boards.get(board.uuid)
            if existing is None or _definition(existing) != _definition(board):
                raise
            return existing

    async def _create_default(self) -> Board:
        now = self._clock.now_us()
        board = Board(
            id=0,
            uuid=DEFAULT_BOARD,
            pod_id=DEFAULT_POD,
            name="Leaderboard",
            rule=Rule.INCREMENT,
            ties=Ties.SHARED,
            windows=(Window(MONTHLY), ALL_TIME),
            public=True,
            created_at=now,
        )
        try:
            return await self._ledger.create_board(board, first_spans(board.windows, now))
        except Conflict:
            # Several servers may start at once.
            return next(board for board in await self._ledger.boards() if board.uuid == DEFAULT_BOARD)


def _definition(board: Board) -> dict[str, Any]:
    return {name: value for name, value in asdict(board).items() if name not in _GIVEN}


def _check_bounds(board: Board) -> None:
    if board.start_at is not None and board.end_at is not None and board.start_at > board.end_at:
        raise Invalid(
            "bounds_reversed", "endTime must not be before startTime.", field="endTime", rule="endTime >= startTime"
        )
    if board.min_score is not None and board.max_score is not None and board.min_score > board.max_score:
        raise Invalid(
            "bounds_reversed",
            "maxScore must not be below minScore.",
            field="maxScore",
            rule="maxScore >= minScore",
        )


def _with_end_checked(before: Board, after: Board) -> BoardChange:
    """A new end must not leave out scores that the board has taken."""
    if after.end_at is None or (before.end_at is not None and after.end_at >= before.end_at):
        return BoardChange(after)
    return BoardChange(after, ends_at=FreeInstant(after.end_at))


def _with_status(board: Board, status: Status, now: int) -> Board:
    """Move the board's times so that it has this status now, if it lies ahead."""
    if _STATUSES.index(status) <= _STATUSES.index(board.status_at(now)):
        return board
    if status is Status.ARCHIVED:
        return replace(board, archived_at=now)
    start = board.start_at if board.start_at is None else min(board.start_at, now)
    return replace(board, start_at=start, end_at=now if status is Status.ENDED else board.end_at)


def unknown_board(board_uuid: str) -> LaurelsError:
    return NotFound("board_not_found", f"There is no board {board_uuid!r}.", field="UUID")
