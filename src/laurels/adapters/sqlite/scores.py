"""Events and rows in SQLite: plain functions, each the work of one transaction."""

import sqlite3
from collections.abc import Iterable, Sequence

from laurels.adapters.sql_files import load_queries
from laurels.adapters.sql_ledger import compare, nothing_to_remove, read_period, refold_users, stale
from laurels.core.board import Board, Ranking
from laurels.core.order import Ties
from laurels.core.scores import Standing, fold
from laurels.ports import Act, Change, Event, Record, Recorded, Refolded, Row, StoredEvent

SQL = load_queries("laurels.adapters.sqlite")

LAST_SEQ = 2**63 - 1


def record(connection: sqlite3.Connection, events: Sequence[Event]) -> list[Record]:
    for board in {event.board.id: event.board for event in events}.values():
        (revision,) = connection.execute(SQL["revision_of"], (board.id,)).fetchone()
        if revision != board.revision:
            raise stale(board)
    before: dict[tuple[int, str], Row | None] = {}
    standings: dict[tuple[int, str], Standing | None] = {}
    outcomes: list[Recorded] = []
    for event in events:
        outcome = _insert_event(connection, event)
        outcomes.append(outcome)
        for period in event.board.periods_at(event.at):
            place = (period.id, event.user_id)
            if place not in before:
                row = before[place] = _find_row(connection, *place)
                standings[place] = row.standing if row else None
            if outcome is Recorded.ACCEPTED:
                standings[place] = fold(event.board.rule, event.board.order, standings[place], event.score, event.at)
    after = _write_rows(connection, before, standings)
    return [Record(outcome, _changes(event, before, after)) for event, outcome in zip(events, outcomes, strict=True)]


def remove_user(connection: sqlite3.Connection, board: Board, user_id: str, act: Act) -> list[Row]:
    rows = read_rows(connection.execute(SQL["board_rows_of_user"], (board.id, user_id)))
    inserted = connection.execute(
        SQL["insert_act"], (board.id, act.act_id, act.kind, user_id, act.by, act.at)
    ).fetchone()
    if inserted is None:
        return rows
    if all(row.standing is None for row in rows):
        raise nothing_to_remove(user_id)
    connection.execute(SQL["void_user_events"], (inserted[0], board.id, user_id))
    connection.execute(SQL["delete_bases"], (user_id, board.id))
    before = {(row.period_id, row.user_id): row for row in rows}
    after = _write_rows(connection, before, dict.fromkeys(before))
    return [row for row in after.values() if row is not None]


def rows_page(connection: sqlite3.Connection, period_id: int, after: str, limit: int) -> list[Row]:
    return read_rows(connection.execute(SQL["rows_page"], (period_id, after, limit)))


def last_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute(SQL["last_version"]).fetchone()[0])


def changed_rows(connection: sqlite3.Connection, since: int, limit: int) -> list[Row]:
    return read_rows(connection.execute(SQL["changed_rows"], (since, limit)))


def count_changed(connection: sqlite3.Connection, since: int, limit: int) -> int:
    return int(connection.execute(SQL["count_changed"], (since, limit)).fetchone()[0])


def rows_of_user(connection: sqlite3.Connection, period_ids: Sequence[int], user_id: str) -> list[Row]:
    rows = read_rows(connection.execute(SQL["rows_of_user"], (str(list(period_ids)), user_id)))
    return [row for row in rows if row.standing is not None]


def best_rows(connection: sqlite3.Connection, ranking: Ranking, limit: int) -> list[Row]:
    return read_rows(connection.execute(best_rows_statement(ranking), (ranking.period_id, limit)))


def best_rows_statement(ranking: Ranking) -> str:
    ties = "latest" if ranking.ties is Ties.LATEST else "earliest"
    return SQL[f"best_rows_{ranking.order}_{ties}"]


def user_events(
    connection: sqlite3.Connection, board_id: int, user_id: str, before_seq: int | None, limit: int
) -> list[StoredEvent]:
    last = LAST_SEQ if before_seq is None else before_seq
    return _read_events(connection.execute(SQL["user_events"], (board_id, user_id, last, limit)))


def board_events(
    connection: sqlite3.Connection, board_id: int, after_seq: int, limit: int, voided: bool
) -> list[StoredEvent]:
    return _read_events(connection.execute(SQL["board_events"], (board_id, after_seq, voided, limit)))


def count_rows(connection: sqlite3.Connection) -> int:
    return int(connection.execute(SQL["count_rows"]).fetchone()[0])


def count_events(connection: sqlite3.Connection, board_id: int | None) -> int:
    if board_id is None:
        return int(connection.execute(SQL["count_events"]).fetchone()[0])
    return int(connection.execute(SQL["count_board_events"], (board_id,)).fetchone()[0])


def refold(connection: sqlite3.Connection, board: Board, after: str, limit: int) -> list[Refolded]:
    users = [
        user_id
        for (user_id,) in connection.execute(SQL["next_users"], {"board": board.id, "after": after, "limit": limit})
    ]
    if not users:
        return []
    between = (board.id, users[0], users[-1])
    periods = tuple(read_period(columns) for columns in connection.execute(SQL["open_periods_of"], (board.id,)))
    rows = read_rows(connection.execute(SQL["rows_between"], between))
    bases = [
        (period_id, user_id, Standing(score, achieved_at, total, bool(moved)))
        for period_id, user_id, score, achieved_at, total, moved in connection.execute(SQL["bases_between"], between)
    ]
    return refold_users(board, periods, users, rows, bases, connection.execute(SQL["events_between"], between))


def _insert_event(connection: sqlite3.Connection, event: Event) -> Recorded:
    if not event.is_stored:
        before = connection.execute(SQL["find_event"], (event.board.id, event.event_id)).fetchone()
        return Recorded.LATE if before is None else compare(event, *before)
    inserted = connection.execute(
        SQL["insert_event"],
        (
            event.board.id,
            event.event_id,
            event.user_id,
            event.score,
            event.at,
            event.stamped,
            event.received_at,
            event.metadata,
        ),
    )
    if inserted.rowcount:
        return Recorded.ACCEPTED
    before = connection.execute(SQL["find_event"], (event.board.id, event.event_id)).fetchone()
    return compare(event, *before)


def _find_row(connection: sqlite3.Connection, period_id: int, user_id: str) -> Row | None:
    found = connection.execute(SQL["find_row"], (period_id, user_id)).fetchone()
    return None if found is None else _row(period_id, user_id, *found)


def _write_rows(
    connection: sqlite3.Connection,
    before: dict[tuple[int, str], Row | None] | dict[tuple[int, str], Row],
    standings: dict[tuple[int, str], Standing | None],
) -> dict[tuple[int, str], Row | None]:
    """Store the standings that differ from the rows before, each with a version of its own."""
    after: dict[tuple[int, str], Row | None] = dict(before)
    changed = [place for place, standing in standings.items() if standing != ((row := before[place]) and row.standing)]
    if changed:
        (last,) = connection.execute(SQL["take_versions"], (len(changed),)).fetchone()
        for version, place in enumerate(changed, last - len(changed) + 1):
            after[place] = Row(*place, standings[place], version)
        connection.executemany(SQL["put_row"], [_parameters(row) for p in changed if (row := after[p])])
    return after


def _changes(
    event: Event, before: dict[tuple[int, str], Row | None], after: dict[tuple[int, str], Row | None]
) -> tuple[Change, ...]:
    places = [(period.id, event.user_id) for period in event.board.periods_at(event.at)]
    return tuple(Change(row, before[place]) for place in places if (row := after[place]) is not None)


def _row(
    period_id: int,
    user_id: str,
    score: float | None,
    achieved_at: int,
    total: str | None,
    moved: int,
    version: int,
) -> Row:
    standing = None if score is None else Standing(score, achieved_at, total, bool(moved))
    return Row(period_id, user_id, standing, version)


def read_rows(found: Iterable[tuple[int, str, float | None, int, str | None, int, int]]) -> list[Row]:
    return [_row(*columns) for columns in found]


def _read_events(
    found: Iterable[tuple[int, str, str, float, int, int, int, str | None, int]],
) -> list[StoredEvent]:
    return [
        StoredEvent(seq, event_id, user_id, score, at, received_at, bool(voided), metadata, bool(stamped))
        for seq, event_id, user_id, score, at, received_at, voided, metadata, stamped in found
    ]


def _parameters(row: Row) -> tuple[int, str, float | None, int | None, str | None, bool, int]:
    standing = row.standing
    if standing is None:
        return (row.period_id, row.user_id, None, None, None, False, row.version)
    return (
        row.period_id,
        row.user_id,
        standing.score,
        standing.achieved_at,
        standing.total,
        standing.moved,
        row.version,
    )
