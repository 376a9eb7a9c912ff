"""Events and rows in SQLite: plain functions, each of which runs in one transaction. record.py records new events."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from laurels.adapters.sql.mapping import (
    HIDDEN,
    SUM_UNIT,
    begin_folds,
    fold_events,
    folding_order,
    format_segments,
    hidden_value,
    nothing_to_remove,
    read_hidden,
    read_period,
    read_profile,
    read_sum,
    refold_users,
    refreeze_running,
)
from laurels.adapters.sqlite.sql import SQL
from laurels.core.board import Board, Ranking
from laurels.core.order import Order, Ties
from laurels.core.people import Hidden, Profile, hidden_on
from laurels.core.scores import Standing
from laurels.ports import (
    ModerationAction,
    Refolded,
    Row,
    StoredAction,
    StoredEvent,
)

LAST_SEQ = 2**63 - 1

# A period id and a user id.
RowKey = tuple[int, str]


def move_users(connection: sqlite3.Connection, pod_id: str, user_ids: Sequence[str]) -> list[Row]:
    """Move users to the segments of their profiles in every open period, and return the rows that changed."""
    resegmented: list[Row] = []
    for user_id in user_ids:
        profile = find_profile(connection, pod_id, user_id)
        found = connection.execute(SQL["rows_to_resegment"], (user_id, pod_id)).fetchall()
        for kinds, *columns in found:
            row = read_row(*columns)
            segments = profile.segments(json.loads(kinds))
            if segments != row.segments:
                resegmented.append(replace(row, segments=segments))
    return write_versions(connection, resegmented, SQL["resegment_row"], lambda row: (format_segments(row.segments),))


def refold_rows(connection: sqlite3.Connection, board: Board, user_ids: Sequence[str]) -> list[Row]:
    """Fold the events of some users again, without void ones, and return the rows of open periods that changed."""
    asked = (board.id, json.dumps(list(user_ids)))
    periods = tuple(read_period(columns) for columns in connection.execute(SQL["open_periods_of"], (board.id,)))
    rows = read_rows(connection.execute(SQL["rows_of_users"], asked))
    bases = _read_bases(connection.execute(SQL["bases_of_users"], asked))
    folds = begin_folds(user_ids, bases)
    fold_events(board, periods, folds, connection.execute(SQL[folding_order(board, "events_of_users")], asked))
    refolded = refold_users(board, periods, user_ids, rows, folds)
    before: dict[RowKey, Row | None] = {(row.period_id, row.user_id): row for row in rows}
    standings = {
        (period.id, user.user_id): user.fresh.get(period.id)
        for user in refolded
        for period in periods
        if (period.id, user.user_id) in before or period.id in user.fresh
    }
    initial = {
        key: initial_state(connection, board, key[1])
        for key, standing in standings.items()
        if standing is not None and key not in before
    }
    before |= {key: None for key in standings if key not in before}
    after = write_rows(connection, before, standings, initial)
    return [row for key, row in after.items() if row is not None and row != before[key]]


def insert_rows(
    connection: sqlite3.Connection,
    board: Board,
    period_id: int,
    standings: dict[str, Standing],
    segments: Mapping[str, tuple[str, ...]],
) -> None:
    """Insert rows of users into a period. `segments` has those of erased users, who have no profile."""
    initial = {
        (period_id, user_id): (segments[user_id], Hidden.NO)
        if user_id in segments
        else initial_state(connection, board, user_id)
        for user_id in standings
    }
    keys: dict[RowKey, Standing | None] = {(period_id, user_id): each for user_id, each in standings.items()}
    write_rows(connection, dict.fromkeys(keys), keys, initial)


def need_no_refreeze(connection: sqlite3.Connection, board_id: int) -> None:
    if connection.execute(SQL["is_refreezing"], (str([board_id]),)).fetchone()[0]:
        raise refreeze_running()


def set_hidden(connection: sqlite3.Connection, rows: Iterable[tuple[int, Row]], hides: dict[int, Hidden]) -> list[Row]:
    """Hide or show rows, each given with its board id, and return those that changed."""
    changed = [
        replace(row, hidden=hidden)
        for board_id, row in rows
        if (hidden := hidden_on(board_id, hides)) is not row.hidden
    ]
    return write_versions(connection, changed, SQL["hide_row"], lambda row: (hidden_value(row),))


def find_profile(connection: sqlite3.Connection, pod_id: str, user_id: str) -> Profile:
    found = connection.execute(SQL["find_profile"], (pod_id, user_id)).fetchone()
    return Profile(user_id) if found is None else read_profile(found)


def find_hides(connection: sqlite3.Connection, pod_id: str, user_id: str) -> dict[int, Hidden]:
    return {board_id: HIDDEN[hidden] for board_id, hidden in connection.execute(SQL["hides"], (pod_id, user_id))}


def remove_user(connection: sqlite3.Connection, board: Board, user_id: str, act: ModerationAction) -> list[Row]:
    rows = read_rows(connection.execute(SQL["board_rows_of_user"], (board.id, user_id)))
    inserted = insert_action(connection, board.pod_id, board.id, user_id, act)
    if inserted is None:
        return rows
    need_no_refreeze(connection, board.id)
    if all(row.standing is None for row in rows):
        raise nothing_to_remove(user_id)
    voided = connection.execute(SQL["void_user_events"], (inserted, board.id, user_id)).rowcount
    connection.execute(SQL["count_action_events"], (voided, inserted))
    connection.execute(SQL["end_action"], (act.at, inserted))
    connection.execute(SQL["delete_bases"], (user_id, board.id))
    before: dict[RowKey, Row | None] = {(row.period_id, row.user_id): row for row in rows}
    after = write_rows(connection, before, dict.fromkeys(before))
    return [row for row in after.values() if row is not None]


def rows_of_users(connection: sqlite3.Connection, period_id: int, user_ids: Sequence[str]) -> list[Row]:
    return read_rows(connection.execute(SQL["rows_of_period_users"], (period_id, json.dumps(list(user_ids)))))


def insert_action(
    connection: sqlite3.Connection, pod_id: str, board_id: int, user_id: str | None, act: ModerationAction
) -> int | None:
    """Insert an action, and return its id; None if it exists already."""
    values = (pod_id, board_id, act.action_id, act.kind, user_id, act.by, act.at, act.reason, act.detail)
    inserted = connection.execute(SQL["insert_action"], values).fetchone()
    return None if inserted is None else int(inserted[0])


def action_by_key(connection: sqlite3.Connection, pod_id: str, board_id: int, act: ModerationAction) -> StoredAction:
    return StoredAction(*connection.execute(SQL["action_by_key"], (pod_id, board_id, act.action_id)).fetchone())


def rows_page(connection: sqlite3.Connection, period_id: int, after: str, limit: int) -> list[Row]:
    return read_rows(connection.execute(SQL["rows_page"], (period_id, after, limit)))


def last_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute(SQL["last_version"]).fetchone()[0])


def changed_rows(connection: sqlite3.Connection, since: int, limit: int) -> list[Row]:
    return read_rows(connection.execute(SQL["changed_rows"], (since, limit)))


def count_changed(connection: sqlite3.Connection, since: int, limit: int) -> int:
    return int(connection.execute(SQL["count_changed"], (since, limit)).fetchone()[0])


def rows_of_user(connection: sqlite3.Connection, period_ids: Sequence[int], user_id: str) -> list[Row]:
    return read_rows(connection.execute(SQL["rows_of_user"], (str(list(period_ids)), user_id)))


def ordered_rows_statement(ranking: Ranking) -> str:
    ties = "latest" if ranking.ties is Ties.LATEST else "earliest"
    return SQL[f"ordered_rows_{ranking.order}_{ties}"]


def user_events(
    connection: sqlite3.Connection, board_id: int, user_id: str, before_seq: int | None, limit: int
) -> list[StoredEvent]:
    last = LAST_SEQ if before_seq is None else before_seq
    return read_events(connection.execute(SQL["user_events"], (board_id, user_id, last, limit)))


def events_at(
    connection: sqlite3.Connection, board_id: int, moments: Sequence[tuple[str, int, float | None]]
) -> list[StoredEvent]:
    return read_events(connection.execute(SQL["events_at"], (json.dumps(moments), board_id)))


def board_events(
    connection: sqlite3.Connection, board_id: int, after_seq: int, limit: int, voided: bool
) -> list[StoredEvent]:
    return read_events(connection.execute(SQL["board_events"], (board_id, after_seq, voided, limit)))


def sum_scores(connection: sqlite3.Connection, ranking: Ranking, *, final: bool) -> tuple[int, float]:
    if final:
        asked = (ranking.period_id, ranking.segment, SUM_UNIT)
        return read_sum(*connection.execute(SQL["sum_finals"], asked).fetchone())
    columns = {
        "period": ranking.period_id,
        "segment": ranking.segment,
        "sign": -1 if ranking.order is Order.DESC else 1,
        # SQLite takes a negative limit for none.
        "capacity": -1 if ranking.capacity is None else ranking.capacity,
        "unit": SUM_UNIT,
    }
    return read_sum(*connection.execute(SQL["sum_scores"], columns).fetchone())


def count_rows(connection: sqlite3.Connection) -> int:
    return int(connection.execute(SQL["count_rows"]).fetchone()[0])


def count_events(connection: sqlite3.Connection, board_id: int | None) -> int:
    if board_id is None:
        return int(connection.execute(SQL["count_events"]).fetchone()[0])
    return int(connection.execute(SQL["count_board_events"], (board_id,)).fetchone()[0])


def refold(connection: sqlite3.Connection, board: Board, after: str, limit: int) -> list[Refolded]:
    users = [user_id for (user_id,) in connection.execute(SQL["next_users"], (board.id, after, limit))]
    if not users:
        return []
    between = (board.id, users[0], users[-1])
    periods = tuple(read_period(columns) for columns in connection.execute(SQL["open_periods_of"], (board.id,)))
    rows = read_rows(connection.execute(SQL["rows_between"], between))
    bases = _read_bases(connection.execute(SQL["bases_between"], between))
    folds = begin_folds(users, bases)
    fold_events(board, periods, folds, connection.execute(SQL[folding_order(board, "events_between")], between))
    of_pod = (board.pod_id, users[0], users[-1])
    profiles = map(read_profile, connection.execute(SQL["profiles_between"], of_pod) if board.is_segmented else ())
    hides = connection.execute(SQL["hides_between"], of_pod)
    return refold_users(board, periods, users, rows, folds, profiles, hides)


def initial_state(connection: sqlite3.Connection, board: Board, user_id: str) -> tuple[tuple[str, ...], Hidden]:
    """Return the segments of a new row, and how it is hidden."""
    segments: tuple[str, ...] = ()
    if board.is_segmented:
        segments = find_profile(connection, board.pod_id, user_id).segments(board.segments)
    return segments, hidden_on(board.id, find_hides(connection, board.pod_id, user_id))


def _read_bases(found: Iterable[tuple[Any, ...]]) -> list[tuple[int, str, Standing]]:
    return [
        (period_id, user_id, Standing(score, achieved_at, total, bool(has_nonzero), subscore, last_at))
        for period_id, user_id, score, achieved_at, total, has_nonzero, subscore, last_at in found
    ]


def write_rows(
    connection: sqlite3.Connection,
    before: dict[RowKey, Row | None],
    standings: dict[RowKey, Standing | None],
    initial: dict[RowKey, tuple[tuple[str, ...], Hidden]] | None = None,
) -> dict[RowKey, Row | None]:
    """Store the standings that differ from the rows before, each with a new version, and return all rows.

    `initial` has the segments of new rows, and how they are hidden.
    """
    after: dict[RowKey, Row | None] = dict(before)
    changed = [key for key, standing in standings.items() if standing != ((row := before[key]) and row.standing)]
    if changed:
        (last,) = connection.execute(SQL["take_versions"], (len(changed),)).fetchone()
        for version, key in enumerate(changed, last - len(changed) + 1):
            old = before[key]
            segments, hidden = (old.segments, old.hidden) if old is not None else (initial or {})[key]
            after[key] = Row(*key, standings[key], version, segments, hidden)
        connection.executemany(SQL["put_row"], [_parameters(row) for p in changed if (row := after[p])])
    return after


def write_versions(
    connection: sqlite3.Connection, rows: Sequence[Row], statement: str, values: Callable[[Row], tuple[Any, ...]]
) -> list[Row]:
    """Store rows in which something other than the score changed, each with a new version, and return them."""
    if not rows:
        return []
    (last,) = connection.execute(SQL["take_versions"], (len(rows),)).fetchone()
    written = [replace(row, version=version) for version, row in enumerate(rows, last - len(rows) + 1)]
    connection.executemany(statement, [(*values(row), row.version, row.period_id, row.user_id) for row in written])
    return written


def read_row(
    period_id: int,
    user_id: str,
    score: float | None,
    achieved_at: int,
    total: str | None,
    has_nonzero: int,
    version: int,
    hidden: int,
    segments: str | None,
    subscore: int,
    last_at: int | None,
) -> Row:
    standing = None
    if score is not None:
        standing = Standing(score, achieved_at, total, bool(has_nonzero), subscore, last_at)
    if segments is None:
        return Row(period_id, user_id, standing, version, (), *read_hidden(hidden))
    return Row(period_id, user_id, standing, version, tuple(segments.split()), *read_hidden(hidden))


def read_rows(found: Iterable[Any]) -> list[Row]:
    return [read_row(*columns) for columns in found]


def read_events(
    found: Iterable[tuple[Any, ...]],
) -> list[StoredEvent]:
    return [
        StoredEvent(seq, event_id, user_id, score, at, received_at, bool(voided), metadata, bool(stamped), *more)
        for seq, event_id, user_id, score, at, received_at, voided, metadata, stamped, *more in found
    ]


def _parameters(row: Row) -> tuple[Any, ...]:
    standing, hidden, segments = row.standing, hidden_value(row), format_segments(row.segments)
    if standing is None:
        return (row.period_id, row.user_id, None, None, None, False, row.version, hidden, segments, 0, None)
    return (
        row.period_id,
        row.user_id,
        standing.score,
        standing.achieved_at,
        standing.total,
        standing.has_nonzero,
        row.version,
        hidden,
        segments,
        standing.subscore,
        standing.last_at,
    )


def expire(connection: sqlite3.Connection, cutoffs: Sequence[tuple[int, int]], limit: int) -> list[Row]:
    rows = [
        replace(row, expired=True)
        for period_id, cutoff in cutoffs
        for row in read_rows(connection.execute(SQL["due_rows"], (period_id, cutoff, limit)))
    ]
    return write_versions(connection, rows, SQL["hide_row"], lambda row: (hidden_value(row),))


def oldest_last_at(connection: sqlite3.Connection, period_ids: Sequence[int]) -> dict[int, int]:
    return dict(connection.execute(SQL["oldest_last_at"], (json.dumps(list(period_ids)),)))
