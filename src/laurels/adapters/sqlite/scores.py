"""Events and rows in SQLite: plain functions, each the work of one transaction."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from laurels.adapters.sql_files import load_queries
from laurels.adapters.sql_ledger import (
    HIDDEN,
    begin_folds,
    compare,
    digest_of,
    fold_events,
    nothing_to_remove,
    read_period,
    read_profile,
    refold_users,
    refreeze_running,
    spell_segments,
    stale,
)
from laurels.core.board import Board, Ranking
from laurels.core.order import Ties
from laurels.core.people import Hidden, Profile, hidden_on
from laurels.core.scores import Standing, fold
from laurels.ports import Act, Change, Event, Record, Recorded, Refolded, Row, StoredAct, StoredEvent

SQL = load_queries("laurels.adapters.sqlite")

LAST_SEQ = 2**63 - 1

# A period and a user.
Place = tuple[int, str]


def record(connection: sqlite3.Connection, events: Sequence[Event]) -> list[Record]:
    for board in {event.board.id: event.board for event in events}.values():
        if connection.execute(SQL["revision_of"], (board.id,)).fetchone() != (board.revision,):
            raise stale(board)
    before: dict[Place, Row | None] = {}
    standings: dict[Place, Standing | None] = {}
    new: dict[Place, Board] = {}
    outcomes: list[Recorded] = []
    places: list[list[Place]] = []
    anybody_erased, anybody_hidden = connection.execute(SQL["special_cases"]).fetchone()
    (last_number,) = connection.execute(SQL["take_event_numbers"], (len(events),)).fetchone()
    for number, event in enumerate(events, last_number - len(events) + 1):
        if anybody_erased and _is_erased(connection, event):
            outcomes.append(Recorded.ERASED)
            places.append([])
            continue
        own = [(period.id, event.user_id) for period in event.board.periods_at(event.at)]
        is_stored = event.refused is None and (bool(own) or event.acknowledged)
        outcome = _insert_event(connection, event, number if is_stored else None)
        outcomes.append(outcome)
        places.append(own)
        for place in own:
            if place not in before:
                row = before[place] = _find_row(connection, *place)
                standings[place] = row.standing if row else None
                if row is None:
                    new[place] = event.board
            if outcome is Recorded.ACCEPTED:
                standings[place] = fold(event.board.rule, event.board.order, standings[place], event.score, event.at)
    born = {
        place: _birth(connection, board, place[1]) if anybody_hidden or board.is_segmented else ((), Hidden.NO)
        for place, board in new.items()
        if standings[place] is not None
    }
    after = _write_rows(connection, before, standings, born)
    accepted = [event for event, outcome in zip(events, outcomes, strict=True) if outcome is Recorded.ACCEPTED]
    moved = {(row.period_id, row.user_id): row for row in _take_regions(connection, accepted)}
    after |= {place: row for place, row in moved.items() if place in after}
    return [
        Record(outcome, _changes(own, before, after), _others(event, moved, after))
        if outcome is not Recorded.ERASED
        else Record(outcome)
        for event, outcome, own in zip(events, outcomes, places, strict=True)
    ]


def move_users(connection: sqlite3.Connection, pod_id: str, user_ids: Sequence[str]) -> list[Row]:
    """Put users into the segments that their profiles say, in every open period; gives the rows that changed."""
    moved: list[Row] = []
    for user_id in user_ids:
        profile = find_profile(connection, pod_id, user_id)
        found = connection.execute(SQL["rows_to_move"], (user_id, pod_id)).fetchall()
        for kinds, *columns in found:
            row = _row(*columns)
            segments = profile.segments(json.loads(kinds))
            if segments != row.segments:
                moved.append(replace(row, segments=segments))
    return write_versions(connection, moved, SQL["move_row"], lambda row: (spell_segments(row.segments),))


def refold_rows(connection: sqlite3.Connection, board: Board, user_ids: Sequence[str]) -> list[Row]:
    """Fold what counts of some users' events anew; gives the rows of open periods that changed."""
    asked = (board.id, json.dumps(list(user_ids)))
    periods = tuple(read_period(columns) for columns in connection.execute(SQL["open_periods_of"], (board.id,)))
    rows = read_rows(connection.execute(SQL["rows_of_users"], asked))
    bases = _read_bases(connection.execute(SQL["bases_of_users"], asked))
    folds = begin_folds(user_ids, bases)
    fold_events(board, periods, folds, connection.execute(SQL["events_of_users"], asked))
    refolded = refold_users(board, periods, user_ids, rows, folds)
    before: dict[Place, Row | None] = {(row.period_id, row.user_id): row for row in rows}
    standings = {
        (period.id, user.user_id): user.fresh.get(period.id)
        for user in refolded
        for period in periods
        if (period.id, user.user_id) in before or period.id in user.fresh
    }
    born = {
        place: _birth(connection, board, place[1])
        for place, standing in standings.items()
        if standing is not None and place not in before
    }
    before |= {place: None for place in standings if place not in before}
    after = _write_rows(connection, before, standings, born)
    return [row for place, row in after.items() if row is not None and row != before[place]]


def insert_rows(
    connection: sqlite3.Connection,
    board: Board,
    period_id: int,
    standings: dict[str, Standing],
    segments: Mapping[str, tuple[str, ...]],
) -> None:
    """Give users rows in a period. `segments`: of those whose profile does not say it any more."""
    born = {
        (period_id, user_id): (segments[user_id], Hidden.NO)
        if user_id in segments
        else _birth(connection, board, user_id)
        for user_id in standings
    }
    places: dict[Place, Standing | None] = {(period_id, user_id): each for user_id, each in standings.items()}
    _write_rows(connection, dict.fromkeys(places), places, born)


def need_no_refreeze(connection: sqlite3.Connection, board_id: int) -> None:
    if connection.execute(SQL["is_refreezing"], (board_id,)).fetchone() is not None:
        raise refreeze_running()


def set_hidden(connection: sqlite3.Connection, rows: Iterable[tuple[int, Row]], hides: dict[int, Hidden]) -> list[Row]:
    """Hide or show rows, each of a board; gives those that changed."""
    changed = [
        replace(row, hidden=hidden)
        for board_id, row in rows
        if (hidden := hidden_on(board_id, hides)) is not row.hidden
    ]
    return write_versions(connection, changed, SQL["hide_row"], lambda row: (int(row.hidden),))


def find_profile(connection: sqlite3.Connection, pod_id: str, user_id: str) -> Profile:
    found = connection.execute(SQL["find_profile"], (pod_id, user_id)).fetchone()
    return Profile(user_id) if found is None else read_profile(found)


def find_hides(connection: sqlite3.Connection, pod_id: str, user_id: str) -> dict[int, Hidden]:
    return {board_id: HIDDEN[hidden] for board_id, hidden in connection.execute(SQL["hides"], (pod_id, user_id))}


def remove_user(connection: sqlite3.Connection, board: Board, user_id: str, act: Act) -> list[Row]:
    rows = read_rows(connection.execute(SQL["board_rows_of_user"], (board.id, user_id)))
    inserted = insert_act(connection, board.pod_id, board.id, user_id, act)
    if inserted is None:
        return rows
    need_no_refreeze(connection, board.id)
    if all(row.standing is None for row in rows):
        raise nothing_to_remove(user_id)
    voided = connection.execute(SQL["void_user_events"], (inserted, board.id, user_id)).rowcount
    connection.execute(SQL["count_act"], (voided, inserted))
    connection.execute(SQL["end_act"], (act.at, inserted))
    connection.execute(SQL["delete_bases"], (user_id, board.id))
    before: dict[Place, Row | None] = {(row.period_id, row.user_id): row for row in rows}
    after = _write_rows(connection, before, dict.fromkeys(before))
    return [row for row in after.values() if row is not None]


def rows_of_users(connection: sqlite3.Connection, period_id: int, user_ids: Sequence[str]) -> list[Row]:
    return read_rows(connection.execute(SQL["rows_of_period_users"], (period_id, json.dumps(list(user_ids)))))


def insert_act(connection: sqlite3.Connection, pod_id: str, board_id: int, user_id: str | None, act: Act) -> int | None:
    """Its number; None: it is there already."""
    values = (pod_id, board_id, act.act_id, act.kind, user_id, act.by, act.at, act.reason, act.detail)
    inserted = connection.execute(SQL["insert_act"], values).fetchone()
    return None if inserted is None else int(inserted[0])


def act_by_key(connection: sqlite3.Connection, pod_id: str, board_id: int, act: Act) -> StoredAct:
    return StoredAct(*connection.execute(SQL["act_by_key"], (pod_id, board_id, act.act_id)).fetchone())


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
    return read_events(connection.execute(SQL["user_events"], (board_id, user_id, last, limit)))


def board_events(
    connection: sqlite3.Connection, board_id: int, after_seq: int, limit: int, voided: bool
) -> list[StoredEvent]:
    return read_events(connection.execute(SQL["board_events"], (board_id, after_seq, voided, limit)))


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
    bases = _read_bases(connection.execute(SQL["bases_between"], between))
    folds = begin_folds(users, bases)
    fold_events(board, periods, folds, connection.execute(SQL["events_between"], between))
    of_pod = (board.pod_id, users[0], users[-1])
    profiles = map(read_profile, connection.execute(SQL["profiles_between"], of_pod) if board.is_segmented else ())
    hides = connection.execute(SQL["hides_between"], of_pod)
    return refold_users(board, periods, users, rows, folds, profiles, hides)


def _is_erased(connection: sqlite3.Connection, event: Event) -> bool:
    pod_id = event.board.pod_id
    found = connection.execute(SQL["erased_at"], (pod_id, digest_of(pod_id, event.user_id))).fetchone()
    return found is not None and min(event.at, event.received_at) < found[0]


def _birth(connection: sqlite3.Connection, board: Board, user_id: str) -> tuple[tuple[str, ...], Hidden]:
    """The segments of a new row, and whether it is hidden."""
    segments: tuple[str, ...] = ()
    if board.is_segmented:
        segments = find_profile(connection, board.pod_id, user_id).segments(board.segments)
    return segments, hidden_on(board.id, find_hides(connection, board.pod_id, user_id))


def _take_regions(connection: sqlite3.Connection, events: Sequence[Event]) -> list[Row]:
    """What events tell of regions; gives the rows that moved with it."""
    moved: dict[str, dict[str, None]] = {}
    for event in events:
        if event.region is None:
            continue
        pod_id = event.board.pod_id
        profile = find_profile(connection, pod_id, event.user_id)
        if (event.at, event.region) > (profile.region_at, profile.region or ""):
            connection.execute(SQL["put_region"], (pod_id, event.user_id, event.region, event.at))
            if event.region != profile.region:
                moved.setdefault(pod_id, {})[event.user_id] = None
    return [row for pod_id, users in moved.items() for row in move_users(connection, pod_id, list(users))]


def _read_bases(found: Iterable[tuple[int, str, float, int, str | None, int]]) -> list[tuple[int, str, Standing]]:
    return [
        (period_id, user_id, Standing(score, achieved_at, total, bool(moved)))
        for period_id, user_id, score, achieved_at, total, moved in found
    ]


def _insert_event(connection: sqlite3.Connection, event: Event, number: int | None) -> Recorded:
    """`number`: the one that it gets; None: it is not to be stored."""
    if number is None:
        before = connection.execute(SQL["find_event"], (event.board.id, event.event_id)).fetchone()
        return Recorded.LATE if before is None else compare(event, *before)
    inserted = connection.execute(
        SQL["insert_event"],
        (
            number,
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
    before: dict[Place, Row | None],
    standings: dict[Place, Standing | None],
    born: dict[Place, tuple[tuple[str, ...], Hidden]] | None = None,
) -> dict[Place, Row | None]:
    """Store the standings that differ from the rows before, each with a version of its own.

    `born`: the segments of the new ones, and whether they are hidden.
    """
    after: dict[Place, Row | None] = dict(before)
    changed = [place for place, standing in standings.items() if standing != ((row := before[place]) and row.standing)]
    if changed:
        (last,) = connection.execute(SQL["take_versions"], (len(changed),)).fetchone()
        for version, place in enumerate(changed, last - len(changed) + 1):
            old = before[place]
            segments, hidden = (old.segments, old.hidden) if old is not None else (born or {})[place]
            after[place] = Row(*place, standings[place], version, segments, hidden)
        connection.executemany(SQL["put_row"], [_parameters(row) for p in changed if (row := after[p])])
    return after


def write_versions(
    connection: sqlite3.Connection, rows: Sequence[Row], statement: str, values: Callable[[Row], tuple[Any, ...]]
) -> list[Row]:
    """Store rows of which something other than the score changed, each with a version of its own."""
    if not rows:
        return []
    (last,) = connection.execute(SQL["take_versions"], (len(rows),)).fetchone()
    written = [replace(row, version=version) for version, row in enumerate(rows, last - len(rows) + 1)]
    connection.executemany(statement, [(*values(row), row.version, row.period_id, row.user_id) for row in written])
    return written


def _changes(
    places: list[Place], before: dict[Place, Row | None], after: dict[Place, Row | None]
) -> tuple[Change, ...]:
    return tuple(Change(row, before[place]) for place in places if (row := after.get(place)) is not None)


def _others(event: Event, moved: dict[Place, Row], after: dict[Place, Row | None]) -> tuple[Row, ...]:
    if event.region is None or not moved:
        return ()
    return tuple(row for place, row in moved.items() if place[1] == event.user_id and place not in after)


def _row(
    period_id: int,
    user_id: str,
    score: float | None,
    achieved_at: int,
    total: str | None,
    moved: int,
    version: int,
    hidden: int,
    segments: str | None,
) -> Row:
    standing = None if score is None else Standing(score, achieved_at, total, bool(moved))
    if segments is None:
        return Row(period_id, user_id, standing, version, (), HIDDEN[hidden])
    return Row(period_id, user_id, standing, version, tuple(segments.split()), HIDDEN[hidden])


def read_rows(found: Iterable[Any]) -> list[Row]:
    return [_row(*columns) for columns in found]


def read_events(
    found: Iterable[tuple[int, str, str, float, int, int, int, str | None, int]],
) -> list[StoredEvent]:
    return [
        StoredEvent(seq, event_id, user_id, score, at, received_at, bool(voided), metadata, bool(stamped))
        for seq, event_id, user_id, score, at, received_at, voided, metadata, stamped in found
    ]


def _parameters(row: Row) -> tuple[int, str, float | None, int | None, str | None, bool, int, int, str | None]:
    standing, hidden, segments = row.standing, int(row.hidden), spell_segments(row.segments)
    if standing is None:
        return (row.period_id, row.user_id, None, None, None, False, row.version, hidden, segments)
    return (
        row.period_id,
        row.user_id,
        standing.score,
        standing.achieved_at,
        standing.total,
        standing.moved,
        row.version,
        hidden,
        segments,
    )
