"""Verification: compares the rows, and the index, with a fresh fold of the events.

The ledger reads rows and events in one snapshot, so a difference between them is always real. The index changes while
the ledger is read: users whose version in the index is newer than their row are skipped, and older versions get time to
catch up before they count as differences.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from enum import StrEnum
from heapq import merge
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from laurels.core.board import Board, Ranking
from laurels.core.order import encode_key, user_of_key
from laurels.core.people import GLOBAL, Hidden
from laurels.core.scores import Standing
from laurels.core.windows import Period
from laurels.errors import Unavailable
from laurels.ports import Held, Index, Ledger, Refolded, Row

GRACE_S = 2.0
HEALING_S = 30.0
POLL_S = 0.05
SLICE = 20_000


class Fault(StrEnum):
    ROW_MISSING = "row_missing"
    ROW_EXTRA = "row_extra"
    ROW_DIFFERS = "row_differs"
    ROW_MISPLACED = "row_misplaced"
    INDEX_MISSING = "index_missing"
    INDEX_EXTRA = "index_extra"
    INDEX_DIFFERS = "index_differs"


class Difference(Struct, frozen=True):
    board: str
    period: str
    user_id: str
    fault: Fault
    expected: str
    found: str


class Checked(Struct, frozen=True):
    """The number of users in one checked chunk, and the differences found."""

    users: int
    differences: list[Difference]


async def verify_board(
    ledger: Ledger, index: Index, board_id: int, board_of: Callable[[int], Board], max_keys: int | None = None
) -> AsyncIterator[Checked]:
    """Verify every user of a board.

    Memory: one key per user, segment and open period, about 250 bytes each. If there are more than `max_keys`, the
    complete order is not compared, but every user is.
    """
    board = board_of(board_id)
    seen: dict[int, _Seen] = {}
    for period in board.open_periods:
        try:
            seen[period.id] = _Seen(await _revision(index, board.ranking(period.id)), {})
        except Unavailable:
            if period.id in {each.id for each in board_of(board_id).open_periods}:
                raise
    periods = tuple(period for period in board.open_periods if period.id in seen)
    async for chunk in ledger.refold(board):
        # Periods closed since are frozen soon, and periods created since are left to the next verification.
        still_open = {period.id for period in chunk[0].periods}
        periods = tuple(period for period in periods if period.id in still_open)
        board = _with_filling(board, board_of(board_id))
        differences = [each for user in chunk for each in _check_rows(board, periods, user)]
        for period in periods:
            rows = {user.user_id: row for user in chunk for row in user.rows if row.period_id == period.id}
            differences += await _check_index(index, board, period, chunk, rows)
            if max_keys is None or sum(each.count for each in seen.values()) <= max_keys:
                seen[period.id].add(board, period, chunk)
            else:
                seen[period.id].give_up()
        yield Checked(len(chunk), differences)
    for period in periods:
        if seen[period.id].count > (max_keys or seen[period.id].count):
            continue
        yield Checked(0, await _check_order(index, board, period, seen[period.id]))


async def _revision(index: Index, ranking: Ranking) -> Hashable:
    """Return the revision of a ranking; wait up to HEALING_S seconds while it is being repaired."""
    end = time.monotonic() + HEALING_S
    while True:
        try:
            return await index.revision(ranking)
        except Unavailable as error:
            if error.code != "catching_up" or time.monotonic() > end:
                raise
            await asyncio.sleep(POLL_S)


class _Seen(Struct):
    """The index's revision before the ledger was read, and the keys that must be ranked according to the ledger."""

    revision: Hashable
    # Keyed by segment.
    keys: dict[str, list[bytes]]
    count: float = 0

    def give_up(self) -> None:
        """Forget the keys, because there are too many."""
        self.keys.clear()
        self.count = math.inf

    def add(self, board: Board, period: Period, chunk: list[Refolded]) -> None:
        for user in chunk:
            fresh = user.fresh.get(period.id)
            expired = any(row.expired for row in user.rows if row.period_id == period.id)
            if fresh is not None and user.hidden is Hidden.NO and not expired:
                key = encode_key(board.sorting, fresh.score, fresh.subscore, fresh.achieved_at, user.user_id)
                for segment in (GLOBAL, *_full(board, user.segments)):
                    self.keys.setdefault(segment, []).append(key)
                    self.count += 1


def _with_filling(board: Board, now: Board) -> Board:
    """Return the board with the segments that were being added since it was read: they can't be compared."""
    added = {*now.segments} - {*board.segments}
    return replace(board, filling=tuple({*board.filling, *now.filling, *added}))


def _full(board: Board, segments: Sequence[str]) -> tuple[str, ...]:
    """Return the segments without those that are being added to the board."""
    if not board.filling:
        return tuple(segments)
    return tuple([segment for segment in segments if segment.partition(":")[0] not in board.filling])


def _grace_s(board: Board) -> float:
    """Return how long the index may lag behind the ledger; a buffered board adds its flush interval."""
    return GRACE_S + (board.flush_ms or 0) / 1000


def _check_rows(board: Board, periods: Sequence[Period], user: Refolded) -> Iterator[Difference]:
    rows = {row.period_id: row for row in user.rows}
    for period in periods:
        row, fresh = rows.get(period.id), user.fresh.get(period.id)
        stored = row.standing if row else None
        if stored == fresh:
            if (
                row is not None
                and fresh is not None
                and (_full(board, row.segments), row.hidden) != (_full(board, user.segments), user.hidden)
            ):
                yield _misplaced(board, period, user, row)
            continue
        fault = Fault.ROW_MISSING if stored is None else Fault.ROW_EXTRA if fresh is None else Fault.ROW_DIFFERS
        yield Difference(board.uuid, period.name, user.user_id, fault, _show(fresh), _show(stored))


def _misplaced(board: Board, period: Period, user: Refolded, row: Row) -> Difference:
    def show(segments: Sequence[str], hidden: Hidden) -> str:
        return f"in {', '.join((GLOBAL, *segments))}" + ("" if hidden is Hidden.NO else ", hidden")

    expected, found = show(user.segments, user.hidden), show(row.segments, row.hidden)
    return Difference(board.uuid, period.name, user.user_id, Fault.ROW_MISPLACED, expected, found)


async def _check_index(
    index: Index, board: Board, period: Period, chunk: list[Refolded], rows: dict[str, Row]
) -> list[Difference]:
    ranking = board.ranking(period.id)
    waited = 0.0
    while True:
        held = dict(zip(rows, await index.held(ranking, list(rows)), strict=True))
        behind = [user for user, row in rows.items() if _is_stale(row, held[user])]
        if not behind or waited >= _grace_s(board):
            break
        await asyncio.sleep(POLL_S)
        waited += POLL_S
    differences = []
    for user in chunk:
        row, found = rows.get(user.user_id), held.get(user.user_id)
        if row is None or (found is not None and found.version > row.version):
            continue
        fresh = user.fresh.get(period.id) if user.hidden is Hidden.NO and not row.expired else None
        fault = _index_fault(row, fresh, found)
        if (
            fault is None
            and found is not None
            and found.score is not None
            and _full(board, found.segments) != _full(board, user.segments)
        ):
            fault = Fault.INDEX_DIFFERS
        if fault is not None:
            differences.append(
                Difference(board.uuid, period.name, user.user_id, fault, _show(fresh), _show_held(found))
            )
    return differences


def _is_stale(row: Row, held: Held | None) -> bool:
    return held is None or held.version < row.version


def _index_fault(row: Row, fresh: Standing | None, found: Held | None) -> Fault | None:
    if found is None or found.version < row.version:
        return Fault.INDEX_MISSING if fresh is not None else None
    if found.score is None:
        return None if fresh is None else Fault.INDEX_MISSING
    if fresh is None:
        return Fault.INDEX_EXTRA
    same = (found.score, found.subscore, found.achieved_at) == (fresh.score, fresh.subscore, fresh.achieved_at)
    return None if same else Fault.INDEX_DIFFERS


async def _check_order(index: Index, board: Board, period: Period, seen: _Seen) -> list[Difference]:
    """Check the complete order of the ranked users.

    Only a ranking whose revision did not change since the ledger was read can be checked.
    """
    differences = []
    found = _full(board, await index.segments(board.ranking(period.id)))
    for segment in {GLOBAL, *seen.keys, *found}:
        keys = seen.keys.get(segment, [])
        differences += await _check_segment(index, board, period, segment, keys, seen.revision)
    return differences


async def _check_segment(
    index: Index, board: Board, period: Period, segment: str, keys: list[bytes], revision: Hashable
) -> list[Difference]:
    ranking = board.ranking(period.id, segment)
    ranked = [user async for chunk in index.ranked_users(ranking) for user in chunk]
    # In a thread, because it takes seconds for millions of users.
    wanted = await asyncio.to_thread(_ordered, keys, ranking.capacity)
    if ranked == wanted or await index.revision(ranking) != revision:
        return []
    # Rows that were committed while the ledger was read must reach the index within this time.
    await asyncio.sleep(_grace_s(board))
    if await index.revision(ranking) != revision:
        return []
    where = "" if segment == GLOBAL else f" in {segment}"
    positions = {user: number for number, user in enumerate(ranked, 1)}
    differences = []
    for number, user in enumerate(wanted, 1):
        position = positions.pop(user, None)
        if position != number:
            fault = Fault.INDEX_MISSING if position is None else Fault.INDEX_DIFFERS
            differences.append(
                Difference(
                    board.uuid, period.name, user, fault, f"position {number}{where}", f"position {position or 'none'}"
                )
            )
    differences += [
        Difference(board.uuid, period.name, user, Fault.INDEX_EXTRA, f"not ranked{where}", f"position {position}")
        for user, position in positions.items()
    ]
    return differences


def _ordered(keys: list[bytes], capacity: int | None) -> list[str]:
    # In slices, because a sort lets no other thread run.
    runs = [sorted(keys[start : start + SLICE]) for start in range(0, len(keys), SLICE)]
    return [user_of_key(key) for key in islice(merge(*runs), capacity)]


def _show(standing: Standing | None) -> str:
    if standing is None:
        return "nothing"
    exact = f" (exactly {standing.total})" if standing.total else ""
    subscore = f", {standing.subscore}" if standing.subscore else ""
    return f"{standing.score!r}{exact}{subscore} at {standing.achieved_at}"


def _show_held(held: Held | None) -> str:
    if held is None or held.score is None:
        return "nothing"
    return f"{held.score!r} at {held.achieved_at}"
