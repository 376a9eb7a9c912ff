"""Recording of new events in SQLite, in one transaction.

Each step handles the whole batch, because a statement per event costs more than the work that it does.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from laurels.adapters.sql.mapping import (
    LATER_US,
    begin_folds,
    compare,
    digest_of,
    fold_events,
    folding_order,
    may_follow,
    outcome_of,
    stale,
    time_after,
)
from laurels.adapters.sqlite.scores import (
    RowKey,
    action_by_key,
    find_profile,
    initial_state,
    insert_action,
    move_users,
    read_row,
    read_rows,
    write_rows,
)
from laurels.adapters.sqlite.sql import SQL
from laurels.core.board import Board
from laurels.core.people import Hidden
from laurels.core.scores import Standing
from laurels.ports import Event, ModerationAction, RecordedEvent, RecordOutcome, Row, RowChange

# Read the rows of a batch period by period if there are at most this many periods.
FEW_PERIODS = 4


def record(connection: sqlite3.Connection, events: Sequence[Event]) -> list[RecordedEvent]:
    """See Ledger.record."""
    _need_current_boards(connection, {event.board.id: event.board for event in events})
    anybody_erased, anybody_hidden = connection.execute(SQL["special_cases"]).fetchone()
    erased = {number for number, event in enumerate(events) if anybody_erased and _is_erased(connection, event)}
    events = _in_order(connection, events)
    keys = _keys(events, erased)
    outcomes = _insert_events(connection, events, keys, erased, _spent(connection, events, erased))
    before = _find_rows(connection, keys)
    standings = {key: row.standing if row else None for key, row in before.items()}
    new: dict[RowKey, Board] = {}
    late: dict[tuple[int, str], Event] = {}
    for event, outcome, own in zip(events, outcomes, keys, strict=True):
        if outcome is RecordOutcome.ACCEPTED:
            board = event.board
            for key in own:
                if board.operations and _is_late(event, standings[key]):
                    late[board.id, event.user_id] = event
                standings[key] = board.fold(standings[key], event.score, event.at, event.subscore, event.operation)
                if before[key] is None:
                    new[key] = board
    for event in late.values():
        standings |= _refold(connection, event, standings)
    initial = {
        key: initial_state(connection, board, key[1]) if anybody_hidden or board.is_segmented else ((), Hidden.NO)
        for key, board in new.items()
    }
    after = write_rows(connection, before, standings, initial)
    accepted = [event for event, outcome in zip(events, outcomes, strict=True) if outcome is RecordOutcome.ACCEPTED]
    resegmented = {(row.period_id, row.user_id): row for row in _take_regions(connection, accepted)}
    after |= {key: row for key, row in resegmented.items() if key in after}
    return [
        RecordedEvent(outcome, _changes(own, before, after), _others(event, resegmented, after))
        if outcome is not RecordOutcome.ERASED
        else RecordedEvent(outcome)
        for event, outcome, own in zip(events, outcomes, keys, strict=True)
    ]


def hold_for_review(connection: sqlite3.Connection, event: Event, act: ModerationAction) -> RecordOutcome:
    """See Ledger.hold_for_review."""
    board = event.board
    _need_current_boards(connection, {board.id: board})
    if _is_erased(connection, event):
        return RecordOutcome.ERASED
    found = connection.execute(SQL["event_with_act"], (board.id, event.event_id)).fetchone()
    if found is not None:
        return outcome_of(event, found)
    if not board.periods_at(event.at):
        return RecordOutcome.LATE
    if _spent(connection, [event], ()):
        return RecordOutcome.SPENT
    act_id = insert_action(connection, board.pod_id, board.id, event.user_id, act)
    if act_id is None:
        act_id = action_by_key(connection, board.pod_id, board.id, act).id
    connection.execute(SQL["end_action"], (act.at, act_id))
    connection.execute(SQL["count_action_events"], (1, act_id))
    (seq,) = connection.execute(SQL["take_event_numbers"], (1,)).fetchone()
    connection.execute(SQL["insert_event"], _columns(seq, event))
    connection.execute(SQL["void_event"], (act_id, seq))
    return RecordOutcome.IN_REVIEW


def _need_current_boards(connection: sqlite3.Connection, boards: dict[int, Board]) -> None:
    """Raise Stale if a board has changed since it was read."""
    revisions = dict(connection.execute(SQL["revisions_of"], (json.dumps(list(boards)),)))
    for board in boards.values():
        if revisions.get(board.id) != board.revision:
            raise stale(board)


def _is_erased(connection: sqlite3.Connection, event: Event) -> bool:
    pod_id = event.board.pod_id
    found = connection.execute(SQL["erased_at"], (pod_id, digest_of(pod_id, event.user_id))).fetchone()
    return found is not None and min(event.at, event.received_at) < found[0]


def _keys(events: Sequence[Event], erased: Collection[int]) -> list[list[RowKey]]:
    """Return the keys of the rows in which each event counts; none for the events in `erased`."""
    keys: list[list[RowKey]] = []
    last: tuple[Board | None, int] = (None, 0)
    periods: list[int] = []
    for number, event in enumerate(events):
        board, at = event.board, event.at
        # Most events of a batch have the same board and time.
        if board is not last[0] or at != last[1]:
            last = (board, at)
            periods = [period.id for period in board.periods_at(at)]
        user_id = event.user_id
        keys.append([] if number in erased else [(period_id, user_id) for period_id in periods])
    return keys


def _in_order(connection: sqlite3.Connection, events: Sequence[Event]) -> Sequence[Event]:
    """Return the events with those of boards with operations that have no time of their own after the ones before."""
    if not any(event.board.operations for event in events):
        return events
    last: dict[tuple[int, str], int | None] = {}
    # Where the events of this batch were placed.
    placed: dict[tuple[int, str], int] = {}
    ordered = []
    for event in events:
        key = (event.board.id, event.user_id)
        at = event.at
        if event.board.operations and event.stamped:
            if key not in last:
                rows = read_rows(connection.execute(SQL["board_rows_of_user"], key))
                times = [row.standing.last_at for row in rows if row.standing is not None]
                last[key] = max((time for time in times if time is not None), default=None)
            if may_follow(event, last[key]):
                (latest,) = connection.execute(SQL["latest_between"], (*key, at, at + LATER_US)).fetchone()
                at = time_after(event, latest)
            if at <= placed.get(key, -1) < event.at + LATER_US:
                at = placed[key] + 1
            placed[key] = at
        ordered.append(event if at == event.at else replace(event, at=at))
    return ordered


def _is_late(event: Event, standing: Standing | None) -> bool:
    """Return True if an event comes before others that are folded already."""
    return standing is not None and standing.last_at is not None and event.at <= standing.last_at


def _refold(
    connection: sqlite3.Connection, event: Event, standings: Mapping[RowKey, Standing | None]
) -> dict[RowKey, Standing | None]:
    """Fold all events of a user in the order of time, for the rows in `standings`."""
    board, user_id = event.board, event.user_id
    folds = begin_folds([user_id], ())
    asked = (board.id, json.dumps([user_id]))
    fold_events(
        board, board.open_periods, folds, connection.execute(SQL[folding_order(board, "events_of_users")], asked)
    )
    return {(pid, user_id): standing for pid, standing in folds[user_id].items() if (pid, user_id) in standings}


def _spent(connection: sqlite3.Connection, events: Sequence[Event], erased: Collection[int]) -> set[int]:
    """Return the indexes of new events that are over the attempts of their users.

    An event that was acknowledged before is stored all the same.
    """
    spent: set[int] = set()
    limited_boards = {
        board.id
        for board in {event.board.id: event.board for event in events}.values()
        if any(window.attempts is not None for window in board.windows)
    }
    if not limited_boards:
        return spent
    used: dict[RowKey, int] = {}
    ids: set[tuple[int, str]] = set()
    for index, event in enumerate(events):
        limited = event.board.limited_period_at(event.at)
        if limited is None or index in erased or event.refused is not None:
            continue
        period, attempts = limited
        board_id, key = event.board.id, (period.id, event.user_id)
        known = connection.execute(SQL["find_event"], (board_id, event.event_id)).fetchone()
        if known is not None or (board_id, event.event_id) in ids:
            continue
        if key not in used:
            counted = (board_id, event.user_id, period.start, period.start, period.end, period.end)
            (used[key],) = connection.execute(SQL["count_attempts"], counted).fetchone()
        if used[key] < attempts or event.acknowledged:
            used[key] += 1
            ids.add((board_id, event.event_id))
        else:
            spent.add(index)
    return spent


def _insert_events(
    connection: sqlite3.Connection,
    events: Sequence[Event],
    keys: Sequence[Sequence[RowKey]],
    erased: Collection[int],
    spent: Collection[int],
) -> list[RecordOutcome]:
    """Insert the events that are new and may be stored, and return the outcome of each event.

    `keys` has the rows that each event counts in, `erased` the indexes of events of users who were erased later,
    `spent` those of events over the attempts of their users.
    """
    (last,) = connection.execute(SQL["take_event_numbers"], (len(events),)).fetchone()
    first = last - len(events) + 1
    stored = [
        index
        for index, (event, own) in enumerate(zip(events, keys, strict=True))
        if index not in erased and index not in spent and event.refused is None and (own or event.acknowledged)
    ]
    inserted = connection.executemany(SQL["insert_event"], [_columns(first + index, events[index]) for index in stored])
    new = set(stored)
    if inserted.rowcount != len(stored):
        # The ids of some events are taken. The events that were inserted have the numbers of this batch.
        new = {seq - first for (seq,) in connection.execute(SQL["event_numbers"], (first, last))}
    return [
        RecordOutcome.ACCEPTED
        if index in new
        else RecordOutcome.ERASED
        if index in erased
        else RecordOutcome.SPENT
        if index in spent
        else _compare_stored(connection, event, first + index)
        for index, event in enumerate(events)
    ]


def _columns(seq: int, event: Event) -> tuple[Any, ...]:
    return (
        seq,
        event.board.id,
        event.event_id,
        event.user_id,
        event.score,
        event.at,
        event.stamped,
        event.received_at,
        event.metadata,
        event.subscore,
        event.operation,
    )


def _compare_stored(connection: sqlite3.Connection, event: Event, seq: int) -> RecordOutcome:
    """Return the outcome of an event that was not inserted: its id is taken, or it must not be stored.

    `seq` is the number that it would have. An event with its id and a higher number comes later in the batch.
    """
    found = connection.execute(SQL["find_event"], (event.board.id, event.event_id)).fetchone()
    if found is None or found[0] > seq:
        return RecordOutcome.LATE
    return compare(event, *found[1:])


def _find_rows(connection: sqlite3.Connection, keys: Iterable[Sequence[RowKey]]) -> dict[RowKey, Row | None]:
    """Return the stored rows of all keys; None for those that don't exist."""
    found: dict[RowKey, Row | None] = {key: None for own in keys for key in own}
    periods: dict[int, list[str]] = {}
    for period_id, user_id in found:
        periods.setdefault(period_id, []).append(user_id)
    queries: list[tuple[str, tuple[Any, ...]]] = [
        ("rows_of_keys_in_period", (period_id, json.dumps(users))) for period_id, users in periods.items()
    ]
    if len(periods) > FEW_PERIODS:
        # Slower per row, but one query.
        queries = [("rows_of_keys", (json.dumps(list(found)),))]
    for name, parameters in queries:
        for columns in connection.execute(SQL[name], parameters):
            found[columns[0], columns[1]] = read_row(*columns)
    return found


def _take_regions(connection: sqlite3.Connection, events: Sequence[Event]) -> list[Row]:
    """Store the regions that events state, and return the rows whose segments changed."""
    resegmented: dict[str, dict[str, None]] = {}
    for event in events:
        if event.region is None:
            continue
        pod_id = event.board.pod_id
        profile = find_profile(connection, pod_id, event.user_id)
        if (event.at, event.region) > (profile.region_at, profile.region or ""):
            connection.execute(SQL["put_region"], (pod_id, event.user_id, event.region, event.at))
            if event.region != profile.region:
                resegmented.setdefault(pod_id, {})[event.user_id] = None
    return [row for pod_id, users in resegmented.items() for row in move_users(connection, pod_id, list(users))]


def _changes(
    keys: list[RowKey], before: dict[RowKey, Row | None], after: dict[RowKey, Row | None]
) -> tuple[RowChange, ...]:
    return tuple([RowChange(row, before[key]) for key in keys if (row := after.get(key)) is not None])


def _others(event: Event, resegmented: dict[RowKey, Row], after: dict[RowKey, Row | None]) -> tuple[Row, ...]:
    if event.region is None or not resegmented:
        return ()
    return tuple(row for key, row in resegmented.items() if key[1] == event.user_id and key not in after)
