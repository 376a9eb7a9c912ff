"""Events and rows in PostgreSQL: plain functions on a connection. Scores are folded by the database itself, in the
functions of the schema; here is what goes in and comes out.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import asyncpg

from laurels.adapters.postgres.pool import Connection
from laurels.adapters.sql_files import load_queries
from laurels.adapters.sql_ledger import compare, nothing_to_remove, read_period, refold_users, stale
from laurels.core.board import Board, Ranking
from laurels.core.order import Order, Ties
from laurels.core.scores import EXACT_LIMIT, Rule, Standing, exact_text, spell_total
from laurels.errors import Stale
from laurels.ports import Act, Change, Event, Record, Recorded, Refolded, Row, StoredEvent

SQL = load_queries("laurels.adapters.postgres")

LAST_SEQ = 2**63 - 1


def signs(ranking: Ranking) -> tuple[float, int]:
    """What scores and times are multiplied with, so that the smaller is ahead."""
    return 1.0 if ranking.order is Order.ASC else -1.0, -1 if ranking.ties is Ties.LATEST else 1


async def record(connection: Connection, events: Sequence[Event]) -> list[Record]:
    places = [
        (number, period.id, event)
        for number, event in enumerate(events, 1)
        for period in event.board.periods_at(event.at)
    ]
    found = await _fetch_stale(
        connection,
        events,
        SQL["record"],
        [event.board.id for event in events],
        [event.board.revision for event in events],
        [event.event_id for event in events],
        [event.user_id for event in events],
        [event.score for event in events],
        [event.at for event in events],
        [event.stamped for event in events],
        [event.received_at for event in events],
        [event.metadata for event in events],
        [event.is_stored for event in events],
        [number for number, _, _ in places],
        [period_id for _, period_id, _ in places],
        [event.user_id for _, _, event in places],
        [event.score for _, _, event in places],
        [exact_text(event.score) if event.board.rule is Rule.INCREMENT else None for _, _, event in places],
        [event.at for _, _, event in places],
        [event.board.rule.value for _, _, event in places],
        [1.0 if event.board.order is Order.ASC else -1.0 for _, _, event in places],
    )
    outcomes: dict[int, Recorded] = {}
    changes: dict[int, list[Change]] = {}
    for columns in found:
        number, accepted, *old = columns[:7]
        event = events[number - 1]
        # A new event that is not to be stored has none before it.
        before = Recorded.LATE if old[0] is None else compare(event, *old)
        outcomes[number] = Recorded.ACCEPTED if accepted else before
        change = _change(columns[7], event.user_id, columns[8:13], columns[13:18])
        changes.setdefault(number, []).extend([] if change is None else [change])
    return [Record(outcomes[number], tuple(changes[number])) for number in range(1, len(events) + 1)]


async def _fetch_stale(connection: Connection, events: Sequence[Event], statement: str, *values: Any) -> list[Any]:
    try:
        return await connection.fetch(statement, *values)
    except asyncpg.PostgresError as error:
        if error.sqlstate == "LRL02":
            raise stale(events[0].board) from None
        raise


async def remove_user(connection: Connection, board: Board, user_id: str, act: Act) -> list[Row]:
    try:
        found = await connection.fetch(SQL["remove_user"], board.id, act.act_id, act.kind, user_id, act.by, act.at)
    except asyncpg.PostgresError as error:
        if error.sqlstate == "LRL01":
            raise nothing_to_remove(user_id) from None
        raise
    return read_rows(found)


async def best_rows(connection: Connection, ranking: Ranking, limit: int) -> list[Row]:
    return read_rows(await connection.fetch(SQL["best_rows"], ranking.period_id, *signs(ranking), limit))


async def refold(connection: Connection, board: Board, after: str, limit: int) -> list[Refolded]:
    users = [user_id for (user_id,) in await connection.fetch(SQL["next_users"], board.id, after, limit)]
    if not users:
        return []
    between = (board.id, users[0], users[-1])
    periods = tuple(read_period(columns) for columns in await connection.fetch(SQL["open_periods_of"], board.id))
    rows = read_rows(await connection.fetch(SQL["rows_between"], *between))
    bases = read_bases(await connection.fetch(SQL["bases_between"], *between))
    events = await connection.fetch(SQL["events_between"], *between)
    return refold_users(board, periods, users, rows, bases, ((user_id, score, at) for user_id, score, at in events))


async def need_live(connection: Connection, period_id: int) -> None:
    """The rows of a period that is frozen are gone, or on their way out: nobody may take what is left for the truth."""
    if not await connection.fetchval(SQL["need_live"], period_id):
        raise Stale("changed_meanwhile", "The period was frozen a moment ago. Try again.")


def read_bases(found: Iterable[Any]) -> list[tuple[int, str, Standing]]:
    return [
        (period_id, user_id, Standing(score, achieved_at, total, moved))
        for period_id, user_id, score, achieved_at, total, moved in found
    ]


def read_rows(found: Iterable[Any]) -> list[Row]:
    return [
        Row(period_id, user_id, _standing(score, achieved_at, total, moved), version)
        for period_id, user_id, score, achieved_at, total, moved, version in found
    ]


def read_events(found: Iterable[Any]) -> list[StoredEvent]:
    return [StoredEvent(*columns) for columns in found]


def _change(period_id: int | None, user_id: str, before: Sequence[Any], after: Sequence[Any]) -> Change | None:
    """`before` without a version: nothing was added, so the row was what it is. Version 0: it was made just now."""
    *after_standing, after_version = after
    *before_standing, before_version = before
    if period_id is None or after_version is None:
        return None
    row = Row(period_id, user_id, _standing(*after_standing), after_version)
    if before_version is None:
        return Change(row, row)
    return Change(row, Row(period_id, user_id, _standing(*before_standing), before_version) if before_version else None)


def _standing(score: float | None, achieved_at: int, total: str | None, moved: bool) -> Standing | None:
    if score is None:
        return None
    if total is None:
        return Standing(score, achieved_at)
    if score.is_integer() and abs(score) < EXACT_LIMIT and total == str(int(score)):
        return Standing(score, achieved_at, None, moved)
    return Standing(score, achieved_at, spell_total(score, Decimal(total)), moved)
