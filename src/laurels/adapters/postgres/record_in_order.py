"""Recording of events on boards with operations in PostgreSQL: one event after the other, in the order of time.

The order of a user's events decides the result, so they can't be folded as a set, like those of other boards
(record.py). Each event takes some statements; the rows of its user are locked meanwhile.
"""

from collections.abc import Sequence

from laurels.adapters.postgres.pool import Connection
from laurels.adapters.postgres.scores import exact_total, need_rows, read_rows
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.mapping import compare, digest_of, in_order, stale
from laurels.core.board import Board
from laurels.ports import Event, RecordedEvent, RecordOutcome, Row, RowChange


async def record_in_order(connection: Connection, events: Sequence[Event]) -> list[RecordedEvent]:
    """See Ledger.record."""
    boards = {event.board.id: event.board for event in events}
    for board_id in sorted(boards):
        await connection.execute(SQL["share_board"], board_id)
    for board in boards.values():
        if await connection.fetchval(SQL["revision_of"], board.id) != board.revision:
            raise stale(board)
    for board in boards.values():
        # All rows that these events need are created and locked at once, always in the same order.
        users = sorted({event.user_id for event in events if event.board.id == board.id}, key=str.encode)
        await connection.execute(SQL["need_profiles"], board.pod_id, users)
        await connection.execute(SQL["lock_profiles"], board.pod_id, users)
        await _lock_rows(connection, board, [event for event in events if event.board.id == board.id])
    return [await _record_one(connection, event) for event in events]


async def _lock_rows(connection: Connection, board: Board, events: Sequence[Event]) -> None:
    keys = sorted({(period.id, event.user_id) for event in events for period in board.periods_at(event.at)})
    users = sorted({event.user_id for event in events}, key=str.encode)
    stored = await connection.fetch(SQL["rows_of_users_now"], board.id, users)
    known = {(row["period_id"], row["user_id"]) for row in stored}
    await need_rows(connection, board, [key for key in keys if key not in known])
    await connection.fetch(SQL["rows_of_users_locked"], board.id, users)


async def _record_one(connection: Connection, event: Event) -> RecordedEvent:
    board = event.board
    erased_at = await connection.fetchval(SQL["erased_at"], board.pod_id, digest_of(board.pod_id, event.user_id))
    if erased_at is not None and min(event.at, event.received_at) < erased_at:
        return RecordedEvent(RecordOutcome.ERASED)
    found = read_rows(await connection.fetch(SQL["rows_of_users_now"], board.id, [event.user_id]))
    periods = {period.id for period in board.periods_at(event.at)}
    rows = [row for row in found if row.period_id in periods]
    unchanged = tuple(RowChange(row, row) for row in rows)
    outcome, at = await _insert(connection, event, rows)
    if outcome is not RecordOutcome.ACCEPTED:
        return RecordedEvent(outcome, unchanged)
    before = {row.period_id: row for row in rows}
    after = await _fold(connection, event, rows, at)
    others: tuple[Row, ...] = ()
    if event.region is not None:
        moved = await _state_region(connection, event, at)
        after = [next((each for each in moved if each.period_id == row.period_id), row) for row in after]
        others = tuple(row for row in moved if row.period_id not in before)
    changes = tuple(RowChange(row, _shown_before(before[row.period_id])) for row in after)
    return RecordedEvent(RecordOutcome.ACCEPTED, changes, others)


async def _insert(connection: Connection, event: Event, rows: Sequence[Row]) -> tuple[RecordOutcome, int]:
    """Insert an event if it is new and may be stored; return the outcome, and the time at which it counts."""
    stored = await connection.fetchrow(SQL["event_with_act"], event.board.id, event.event_id)
    if stored is not None:
        return compare(event, *tuple(stored)[:-2]), event.at
    if event.refused is not None or not (rows or event.acknowledged):
        return RecordOutcome.LATE, event.at
    if await _is_spent(connection, event):
        return RecordOutcome.SPENT, event.at
    standings = [row.standing for row in rows if row.standing is not None]
    at = in_order(event, max((each.last_at for each in standings if each.last_at is not None), default=None))
    if at is None:
        return RecordOutcome.OUT_OF_ORDER, event.at
    values = (event.user_id, event.score, at, event.stamped, event.received_at, event.metadata)
    told = (*values, event.subscore, event.operation, None)
    if await connection.fetchval(SQL["insert_void_event"], event.board.id, event.event_id, *told) is None:
        # Another transaction has just taken the id for another user.
        return RecordOutcome.CONFLICT, event.at
    return RecordOutcome.ACCEPTED, at


def _shown_before(row: Row) -> Row | None:
    """Return a row before a change; None if it was created for it."""
    return None if row.standing is None else row


async def _is_spent(connection: Connection, event: Event) -> bool:
    limited = None if event.acknowledged else event.board.limited_period_at(event.at)
    if limited is None:
        return False
    period, attempts = limited
    used = await connection.fetchval(SQL["count_attempts"], event.board.id, event.user_id, period.start, period.end)
    return int(used) >= attempts


async def _fold(connection: Connection, event: Event, rows: Sequence[Row], at: int) -> list[Row]:
    board = event.board
    fresh = [board.fold(row.standing, event.score, at, event.subscore, event.operation) for row in rows]
    await connection.execute(
        SQL["update_refolded_rows"],
        [row.period_id for row in rows],
        [row.user_id for row in rows],
        [standing.score for standing in fresh],
        [standing.achieved_at for standing in fresh],
        [exact_total(board, standing) for standing in fresh],
        [standing.has_nonzero for standing in fresh],
        [standing.subscore for standing in fresh],
        [standing.last_at for standing in fresh],
    )
    periods = {row.period_id for row in rows}
    found = read_rows(await connection.fetch(SQL["rows_of_users_now"], board.id, [event.user_id]))
    return [row for row in found if row.period_id in periods]


async def _state_region(connection: Connection, event: Event, at: int) -> list[Row]:
    """Store the region that an event states, and return the rows of the user that moved to it."""
    pod_id, user_id = event.board.pod_id, event.user_id
    if await connection.fetchval(SQL["state_region"], pod_id, user_id, event.region, at) is None:
        return []
    await connection.execute(SQL["resegment_users"], [(pod_id, user_id)])
    return read_rows(await connection.fetch(SQL["rows_with_segments"], pod_id, [user_id]))
