"""Events and rows in PostgreSQL: plain functions on a connection.

The functions of the schema fold scores in the database. This module passes their parameters and reads their results.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from decimal import Decimal
from typing import Any

import asyncpg

from laurels.adapters.postgres.pool import Connection
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.mapping import (
    begin_folds,
    fold_events,
    folding_order,
    nothing_to_remove,
    read_hidden,
    read_period,
    read_profile,
    refold_users,
    refreeze_running,
)
from laurels.core.board import Board, Ranking
from laurels.core.order import Order, Ties
from laurels.core.scores import EXACT_LIMIT, Standing, exact_text, format_total
from laurels.errors import Stale
from laurels.ports import (
    ModerationAction,
    Refolded,
    Row,
    StoredAction,
    StoredEvent,
)

LAST_SEQ = 2**63 - 1
CHUNK_EVENTS = 5000
PAGE_EVENTS = 500_000


def signs(ranking: Ranking) -> tuple[float, int]:
    """Return the factors for scores and times with which the smaller product ranks first."""
    return 1.0 if ranking.order is Order.ASC else -1.0, -1 if ranking.ties is Ties.LATEST else 1


def sub_sign(ranking: Ranking) -> int:
    """Return the factor for subscores with which the smaller product ranks first."""
    return -1 if ranking.subscore is Order.DESC else 1


def exact_total(board: Board, standing: Standing) -> str | None:
    """Return the value of the column `total`: the exact sum if the board adds scores up, else None."""
    return (standing.total or exact_text(standing.score)) if board.adds else None


async def refold_rows(connection: Connection, board: Board, user_ids: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Fold the events of some users again, without void ones, and return their rows in open periods.

    `rows` are the rows before, which the caller has locked.
    """
    asked = (board.id, list(user_ids))
    periods = tuple(read_period(columns) for columns in await connection.fetch(SQL["open_periods_of"], board.id))
    bases = read_bases(await connection.fetch(SQL["bases_of_users"], *asked))
    folds = begin_folds(user_ids, bases)
    # In chunks, because one user may have very many events.
    async for some in _chunks(connection, SQL[folding_order(board, "events_of_users")], *asked):
        fold_events(board, periods, folds, some)
        await asyncio.sleep(0)
    fresh = {(period_id, user_id): standing for user_id, own in folds.items() for period_id, standing in own.items()}
    stored = {(row.period_id, row.user_id): row.standing for row in rows}
    await need_rows(connection, board, sorted(set(fresh) - set(stored)))
    changed = [
        (period_id, user_id, fresh.get((period_id, user_id)))
        for period_id, user_id in sorted({*fresh, *stored})
        if fresh.get((period_id, user_id)) != stored.get((period_id, user_id))
    ]
    if changed:
        await connection.execute(
            SQL["update_refolded_rows"],
            [period_id for period_id, _, _ in changed],
            [user_id for _, user_id, _ in changed],
            [standing and standing.score for _, _, standing in changed],
            [standing and standing.achieved_at for _, _, standing in changed],
            [None if standing is None else exact_total(board, standing) for _, _, standing in changed],
            [standing is not None and standing.has_nonzero for _, _, standing in changed],
            [0 if standing is None else standing.subscore for _, _, standing in changed],
            [standing and standing.last_at for _, _, standing in changed],
        )
        users = sorted({user_id for _, user_id, _ in changed})
        await connection.execute(SQL["touch"], [board.id] * len(users), users)
    return read_rows(await connection.fetch(SQL["rows_of_users_now"], *asked))


async def need_rows_of_events(connection: Connection, board: Board, voided_by: int, seqs: Sequence[int]) -> None:
    """Create the rows in which some void events will count, so that the caller can lock them."""
    found = await connection.fetch(SQL["missing_rows_of_events"], board.id, list(seqs), voided_by)
    await need_rows(connection, board, sorted((period_id, user_id) for period_id, user_id in found))


async def need_rows(connection: Connection, board: Board, keys: Sequence[tuple[int, str]]) -> None:
    """Create the rows of users whose last row was swept and whose events count again."""
    if keys:
        users = sorted({user_id for _, user_id in keys}, key=str.encode)
        await connection.execute(SQL["need_profiles"], board.pod_id, users)
        await connection.execute(SQL["lock_profiles"], board.pod_id, users)
        await connection.execute(
            SQL["need_rows"], board.id, [period_id for period_id, _ in keys], [user_id for _, user_id in keys]
        )


async def _chunks(connection: Connection, query: str, *values: Any) -> AsyncIterator[list[Any]]:
    cursor = await connection.cursor(query, *values)
    while rows := await cursor.fetch(CHUNK_EVENTS):
        yield rows


async def remove_user(connection: Connection, board: Board, user_id: str, act: ModerationAction) -> list[Row]:
    try:
        found = await connection.fetch(
            SQL["remove_user"], board.id, act.action_id, act.kind, user_id, act.by, act.at, act.reason
        )
    except asyncpg.PostgresError as error:
        if error.sqlstate == "LRL01":
            raise nothing_to_remove(user_id) from None
        if error.sqlstate == "LRL04":
            raise refreeze_running() from None
        raise
    return read_rows(found)


async def insert_action(
    connection: Connection, pod_id: str, board_id: int, user_id: str | None, act: ModerationAction
) -> int | None:
    """Insert an action, and return its id; None if it exists already."""
    values = (pod_id, board_id, act.action_id, act.kind, user_id, act.by, act.at, act.reason, act.detail)
    found = await connection.fetchval(SQL["insert_action"], *values)
    return None if found is None else int(found)


async def action_by_key(connection: Connection, pod_id: str, board_id: int, act: ModerationAction) -> StoredAction:
    (found,) = await connection.fetch(SQL["action_by_key"], pod_id, board_id, act.action_id)
    return StoredAction(*found)


async def need_no_refreeze(connection: Connection, board_ids: Sequence[int]) -> None:
    if await connection.fetchval(SQL["is_refreezing"], list(board_ids)):
        raise refreeze_running()


async def refold(connection: Connection, board: Board, after: str, limit: int) -> list[Refolded]:
    users = [user_id for (user_id,) in await connection.fetch(SQL["next_users"], board.id, after, limit)]
    if not users:
        return []
    between = (board.id, users[0], users[-1])
    periods = tuple(read_period(columns) for columns in await connection.fetch(SQL["open_periods_of"], board.id))
    folds = begin_folds(users, read_bases(await connection.fetch(SQL["bases_between"], *between)))
    page = EventPage(connection, SQL[folding_order(board, "events_between")], *between)
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
    """The events of some users, one user after the other, in chunks.

    Ends early, between two users, after PAGE_EVENTS events, so that no call takes too long or needs the memory for all
    events.
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
        """Return those of the users whose events have all been yielded."""
        return users if self._last is None else users[: users.index(self._last) + 1]


async def need_live(connection: Connection, period_id: int) -> None:
    """Raise `Stale` if a period is frozen, because its rows are removed, or will be, and may be incomplete."""
    if not await connection.fetchval(SQL["need_live"], period_id):
        raise Stale("changed_meanwhile", "The period was frozen a moment ago. Try again.")


def read_bases(found: Iterable[Any]) -> list[tuple[int, str, Standing]]:
    return [
        (period_id, user_id, Standing(score, achieved_at, total, has_nonzero, subscore, last_at))
        for period_id, user_id, score, achieved_at, total, has_nonzero, subscore, last_at in found
    ]


def read_rows(found: Iterable[Any]) -> list[Row]:
    return [
        Row(
            period_id,
            user_id,
            read_standing(score, achieved_at, total, has_nonzero, subscore, last_at),
            version,
            () if segments is None else tuple(segments.split()),
            *read_hidden(hidden),
        )
        for (
            period_id,
            user_id,
            score,
            achieved_at,
            total,
            has_nonzero,
            version,
            hidden,
            segments,
            subscore,
            last_at,
        ) in found
    ]


def read_events(found: Iterable[Any]) -> list[StoredEvent]:
    return [StoredEvent(*columns) for columns in found]


def read_standing(
    score: float | None, achieved_at: int, total: str | None, has_nonzero: bool, subscore: int, last_at: int | None
) -> Standing | None:
    if score is None:
        return None
    if total is None:
        return Standing(score, achieved_at, None, has_nonzero, subscore, last_at)
    if score.is_integer() and abs(score) < EXACT_LIMIT and total == str(int(score)):
        return Standing(score, achieved_at, None, has_nonzero, subscore, last_at)
    return Standing(score, achieved_at, format_total(score, Decimal(total)), has_nonzero, subscore, last_at)
