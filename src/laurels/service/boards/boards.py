"""The boards: access to them, their creation, changes, archiving and deletion.

All boards are in memory, each with its periods that are not frozen.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from msgspec.structs import asdict, replace

from laurels.core.board import DEFAULT_BOARD, DEFAULT_POD, Board, Reshard, Status
from laurels.core.instants import SECOND_US
from laurels.core.order import Ties
from laurels.core.people import GLOBAL, SegmentKind
from laurels.core.periods import first_spans, joining_spans, missing_spans, with_terms_kept
from laurels.core.quotas import Quotas
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, MONTHLY, Window, shortest_reset_s
from laurels.errors import Conflict, Forbidden, Invalid, LaurelsError, NotFound, Stale, Unauthenticated
from laurels.ports import BoardUpdate, Clock, FreeInstant, Ledger
from laurels.service.boards.caller import Caller
from laurels.service.boards.registry import Registry
from laurels.service.index.updater import IndexUpdater

log = structlog.get_logger()

_STATUSES = list(Status)
# A board created with an Idempotency-Key and no UUID gets a UUID derived from the key.
_NAMESPACE = uuid.UUID("9e0c8a5e-6f1d-5b0a-8a55-4c61757265ff")
# Fields that the service sets; all other fields are the board's definition.
_GIVEN = (
    "id",
    "created_at",
    "revision",
    "periods",
    "archived_at",
    "pruned_before",
    "shards",
    "reshard",
    "created_by",
    "filling",
)
ATTEMPTS = 20
# How many boards a pod may have with the archived ones, as a multiple of its quota.
ARCHIVED_TIMES = 10
MINUTE_S = 60
# A change of which scores count where takes effect this much later, because every server must learn of it first.
NOTICE_US = 2 * SECOND_US

# Computes the update from the current version of a board.
Change = Callable[[Board], BoardUpdate]


class Boards:
    def __init__(
        self,
        ledger: Ledger,
        updater: IndexUpdater,
        registry: Registry,
        clock: Clock,
        quotas_of: Callable[[str], Quotas],
    ) -> None:
        self._ledger = ledger
        self._updater = updater
        self._registry = registry
        self._clock = clock
        self._quotas_of = quotas_of
        self._boards: dict[str, Board] = {}
        self._by_id: dict[int, Board] = {}
        # How many times a board was added, changed or removed.
        self.changes = 0
        # The ledger's history in which all boards were read: see ports/position.py.
        self.history = ""
        # One change at a time, so that a second creation of the same board finds the first.
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Load all boards; create the default board first if there are none."""
        self.history = self._ledger.as_of.history
        boards = await self._ledger.boards()
        if not boards:
            boards = [await self._create_default()]
        for board in boards:
            self.hold(board)

    async def reload(self, ids: Sequence[int] | None = None) -> None:
        """Reload the boards with these ids, or all boards, from the ledger.

        Usually another server changed them. A ledger that has lost data may also have an older revision of a board,
        another board with the same id, or no board with it: the ledger's version wins.
        """
        history = self._ledger.as_of.history
        asked = None if ids is None or history != self.history else set(ids)
        before = dict(self._by_id)
        found = {board.id: board for board in await self._ledger.boards(None if asked is None else sorted(asked))}
        for board in found.values():
            held = self._by_id.get(board.id)
            # A board that this server changed meanwhile may be newer than the one that was read.
            if held is None or (held != board if held is before.get(board.id) else board.revision > held.revision):
                self.hold(board)
        for board_id, held in before.items():
            if (asked is None or board_id in asked) and board_id not in found and self._by_id.get(board_id) is held:
                self._let_go(held)
        if asked is None:
            self.history = history

    async def prepared(self, board_id: int) -> Board:
        """Return the current board, with periods for all timestamps that an event may have."""
        board = self.by_id(board_id)
        if missing_spans(board, self._clock.now_us()):
            board = await self.make_ahead(board)
        return board

    async def make_ahead(self, board: Board) -> Board:
        """Create the next periods of a board in the ledger and in the index."""

        def add(fresh: Board) -> BoardUpdate:
            return BoardUpdate(fresh, spans=tuple(missing_spans(fresh, self._clock.now_us())))

        while True:
            stored = await self.update(board, add)
            await self.load_new(board, stored)
            if not missing_spans(stored, self._clock.now_us()):
                return stored
            board = stored

    async def update(self, board: Board, change: Change) -> Board:
        """Apply a change to the current version of a board, and retry if another change came first.

        Raises Conflict with the code `changed_meanwhile` after ATTEMPTS attempts.
        """
        for _ in range(ATTEMPTS):
            fresh = self.by_id(board.id)
            wanted = change(fresh)
            if wanted.board == fresh and not wanted.spans:
                return fresh
            held = {period.id: period for period in fresh.periods}
            changed = tuple(period for period in wanted.board.periods if held.get(period.id) != period)
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
                self.hold(stored)
            await self._registry.tell()
            return stored
        raise Conflict("changed_meanwhile", "The board kept changing during the update. Try again.")

    async def announce(self, board: Board) -> None:
        """Reload a board that the ledger itself has changed, and announce the change to all servers."""
        await self.reload([board.id])
        await self._registry.tell()

    def all(self) -> list[Board]:
        return list(self._boards.values())

    def find(self, board_id: int) -> Board | None:
        return self._by_id.get(board_id)

    def by_id(self, board_id: int) -> Board:
        board = self._by_id.get(board_id)
        if board is None:
            raise NotFound("board_not_found", f"There is no board with the id {board_id}.")
        return board

    def of_pod(self, pod_id: str, board_uuid: str) -> Board:
        """Return the board of an event on a pod's own topic; raise Forbidden if it belongs to another pod."""
        board = self._boards.get(board_uuid)
        if board is None:
            raise unknown_board(board_uuid)
        if board.pod_id != pod_id:
            raise Forbidden("wrong_pod", f"Board {board_uuid!r} does not belong to pod {pod_id!r}.", field="UUID")
        return board

    def pod_of_public(self, board_uuid: str | None) -> str | None:
        """Return the pod of a public board; None if there is no such board."""
        board = None if board_uuid is None else self._boards.get(board_uuid)
        return board.pod_id if board is not None and board.public else None

    def to_read(self, caller: Caller, board_uuid: str) -> Board:
        """Return a board that the caller may read.

        A board that the caller may not see raises the same error as a board that does not exist.
        """
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
        """Return a board whose details (events, metadata) the caller may read.

        These are the boards of the key's own pod, public or not, and all boards for an admin key.
        """
        caller.require_key()
        board = self.to_read(caller, board_uuid)
        if not caller.is_admin and board.pod_id != caller.pod_id:
            raise Forbidden("role_forbidden", "Only keys of the board's own pod may do this.")
        return board

    def to_score(self, caller: Caller, board_uuid: str) -> Board:
        """Return a board that the caller may submit scores to: with a player token, only if players may."""
        if caller.player is None:
            return self.to_write(caller, board_uuid)
        board = self.to_read_with_key(caller, board_uuid)
        if not board.players_may_write:
            raise Forbidden(
                "players_may_not_write",
                f"Board {board.uuid!r} takes scores from the game's server only: set playersMayWrite to change that.",
            )
        return board

    def to_write(self, caller: Caller, board_uuid: str) -> Board:
        caller.require_key()
        board = self.to_read_with_key(caller, board_uuid)
        caller.require_writer()
        return board

    def page(self, caller: Caller, pod_id: str | None, status: Status | None, after_id: int, limit: int) -> list[Board]:
        """Return a page of boards in order of creation.

        These are the boards of the key's pod, all boards for an admin key, or the public boards without a key.
        Archived boards are included only if `status` asks for them.
        """
        if pod_id is not None and caller.role is not None:
            pod_id = caller.require_pod(pod_id)
        elif caller.role is not None and not caller.is_admin:
            pod_id = caller.pod_id
        now = self._clock.now_us()
        page: list[Board] = []
        # Boards that other servers created may have been loaded in another order.
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
        """Create a board.

        Idempotent: if a board with the same UUID (or Idempotency-Key) and definition exists, returns that board.
        """
        self._updater.require_ready()
        # The ledger may have lost boards that are still in memory.
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
                    "This Idempotency-Key was already used for a board with a different definition. Use a new key.",
                    field="Idempotency-Key",
                )
            self._check_quotas(board, board.windows, is_new=True)
            self._check_parts(board, is_new=True)
            created = await self._create(replace(board, created_at=self._clock.now_us()))
            self.hold(created)
            await self._updater.load(created)
        await self._registry.tell()
        return created

    def check(self, board: Board) -> None:
        """Raise Invalid if no board can be created with these settings."""
        _check_bounds(board)

    async def change(self, board: Board, fields: Mapping[str, Any], status: Status | None = None) -> Board:
        """Change some fields of a board, or move its status forward."""
        self._updater.require_ready()
        now = self._clock.now_us()
        before = board.status_at(now)
        if before is Status.ARCHIVED:
            if status is Status.ARCHIVED and not fields:
                return board
            raise Conflict("board_archived", "An archived board can't be changed.")

        shards: int | None = fields.get("shards")
        fields = {name: value for name, value in fields.items() if name != "shards"}

        def change(fresh: Board, moment: int = now, to: Status | None = status) -> Board:
            _need_windows_kept(fresh, fields.get("windows", fresh.windows))
            changed = replace(with_terms_kept(fresh, now), **fields)
            changed = _with_filling(fresh, changed)
            if shards is not None:
                changed = self._with_shards(changed, shards, now)
            _check_bounds(changed, fresh)
            if to is not None:
                changed = _with_status(changed, to, moment)
            after = changed.status_at(now) if to is None else to
            if _STATUSES.index(after) < _STATUSES.index(before):
                raise Conflict("status_backwards", f"The board is {before}: it can't go back to {after}.")
            return changed

        async with self._changing:
            stored = board
            self._check_parts(board, shards, fields.get("windows"))
            new_windows = fields.get("windows", board.windows)[len(board.windows) :]
            if new_windows:
                self._check_quotas(board, new_windows, is_new=False)
                stored = await self._add_windows(board, lambda fresh: change(fresh, now, None))
            if status in {Status.ENDED, Status.ARCHIVED} and before in {Status.SCHEDULED, Status.ACTIVE}:
                stored = await self._end(board, change, fields)
            elif not new_windows or status is not None:
                stored = await self.update(board, lambda fresh: _with_end_checked(fresh, change(fresh)))
            await self.load_new(board, stored)
        self._updater.reshard(stored)
        return stored

    async def delete(self, board: Board) -> Board:
        """Delete a board for good, and return it as it was."""
        self._updater.require_ready()
        async with self._changing:
            for _ in range(ATTEMPTS):
                fresh = self.by_id(board.id)
                try:
                    await self._ledger.delete_board(fresh, self.history)
                except Stale:
                    await self._ledger.read_as_of()
                    await self.reload()
                    continue
                except Conflict as error:
                    if error.code != "changed_meanwhile":
                        raise
                    await self.reload([board.id])
                    continue
                await self.reload([board.id])
                await self._registry.tell()
                return fresh
        raise Conflict("changed_meanwhile", "The board kept changing during the deletion. Try again.")

    def _with_shards(self, board: Board, shards: int, now: int) -> Board:
        """Return a board whose number of shards changes to another one, at once if its index has no parts."""
        change = board.reshard
        if self._ledger.ranks is None:
            return replace(board, shards=shards)
        if change is not None and change.switched_at is None:
            if shards == change.shards:
                return board
            if shards == board.shards:
                # Cancel it: what is built is dropped.
                return replace(board, reshard=replace(change, switched_at=now))
        if change is not None and (shards != board.shards or change.retired_at is not None):
            state = "being built" if change.switched_at is None else "being dropped"
            raise Conflict(
                "reshard_running",
                f"The rankings with {change.shards} shards are {state}. Try again when `resharding` is null.",
                field="shards",
            )
        return board if shards == board.shards else replace(board, reshard=Reshard(shards, now))

    def _check_quotas(self, board: Board, windows: Sequence[Window], *, is_new: bool) -> None:
        """Check the quotas of a board's pod before the board is created, or gets new windows."""
        quotas = self._quotas_of(board.pod_id)
        now = self._clock.now_us()
        every = [other for other in self._boards.values() if other.pod_id == board.pod_id]
        owned = [other for other in every if other.status_at(now) is not Status.ARCHIVED]
        if is_new and quotas.boards and len(owned) >= quotas.boards:
            raise Conflict("too_many_boards", f"The pod has {len(owned)} boards, the maximum. Archive boards first.")
        if is_new and quotas.boards and len(every) >= ARCHIVED_TIMES * quotas.boards:
            raise Conflict("too_many_boards", f"The pod has {len(every)} boards with the archived ones, the maximum.")
        new = sum(window.line is not None for window in windows)
        used = sum(window.line is not None for other in owned for window in other.windows)
        if quotas.windows and new and used + new > quotas.windows:
            raise Conflict(
                "too_many_windows",
                f"The boards of the pod have {used} windows with resets, and may have {quotas.windows}.",
                field="windows",
            )
        shortest = quotas.min_reset_seconds
        # A cron expression can't say less than a minute.
        if (
            shortest
            and shortest > MINUTE_S
            and any((shortest_reset_s(each) or shortest) < shortest for each in windows)
        ):
            raise Invalid(
                "resets_too_often",
                f"The windows of this pod may reset every {shortest} s at most.",
                field="windows",
                rule=f">= {shortest} s",
            )

    def _check_parts(
        self,
        board: Board,
        shards: int | None = None,
        windows: tuple[Window, ...] | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        """Check the quota of parts before a board is created, or gets other shards or windows (None: the same)."""
        before = 0 if is_new else board.index_parts
        board = replace(board, shards=shards or board.shards, windows=windows or board.windows)
        if board.index_parts <= before:
            return
        limit = self._quotas_of(board.pod_id).parts
        now = self._clock.now_us()
        used = sum(
            other.index_parts
            for other in self._boards.values()
            if other.pod_id == board.pod_id and other.uuid != board.uuid and other.status_at(now) is not Status.ARCHIVED
        )
        if limit and used + board.index_parts > limit:
            raise Conflict(
                "too_many_parts",
                f"The other boards of the pod have {used} parts, this one would have {board.index_parts} (shards times "
                f"windows), and the pod may have {limit}.",
                field="shards",
            )

    async def _end(self, board: Board, change: Callable[[Board, int], Board], fields: Mapping[str, Any]) -> Board:
        """End a board now, or after its last score if some scores are ahead of the clock.

        This way, all accepted scores count.
        """
        for _ in range(ATTEMPTS):
            free = await self._ledger.free_instant(board.id, self._clock.now_us(), 0)

            def end(fresh: Board, free: FreeInstant = free) -> BoardUpdate:
                changed = change(fresh, free.at)
                # The request may also set another end.
                return (
                    BoardUpdate(changed, ends_at=free)
                    if changed.ended_at == free.at
                    else _with_end_checked(fresh, changed)
                )

            try:
                return await self.update(board, end)
            except Conflict as error:
                # Scores from after that instant came in meanwhile.
                if error.code != "end_before_scores" or "end_at" in fields:
                    raise
        raise Conflict("changed_meanwhile", "The board keeps receiving scores ahead of the clock. Try again.")

    async def _add_windows(self, board: Board, change: Callable[[Board], Board]) -> Board:
        """Add windows to a board.

        Scores from before a window is added do not count in it.
        """
        start = await self.next_free_instant(board)

        def add(fresh: Board) -> BoardUpdate:
            changed = change(fresh)
            new, opened = changed.windows[len(fresh.windows) :], changed.opened_at(start)
            # A board that has not started has no events that the new windows must leave out.
            spans = joining_spans(new, start) if opened == start else first_spans(new, opened)
            ends_at = _with_end_checked(fresh, changed).ends_at
            return BoardUpdate(changed, spans=tuple(spans), free_from=start if spans else None, ends_at=ends_at)

        try:
            return await self.update(board, add)
        except Conflict as error:
            if error.code != "period_has_scores":
                raise
            raise Conflict(
                "changed_meanwhile", "The board has just received scores ahead of the clock. Try again."
            ) from None

    async def load_new(self, before: Board, after: Board) -> None:
        """Build the rankings of new periods in the index."""
        known = {period.id for period in before.periods}
        await self._updater.load_periods(after, [period for period in after.periods if period.id not in known])

    async def next_free_instant(self, board: Board) -> int:
        """Return an instant from which on the board has no events yet.

        It is far enough ahead (NOTICE_US) for every server to learn of it in time.
        """
        return (await self._ledger.free_instant(board.id, self._clock.now_us(), NOTICE_US)).at

    def hold(self, board: Board) -> None:
        before = self._by_id.get(board.id)
        if before is not None and before.uuid != board.uuid and self._boards.get(before.uuid) is before:
            # A ledger that lost a board gave its id to another one.
            self._let_go(before)
        self._boards[board.uuid] = self._by_id[board.id] = board
        self.changes += 1
        self._updater.track(board)

    def _let_go(self, board: Board) -> None:
        """Forget a board that was deleted, or that the ledger has lost."""
        log.warning("board_gone", board=board.uuid)
        del self._by_id[board.id]
        self.changes += 1
        if self._boards.get(board.uuid) is board:
            del self._boards[board.uuid]
        self._updater.drop_board(board)

    async def _create(self, board: Board) -> Board:
        try:
            return await self._ledger.create_board(board, first_spans(board.windows, board.opened_at(board.created_at)))
        except Conflict:
            # Another server may have just created the same board.
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
            segments=(GLOBAL, SegmentKind.REGION),
            public=True,
            created_at=now,
        )
        try:
            return await self._ledger.create_board(board, first_spans(board.windows, now))
        except Conflict:
            # Several servers may start at the same time.
            return next(board for board in await self._ledger.boards() if board.uuid == DEFAULT_BOARD)


def _definition(board: Board) -> dict[str, Any]:
    return {name: value for name, value in asdict(board).items() if name not in _GIVEN}


def _check_bounds(board: Board, before: Board | None = None) -> None:
    """Check the times and the score bounds of a board. `before`: the board that it changes."""
    # A board that was ended before it started has one instant as both.
    has_times = before is None or (before.start_at, before.end_at) != (board.start_at, board.end_at)
    if has_times and board.start_at is not None and board.end_at is not None and board.start_at >= board.end_at:
        raise Invalid(
            "bounds_reversed", "endTime must be after startTime.", field="endTime", rule="endTime > startTime"
        )
    needs_events = bool(board.operations) or any(window.attempts is not None for window in board.windows)
    if board.keep_events_days is not None and needs_events:
        raise Invalid(
            "invalid_window",
            "A board with operations, or with attempts, needs all of its events: remove keepEventsDays.",
            field="keepEventsDays",
            rule="null with operations or attempts",
        )
    if board.min_score is not None and board.max_score is not None and board.min_score > board.max_score:
        raise Invalid(
            "bounds_reversed",
            "maxScore must not be below minScore.",
            field="maxScore",
            rule="maxScore >= minScore",
        )


def _need_windows_kept(board: Board, windows: Sequence[Window]) -> None:
    """Raise Conflict if a change that was made for earlier windows of a board would drop later ones."""
    kept = [replace(window, capacity=None) for window in windows[: len(board.windows)]]
    if kept != [replace(window, capacity=None) for window in board.windows]:
        raise Conflict(
            "changed_meanwhile", "Another request added windows at the same time. Read the board and try again."
        )


def _with_filling(before: Board, after: Board) -> Board:
    """Return the board with the segments that it gets noted as not complete. Segments can't be removed."""
    if gone := [kind for kind in before.segments if kind not in after.segments]:
        raise Invalid(
            "immutable_field",
            f"Segments can be added but not removed: {gone[0]!r} is missing.",
            field="segments",
            rule=f"contains {', '.join(before.segments)}",
        )
    new = [kind for kind in after.segments if kind not in before.segments]
    return replace(after, filling=(*before.filling, *new)) if new else after


def _with_end_checked(before: Board, after: Board) -> BoardUpdate:
    """Build an update that the ledger rejects if a new, earlier end would cut off accepted scores."""
    if after.end_at is None or (before.end_at is not None and after.end_at >= before.end_at):
        return BoardUpdate(after)
    return BoardUpdate(after, ends_at=FreeInstant(after.end_at))


def _with_status(board: Board, status: Status, now: int) -> Board:
    """Return the board with its times moved so that it has a later status now; unchanged if it already has it."""
    if _STATUSES.index(status) <= _STATUSES.index(board.status_at(now)):
        return board
    if status is Status.ARCHIVED:
        return replace(board, archived_at=now)
    start = board.start_at if board.start_at is None else min(board.start_at, now)
    return replace(board, start_at=start, end_at=now if status is Status.ENDED else board.end_at)


def unknown_board(board_uuid: str, field: str = "UUID") -> LaurelsError:
    return NotFound("board_not_found", f"There is no board {board_uuid!r}.", field=field)
