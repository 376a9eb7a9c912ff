"""Is what is stored what the events say? Rows against a fresh fold of the events, and the index against that fold.

Rows and events are read in one view, so a difference between them is always real. The index moves on while the
ledger is read: what is newer there than the row that was read is left out, and what is older gets a moment to
catch up before it counts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from laurels.core.board import Board, Ranking
from laurels.core.order import decode_key, encode_key
from laurels.core.people import GLOBAL, Hidden
from laurels.core.scores import Standing
from laurels.core.windows import Period
from laurels.errors import Unavailable
from laurels.ports import Held, Index, Ledger, Refolded, Row

GRACE_S = 2.0
HEALING_S = 30.0
POLL_S = 0.05


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
    """A stretch of users that was checked, and what was wrong with it."""

    users: int
    differences: list[Difference]


async def verify_board(
    ledger: Ledger, index: Index, board_id: int, board_of: Callable[[int], Board]
) -> AsyncIterator[Checked]:
    """Check every user of a board. Memory: a key for each user and segment."""
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
        # Those that were closed since are final soon, and those that were made since are for the next time.
        still_open = {period.id for period in chunk[0].periods}
        periods = tuple(period for period in periods if period.id in still_open)
        differences = [each for user in chunk for each in _check_rows(board, periods, user)]
        for period in periods:
            rows = {user.user_id: row for user in chunk for row in user.rows if row.period_id == period.id}
            differences += await _check_index(index, board, period, chunk, rows)
            seen[period.id].add(board, period, chunk)
        yield Checked(len(chunk), differences)
    for period in periods:
        yield Checked(0, await _check_order(index, board, period, seen[period.id]))


async def _revision(index: Index, ranking: Ranking) -> Hashable:
    """A ranking that is being completed is waited for."""
    end = time.monotonic() + HEALING_S
    while True:
        try:
            return await index.revision(ranking)
        except Unavailable as error:
            if error.code != "catching_up" or time.monotonic() > end:
                raise
            await asyncio.sleep(POLL_S)


class _Seen(Struct):
    """The index's revision before the ledger was read, and the keys that the ledger says must be ranked."""

    revision: Hashable
    # By segment.
    keys: dict[str, list[bytes]]

    def add(self, board: Board, period: Period, chunk: list[Refolded]) -> None:
        for user in chunk:
            fresh = user.fresh.get(period.id)
            if fresh is not None and user.hidden is Hidden.NO:
                key = encode_key(board.order, board.ties, fresh.score, fresh.achieved_at, user.user_id)
                for segment in (GLOBAL, *user.segments):
                    self.keys.setdefault(segment, []).append(key)


def _grace_s(board: Board) -> float:
    """A buffered board's ranking hears of a row this much later."""
    return GRACE_S + (board.flush_ms or 0) / 1000


def _check_rows(board: Board, periods: Sequence[Period], user: Refolded) -> Iterator[Difference]:
    rows = {row.period_id: row for row in user.rows}
    for period in periods:
        row, fresh = rows.get(period.id), user.fresh.get(period.id)
        stored = row.standing if row else None
        if stored == fresh:
            if row is not None and fresh is not None and (row.segments, row.hidden) != (user.segments, user.hidden):
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
        behind = [user for user, row in rows.items() if _is_behind(board, row, held[user])]
        if not behind or waited >= _grace_s(board):
            break
        await asyncio.sleep(POLL_S)
        waited += POLL_S
    differences = []
    for user in chunk:
        row, found = rows.get(user.user_id), held.get(user.user_id)
        if row is None or (found is not None and found.version > row.version):
            continue
        fresh = user.fresh.get(period.id) if user.hidden is Hidden.NO else None
        if board.forgets and (found is None or found.score is None):
            # The index need not know of it; the order check knows who must be ranked.
            continue
        fault = _index_fault(row, fresh, found, capped=board.capacity is not None and not board.is_segmented)
        if fault is None and found is not None and found.score is not None and found.segments != user.segments:
            fault = Fault.INDEX_DIFFERS
        if fault is not None:
            differences.append(
                Difference(board.uuid, period.name, user.user_id, fault, _show(fresh), _show_held(found))
            )
    return differences


def _is_behind(board: Board, row: Row, held: Held | None) -> bool:
    if board.forgets and (held is None or held.score is None):
        # The index need not know of it, for it can't be ranked.
        return False
    return held is None or held.version < row.version


def _index_fault(row: Row, fresh: Standing | None, found: Held | None, *, capped: bool) -> Fault | None:
    if found is None or found.version < row.version:
        return Fault.INDEX_MISSING if fresh is not None else None
    if found.score is None:
        # Outside the capacity, or removed; the order check knows who must be ranked.
        return None if fresh is None or capped else Fault.INDEX_MISSING
    if fresh is None:
        return Fault.INDEX_EXTRA
    same = (found.score, found.achieved_at) == (fresh.score, fresh.achieved_at)
    return None if same else Fault.INDEX_DIFFERS


async def _check_order(index: Index, board: Board, period: Period, seen: _Seen) -> list[Difference]:
    """Who is ranked at which place, as a whole. Only a ranking that stood still can be held to it."""
    differences = []
    for segment in {GLOBAL, *seen.keys, *await index.segments(board.ranking(period.id))}:
        keys = seen.keys.get(segment, [])
        differences += await _check_segment(index, board, period, segment, keys, seen.revision)
    return differences


async def _check_segment(
    index: Index, board: Board, period: Period, segment: str, keys: list[bytes], revision: Hashable
) -> list[Difference]:
    ranking = board.ranking(period.id, segment)
    ranked = [user async for chunk in index.ranked_users(ranking) for user in chunk]
    wanted = [decode_key(board.order, board.ties, key)[2] for key in sorted(keys)[: board.capacity]]
    if ranked == wanted or await index.revision(ranking) != revision:
        return []
    # What was committed while the ledger was read has to arrive in the index within this time.
    await asyncio.sleep(_grace_s(board))
    if await index.revision(ranking) != revision:
        return []
    where = "" if segment == GLOBAL else f" in {segment}"
    places = {user: number for number, user in enumerate(ranked, 1)}
    differences = []
    for number, user in enumerate(wanted, 1):
        place = places.pop(user, None)
        if place != number:
            fault = Fault.INDEX_MISSING if place is None else Fault.INDEX_DIFFERS
            differences.append(
                Difference(board.uuid, period.name, user, fault, f"place {number}{where}", f"place {place or 'none'}")
            )
    differences += [
        Difference(board.uuid, period.name, user, Fault.INDEX_EXTRA, f"not ranked{where}", f"place {place}")
        for user, place in places.items()
    ]
    return differences


def _show(standing: Standing | None) -> str:
    if standing is None:
        return "nothing"
    exact = f" (exactly {standing.total})" if standing.total else ""
    return f"{standing.score!r}{exact} at {standing.achieved_at}"


def _show_held(held: Held | None) -> str:
    if held is None or held.score is None:
        return "nothing"
    return f"{held.score!r} at {held.achieved_at}"
