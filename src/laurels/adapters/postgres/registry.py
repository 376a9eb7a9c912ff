"""Pods, keys and boards in PostgreSQL: plain functions, each of which runs in one transaction."""

from collections.abc import Sequence

from msgspec.structs import replace

from laurels.adapters.postgres.pool import Connection, execute
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.mapping import (
    PURGES,
    changed_meanwhile,
    changed_periods,
    deleted_uuid,
    events_after_end,
    events_ahead,
    insert_values,
    key_values,
    pod_values,
    read_board,
    read_key,
    read_period,
    read_pod,
    read_template,
    template_values,
    update_values,
    with_periods,
)
from laurels.core.board import Board
from laurels.core.quotas import Quotas
from laurels.core.windows import Period, Span
from laurels.errors import Conflict, NotFound
from laurels.ports import BoardUpdate, Key, Pod, Template


async def create_pod(connection: Connection, pod: Pod) -> Pod:
    if await execute(connection, SQL["insert_pod"], pod.pod_id, pod.name, pod.created_at):
        await connection.execute(SQL["registry_changed"])
        return pod
    (found,) = await connection.fetch(SQL["find_pod"], pod.pod_id)
    stored = read_pod(found)
    if stored.name != pod.name:
        raise Conflict("pod_exists", f"The podId {pod.pod_id!r} is taken. Choose another.", field="podId")
    return stored


async def create_key(connection: Connection, key: Key) -> None:
    if key.pod_id is not None:
        await need_pod(connection, key.pod_id)
    if not await execute(connection, SQL["insert_key"], *key_values(key)):
        raise Conflict(
            "key_exists",
            f"This Idempotency-Key already created the key {key.key_id}, whose secret was shown then. "
            "If the secret is lost, revoke that key and create another.",
        )
    await connection.execute(SQL["registry_changed"])


async def keys(connection: Connection) -> list[Key]:
    return [read_key(columns) for columns in await connection.fetch(SQL["keys"])]


async def revoke_key(connection: Connection, key_id: str, now_us: int) -> bool:
    revoked = await execute(connection, SQL["revoke_key"], now_us, key_id)
    await connection.execute(SQL["registry_changed"])
    return bool(revoked)


async def expire_key(connection: Connection, key_id: str, at: int) -> bool:
    changed = await execute(connection, SQL["expire_key"], at, key_id)
    await connection.execute(SQL["registry_changed"])
    return bool(changed)


async def mark_used(connection: Connection, used: Sequence[tuple[str, int]]) -> None:
    # In one order on all servers, so that two of them can't wait for each other.
    await connection.executemany(SQL["key_used"], [(at, key_id) for key_id, at in sorted(used)])


async def change_pod(connection: Connection, pod_id: str, origins: Sequence[str] | None, quotas: Quotas | None) -> Pod:
    await need_pod(connection, pod_id)
    await connection.execute(SQL["change_pod"], *pod_values(pod_id, origins, quotas))
    await connection.execute(SQL["registry_changed"])
    found = await connection.fetchrow(SQL["find_pod"], pod_id)
    assert found is not None, "the pod exists"
    return read_pod(found)


async def add_usage(connection: Connection, day: int, events: Sequence[tuple[str, int]]) -> dict[str, int]:
    await connection.execute(SQL["forget_usage"], day)
    # In one order on all servers, so that two of them can't wait for each other.
    await connection.executemany(SQL["add_usage"], [(pod_id, day, count) for pod_id, count in sorted(events)])
    found = await connection.fetch(SQL["usage_of_day"], day)
    return {columns["pod_id"]: columns["events"] for columns in found}


async def revoke_tokens(connection: Connection, pod_id: str, user_id: str, at: int, forget_before: int) -> None:
    await need_pod(connection, pod_id)
    await connection.execute(SQL["forget_revocations"], forget_before)
    await connection.execute(SQL["revoke_tokens"], pod_id, user_id, at)
    await connection.execute(SQL["registry_changed"])


async def token_revocations(connection: Connection, since: int) -> dict[tuple[str, str], int]:
    found = await connection.fetch(SQL["token_revocations"], since)
    return {(pod_id, user_id): at for pod_id, user_id, at in found}


async def templates(connection: Connection) -> list[Template]:
    return [read_template(columns) for columns in await connection.fetch(SQL["templates"])]


async def put_template(connection: Connection, template: Template) -> Template:
    await need_pod(connection, template.pod_id)
    stored = await connection.fetchrow(SQL["put_template"], *template_values(template))
    await connection.execute(SQL["registry_changed"])
    assert stored is not None, "the statement returns the row"
    return read_template(stored)


async def delete_template(connection: Connection, pod_id: str, name: str) -> bool:
    deleted = await execute(connection, SQL["delete_template"], pod_id, name)
    await connection.execute(SQL["registry_changed"])
    return bool(deleted)


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
        raise changed_meanwhile()
    await connection.execute(SQL["registry_changed"])
    await connection.executemany(SQL["update_period"], changed_periods(change.periods))
    return await _add_periods(connection, replace(board, revision=board.revision + 1), change.spans)


async def delete_board(connection: Connection, board: Board, now_us: int) -> None:
    await connection.execute(SQL["lock_board"], board.id)
    if not await execute(connection, SQL["delete_board"], now_us, deleted_uuid(board), board.id, board.revision):
        raise changed_meanwhile()
    await connection.execute(SQL["end_periods_of_board"], board.id)
    await connection.execute(SQL["end_actions_of_board"], now_us, board.id)
    await connection.execute(SQL["registry_changed"])


async def boards_to_purge(connection: Connection) -> list[int]:
    return [found["id"] for found in await connection.fetch(SQL["boards_to_purge"])]


async def purge_board(connection: Connection, board_id: int, limit: int) -> int:
    for name in PURGES:
        removed = await execute(connection, SQL[name], board_id, limit)
        if removed:
            return removed
    await connection.execute(SQL["board_purged"], board_id)
    return 0


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
