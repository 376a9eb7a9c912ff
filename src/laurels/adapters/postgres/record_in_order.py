"""Recording of events on a board with operations in PostgreSQL.

The order of a user's events decides the result, so they can't be folded as a set, like those of other boards
(record.py). Events that are newer than all before are folded one after the other; with one that is not, all events of
its user are folded again, in the order of time.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from laurels.adapters.postgres.pool import Connection
from laurels.adapters.postgres.record import is_spent
from laurels.adapters.postgres.scores import exact_total, need_rows, read_rows, refold_rows
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.mapping import LATER_US, compare, digest_of, may_follow, stale, time_after
from laurels.core.board import Board
from laurels.core.scores import Standing
from laurels.ports import Event, RecordedEvent, RecordOutcome, Row, RowChange


async def record_in_order(connection: Connection, board: Board, events: Sequence[Event]) -> list[RecordedEvent]:
    """See Ledger.record. All events are of one board.

    Locks the board, then profiles, then rows, each in the order of their keys.
    """
    await connection.execute(SQL["share_board"], board.id)
    if await connection.fetchval(SQL["revision_of"], board.id) != board.revision:
        raise stale(board)
    outcomes = await _first_outcomes(connection, board, events)
    rows = await _lock_rows(connection, board, events, outcomes)
    before = {(row.period_id, row.user_id): row for row in rows}
    standings = {key: row.standing for key, row in before.items()}
    stored = list(events)
    late: set[str] = set()
    for number, sent in enumerate(events):
        if outcomes[number] is not None:
            continue
        own = (_last(standing) for (_, user_id), standing in standings.items() if user_id == sent.user_id)
        at = sent.at
        if may_follow(sent, max((last for last in own if last is not None), default=None)):
            window = (board.id, sent.user_id, at, at + LATER_US)
            at = time_after(sent, await connection.fetchval(SQL["latest_between"], *window))
        event = stored[number] = sent if at == sent.at else replace(sent, at=at)
        keys = [key for period in board.periods_at(at) if (key := (period.id, event.user_id)) in before]
        outcomes[number] = await _insert(connection, event)
        if outcomes[number] is not RecordOutcome.ACCEPTED:
            continue
        for key in keys:
            if (known := _last(standings[key])) is not None and at <= known:
                late.add(event.user_id)
            standings[key] = board.fold(standings[key], event.score, at, event.subscore, event.operation)
    changed = {
        key: standing
        for key, standing in standings.items()
        if key[1] not in late and standing is not None and standing != before[key].standing
    }
    await _write(connection, board, changed)
    if late:
        users = sorted(late, key=str.encode)
        await refold_rows(connection, board, users, [row for row in rows if row.user_id in late])
    accepted = [event for event, outcome in zip(stored, outcomes, strict=True) if outcome is RecordOutcome.ACCEPTED]
    moved = await _state_regions(connection, board, accepted)
    users = sorted({user for _, user in before}, key=str.encode)
    after = {(row.period_id, row.user_id): row for row in await _rows_now(connection, board, users)}
    return [
        _recorded(board, event, outcome or RecordOutcome.LATE, before, after, moved)
        for event, outcome in zip(stored, outcomes, strict=True)
    ]


async def _first_outcomes(connection: Connection, board: Board, events: Sequence[Event]) -> list[RecordOutcome | None]:
    """Return the outcomes of the events that can't be stored; None for the others."""
    digests = {event.user_id: digest_of(board.pod_id, event.user_id) for event in events}
    found = await connection.fetch(SQL["erasures_of"], board.pod_id, list(digests.values()))
    erased: dict[bytes, int] = {digest: at for digest, at in found}  # noqa: C416 - records are no pairs for dict
    found = await connection.fetch(SQL["events_with_acts"], board.id, [event.event_id for event in events])
    known = {event_id: columns for event_id, *columns in found}
    outcomes: list[RecordOutcome | None] = []
    for event in events:
        erased_at = erased.get(digests[event.user_id])
        if erased_at is not None and min(event.at, event.received_at) < erased_at:
            outcomes.append(RecordOutcome.ERASED)
        elif event.event_id in known:
            outcomes.append(compare(event, *known[event.event_id]))
        elif event.refused is not None or not (event.acknowledged or board.periods_at(event.at)):
            outcomes.append(RecordOutcome.LATE)
        else:
            outcomes.append(None)
    return outcomes


async def _lock_rows(
    connection: Connection, board: Board, events: Sequence[Event], outcomes: Sequence[RecordOutcome | None]
) -> list[Row]:
    """Create the rows that new events need, lock them, and return all rows of the users."""
    new = [event for event, outcome in zip(events, outcomes, strict=True) if outcome is None]
    users = sorted({event.user_id for event in new}, key=str.encode)
    stated = sorted({event.user_id for event in new if event.region is not None}, key=str.encode)
    stored = {(row.period_id, row.user_id) for row in await _rows_now(connection, board, users)}
    # A bumped time can lie in the next period.
    needed = {
        (period.id, event.user_id)
        for event in new
        for at in (event.at, event.at + LATER_US)
        for period in board.periods_at(at)
    }
    if stated:
        await connection.execute(SQL["need_profiles"], board.pod_id, stated)
        await connection.execute(SQL["lock_profiles"], board.pod_id, stated)
    await need_rows(connection, board, sorted(needed - stored))
    everybody = sorted({event.user_id for event in events}, key=str.encode)
    return read_rows(await connection.fetch(SQL["rows_of_users_locked"], board.id, everybody))


async def _insert(connection: Connection, event: Event) -> RecordOutcome:
    board_id = event.board.id
    if await is_spent(connection, event) and not await connection.fetchrow(
        SQL["event_with_act"], board_id, event.event_id
    ):
        return RecordOutcome.SPENT
    values = (event.user_id, event.score, event.at, event.stamped, event.received_at, event.metadata)
    told = (*values, event.subscore, event.operation, None)
    if await connection.fetchval(SQL["insert_void_event"], board_id, event.event_id, *told) is not None:
        return RecordOutcome.ACCEPTED
    # The id is taken by an event before it in the batch, or by another transaction.
    stored = await connection.fetchrow(SQL["event_with_act"], board_id, event.event_id)
    assert stored is not None, "the id is taken"
    return compare(event, *tuple(stored)[:-2])


async def _write(connection: Connection, board: Board, changed: dict[tuple[int, str], Standing]) -> None:
    if changed:
        await connection.execute(
            SQL["update_refolded_rows"],
            [period_id for period_id, _ in changed],
            [user_id for _, user_id in changed],
            [standing.score for standing in changed.values()],
            [standing.achieved_at for standing in changed.values()],
            [exact_total(board, standing) for standing in changed.values()],
            [standing.has_nonzero for standing in changed.values()],
            [standing.subscore for standing in changed.values()],
            [standing.last_at for standing in changed.values()],
        )


async def _state_regions(connection: Connection, board: Board, events: Sequence[Event]) -> list[Row]:
    """Store the regions that events state, and return all rows of the users who moved."""
    users = []
    for event in events:
        if event.region is not None:
            asked = (board.pod_id, event.user_id, event.region, event.at)
            if await connection.fetchval(SQL["state_region"], *asked) is not None:
                users.append(event.user_id)
    if not users:
        return []
    users = sorted(set(users), key=str.encode)
    await connection.execute(SQL["resegment_users"], [(board.pod_id, user_id) for user_id in users])
    return read_rows(await connection.fetch(SQL["rows_with_segments"], board.pod_id, users))


async def _rows_now(connection: Connection, board: Board, users: Sequence[str]) -> list[Row]:
    return read_rows(await connection.fetch(SQL["rows_of_users_now"], board.id, list(users))) if users else []


def _last(standing: Standing | None) -> int | None:
    return None if standing is None else standing.last_at


def _recorded(
    board: Board,
    event: Event,
    outcome: RecordOutcome,
    before: dict[tuple[int, str], Row],
    after: dict[tuple[int, str], Row],
    moved: Sequence[Row],
) -> RecordedEvent:
    if outcome is RecordOutcome.ERASED:
        return RecordedEvent(outcome)
    keys = [key for period in board.periods_at(event.at) if (key := (period.id, event.user_id)) in after]
    changes = tuple(
        RowChange(after[key], old if (old := before.get(key)) is not None and old.standing is not None else None)
        for key in keys
    )
    others = [row for row in moved if row.user_id == event.user_id and (row.period_id, row.user_id) not in keys]
    return RecordedEvent(outcome, changes, tuple(others))
