"""Events and rows in PostgreSQL: plain functions on a connection. Scores are folded by the database itself, in the
functions of the schema; here is what goes in and comes out.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from decimal import Decimal
from typing import Any

import asyncpg

from laurels.adapters.postgres.pool import Connection
from laurels.adapters.sql_files import load_queries
from laurels.adapters.sql_ledger import (
    HIDDEN,
    begin_folds,
    compare,
    fold_events,
    nothing_to_remove,
    read_period,
    read_profile,
    refold_users,
    refreeze_running,
    stale,
)
from laurels.core.board import Board, Ranking
from laurels.core.order import Order, Ties
from laurels.core.scores import EXACT_LIMIT, Rule, Standing, exact_text, spell_total
from laurels.errors import Stale
from laurels.ports import Act, Change, Event, Record, Recorded, Refolded, Row, StoredAct, StoredEvent

SQL = load_queries("laurels.adapters.postgres")

LAST_SEQ = 2**63 - 1
CHUNK_EVENTS = 5000
PAGE_EVENTS = 500_000


def signs(ranking: Ranking) -> tuple[float, int]:
    """What scores and times are multiplied with, so that the smaller is ahead."""
    return 1.0 if ranking.order is Order.ASC else -1.0, -1 if ranking.ties is Ties.LATEST else 1


async def record(connection: Connection, events: Sequence[Event], history: str) -> list[Record]:
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
        [event.region for event in events],
        history,
    )
    outcomes: dict[int, Recorded] = {}
    changes: dict[int, list[Change]] = {}
    moved: dict[str, list[Row]] = {}
    for columns in found:
        number, accepted, erased, *old = columns[:8]
        if not number:
            moved.setdefault(old[0], []).extend(read_rows([(columns[8], old[0], *columns[14:21])]))
            continue
        event = events[number - 1]
        if erased:
            outcomes[number], changes[number] = Recorded.ERASED, []
            continue
        # A new event that is not to be stored has none before it.
        before = Recorded.LATE if old[0] is None else compare(event, *old)
        outcomes[number] = Recorded.ACCEPTED if accepted else before
        change = _change(columns[8], event.user_id, columns[9:14], columns[14:21])
        changes.setdefault(number, []).extend([] if change is None else [change])
    return [
        Record(outcomes[number], tuple(changes[number]), _others(event, moved, changes[number]))
        for number, event in enumerate(events, 1)
    ]


def _others(event: Event, moved: dict[str, list[Row]], changes: Sequence[Change]) -> tuple[Row, ...]:
    if event.region is None or not moved:
        return ()
    own = {change.row.period_id for change in changes}
    return tuple(row for row in moved.get(event.user_id, ()) if row.period_id not in own)


def exact_total(board: Board, standing: Standing) -> str | None:
    """What stands in the column `total`."""
    return (standing.total or exact_text(standing.score)) if board.rule is Rule.INCREMENT else None


async def refold_rows(connection: Connection, board: Board, user_ids: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Fold what counts of some users' events anew, and give their rows.

    `rows`: what they were, in open periods, locked.
    """
    asked = (board.id, list(user_ids))
    periods = tuple(read_period(columns) for columns in await connection.fetch(SQL["open_periods_of"], board.id))
    bases = read_bases(await connection.fetch(SQL["bases_of_users"], *asked))
    folds = begin_folds(user_ids, bases)
    # One user may have very many.
    async for some in _chunks(connection, SQL["events_of_users"], *asked):
        fold_events(board, periods, folds, some)
        await asyncio.sleep(0)
    fresh = {(period_id, user_id): standing for user_id, own in folds.items() for period_id, standing in own.items()}
    stored = {(row.period_id, row.user_id): row.standing for row in rows}
    await _need_rows(connection, board, sorted(set(fresh) - set(stored)))
    changed = [
        (period_id, user_id, fresh.get((period_id, user_id)))
        for period_id, user_id in sorted({*fresh, *stored})
        if fresh.get((period_id, user_id)) != stored.get((period_id, user_id))
    ]
    if changed:
        await connection.execute(
            SQL["refolded_rows"],
            [period_id for period_id, _, _ in changed],
            [user_id for _, user_id, _ in changed],
            [standing and standing.score for _, _, standing in changed],
            [standing and standing.achieved_at for _, _, standing in changed],
            [None if standing is None else exact_total(board, standing) for _, _, standing in changed],
            [standing is not None and standing.moved for _, _, standing in changed],
        )
        users = sorted({user_id for _, user_id, _ in changed})
        await connection.execute(SQL["touch"], [board.id] * len(users), users)
    return read_rows(await connection.fetch(SQL["rows_of_users_now"], *asked))


async def _need_rows(connection: Connection, board: Board, places: Sequence[tuple[int, str]]) -> None:
    """Users whose last row was swept, and whose events count again."""
    if places:
        users = sorted({user_id for _, user_id in places}, key=str.encode)
        await connection.execute(SQL["need_profiles"], board.pod_id, users)
        await connection.execute(SQL["lock_profiles"], board.pod_id, users)
        await connection.execute(
            SQL["need_rows"], board.id, [period_id for period_id, _ in places], [user_id for _, user_id in places]
        )


async def _chunks(connection: Connection, query: str, *values: Any) -> AsyncIterator[list[Any]]:
    cursor = await connection.cursor(query, *values)
    while rows := await cursor.fetch(CHUNK_EVENTS):
        yield rows


async def _fetch_stale(connection: Connection, events: Sequence[Event], statement: str, *values: Any) -> list[Any]:
    try:
        return await connection.fetch(statement, *values)
    except asyncpg.PostgresError as error:
        if error.sqlstate in {"LRL02", "LRL03"}:
            raise stale(events[0].board) from None
        raise


async def remove_user(connection: Connection, board: Board, user_id: str, act: Act) -> list[Row]:
    await connection.execute(SQL["share_board"], board.id)
    await need_no_refreeze(connection, [board.id])
    try:
        found = await connection.fetch(
            SQL["remove_user"], board.id, act.act_id, act.kind, user_id, act.by, act.at, act.reason
        )
    except asyncpg.PostgresError as error:
        if error.sqlstate == "LRL01":
            raise nothing_to_remove(user_id) from None
        raise
    return read_rows(found)


async def insert_act(connection: Connection, pod_id: str, board_id: int, user_id: str | None, act: Act) -> int | None:
    """Its number; None: it is there already."""
    values = (pod_id, board_id, act.act_id, act.kind, user_id, act.by, act.at, act.reason, act.detail)
    found = await connection.fetchval(SQL["insert_act"], *values)
    return None if found is None else int(found)


async def act_by_key(connection: Connection, pod_id: str, board_id: int, act: Act) -> StoredAct:
    (found,) = await connection.fetch(SQL["act_by_key"], pod_id, board_id, act.act_id)
    return StoredAct(*found)


async def need_no_refreeze(connection: Connection, board_ids: Sequence[int]) -> None:
    if await connection.fetchval(SQL["is_refreezing"], list(board_ids)):
        raise refreeze_running()


async def best_rows(connection: Connection, ranking: Ranking, limit: int) -> list[Row]:
    return read_rows(await connection.fetch(SQL["best_rows"], ranking.period_id, *signs(ranking), limit))


async def refold(connection: Connection, board: Board, after: str, limit: int) -> list[Refolded]:
    users = [user_id for (user_id,) in await connection.fetch(SQL["next_users"], board.id, after, limit)]
    if not users:
        return []
    between = (board.id, users[0], users[-1])
    periods = tuple(read_period(columns) for columns in await connection.fetch(SQL["open_periods_of"], board.id))
    folds = begin_folds(users, read_bases(await connection.fetch(SQL["bases_between"], *between)))
    page = EventPage(connection, SQL["events_between"], *between)
    async for some in page.chunks():
        fold_events(board, periods, folds, some)
        await asyncio.sleep(0)
    users = page.covered(users)
    between = (board.id, users[0], users[-1])
    rows = read_rows(await connection.fetch(SQL["rows_between"], *between))
    of_pod = (board.pod_id, users[0], users[-1])
    profiles = await connection.fetch(SQL["profiles_between"], *of_pod) if board.is_segmented else []
    hides = await connection.fetch(SQL["hides_between"], *of_pod)
    return refold_users(
        board,
        periods,
        users,
        rows,
        folds,
        map(read_profile, profiles),
        ((user_id, board_id, hidden) for user_id, board_id, hidden in hides),
    )


class EventPage:
    """The events of some users, one user after the other. It ends early, between two users, if they have very many: no
    call takes for ever, and none needs the memory for all of them.
    """

    def __init__(self, connection: Connection, query: str, *values: object) -> None:
        self._found = _chunks(connection, query, *values)
        self._last: str | None = None

    async def chunks(self) -> AsyncIterator[list[Any]]:
        read = 0
        last: str | None = None
        async for some in self._found:
            if read >= PAGE_EVENTS and some[-1]["user_id"] != last:
                self._last = last
                yield [event for event in some if event["user_id"] == last]
                return
            yield some
            read += len(some)
            last = some[-1]["user_id"]

    def covered(self, users: list[str]) -> list[str]:
        """Those of the users whose events were all given."""
        return users if self._last is None else users[: users.index(self._last) + 1]


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
        Row(
            period_id,
            user_id,
            _standing(score, achieved_at, total, moved),
            version,
            () if segments is None else tuple(segments.split()),
            HIDDEN[hidden],
        )
        for period_id, user_id, score, achieved_at, total, moved, version, hidden, segments in found
    ]


def read_events(found: Iterable[Any]) -> list[StoredEvent]:
    return [StoredEvent(*columns) for columns in found]


def _change(period_id: int | None, user_id: str, before: Sequence[Any], after: Sequence[Any]) -> Change | None:
    """`before` without a version: nothing was added, so the row was what it is. Version 0: it was made just now."""
    after_version = after[4]
    *before_standing, before_version = before
    if period_id is None or after_version is None:
        return None
    (row,) = read_rows([(period_id, user_id, *after)])
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
