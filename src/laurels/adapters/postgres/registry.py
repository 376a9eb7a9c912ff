"""Pods, keys and boards in PostgreSQL: plain functions, each of which runs in one transaction."""

from collections.abc import Sequence

from msgspec.structs import replace

from laurels.adapters.postgres.pool import Connection, execute
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.mapping import (
    changed_periods,
    events_after_end,
    events_ahead,
    insert_values,
    read_board,
    read_period,
    update_values,
    with_periods,
)
from laurels.core.board import Board
from laurels.core.windows import Period, Span
from laurels.errors import Conflict, NotFound
from laurels.ports import BoardUpdate, Key, Pod, Role


async def create_pod(connection: Connection, pod: Pod) -> Pod:
    if await execute(connection, SQL["insert_pod"], pod.pod_id, pod.name, pod.created_at):
        await connection.execute(SQL["registry_changed"])
        return pod
    (found,) = await connection.fetch(SQL["find_pod"], pod.pod_id)
    stored = Pod(*found)
    if stored.name != pod.name:
        raise Conflict("pod_exists", f"The podId {pod.pod_id!r} is taken. Choose another.", field="podId")
    return stored


async def create_key(connection: Connection, key: Key) -> None:
    await need_pod(connection, key.pod_id)
    inserted = await execute(
        connection, SQL["insert_key"], key.key_id, key.pod_id, key.role.value, key.label, key.digest, key.created_at
    )
    if not inserted:
        raise Conflict(
            "key_exists",
            f"This Idempotency-Key already created the key {key.key_id}, whose secret was shown then. "
            "If the secret is lost, revoke that key and create another.",
        )
    await connection.execute(SQL["registry_changed"])


async def keys(connection: Connection) -> list[Key]:
    return [
        Key(key_id, pod_id, Role(role), label, digest, created_at)
        for key_id, pod_id, role, label, digest, created_at in await connection.fetch(SQL["keys"])
    ]


async def revoke_key(connection: Connection, key_id: str, now_us: int) -> bool:
    revoked = await execute(connection, SQL["revoke_key"], now_us, key_id)
    await connection.execute(SQL["registry_changed"])
    return bool(revoked)


async def create_board(connection: Connection, board: Board, spans: Sequence[Span]) -> Board:
    await need_pod(connection, board.pod_id)
    board_id = await connection.fetchval(SQL["insert_board"], *insert_values(board))
    if board_id is None:
        raise Conflict("board_exists", f"The UUID {board.uuid!r} is taken. Choose another.", field="UUID")
    await connection.execute(SQL["registry_changed"])
    return await _add_periods(connection, replace(board, id=board_id), spans)


async def update_board(connection: Connection, change: BoardUpdate) -> Board:
    board, free_from = change.board, change.free_from
    await connection.execute(SQL["lock_board"], board.id)
    if free_from is not None and (
        free_from <= await connection.fetchval(SQL["now_us"])
        or await connection.fetchval(SQL["latest_event_ahead"], board.id, free_from) is not None
    ):
        raise events_ahead()
    ends = change.ends_at
    if ends is not None and await connection.fetchval(SQL["has_events_from"], board.id, ends.at, ends.since):
        raise events_after_end()
    if not await execute(connection, SQL["update_board"], *update_values(board)):
        raise Conflict("changed_meanwhile", "This board was changed at the same time. Read it and try again.")
    await connection.execute(SQL["registry_changed"])
    await connection.executemany(SQL["update_period"], changed_periods(change.periods))
    return await _add_periods(connection, replace(board, revision=board.revision + 1), change.spans)


async def boards(connection: Connection, ids: Sequence[int] | None) -> list[Board]:
    asked = None if ids is None else list(ids)
    periods: dict[int, list[Period]] = {}
    for board_id, *columns in await connection.fetch(SQL["live_periods"], asked):
        periods.setdefault(board_id, []).append(read_period(columns))
    return [
        read_board(tuple(columns), tuple(periods.get(columns[0], ())))
        for columns in await connection.fetch(SQL["boards"], asked)
    ]


async def _add_periods(connection: Connection, board: Board, spans: Sequence[Span]) -> Board:
    added = []
    for span in spans:
        period_id = await connection.fetchval(
            SQL["insert_period"], board.id, span.window, span.name, span.start, span.end
        )
        added.append(Period(period_id, span.window, span.name, span.start, span.end))
    return with_periods(board, added)


async def need_pod(connection: Connection, pod_id: str) -> None:
    if await connection.fetchrow(SQL["find_pod"], pod_id) is None:
        raise NotFound("pod_not_found", f"There is no pod {pod_id!r}.", field="podId")
