"""Pods, keys and boards in SQLite: plain functions, each of which runs in one transaction."""

import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

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
from laurels.adapters.sqlite.sql import SQL
from laurels.core.board import Board
from laurels.core.quotas import Quotas
from laurels.core.windows import Period, Span
from laurels.errors import Conflict, NotFound
from laurels.ports import AsOf, BoardUpdate, FreeInstant, Key, Pod, Template


def ledger_id(connection: sqlite3.Connection) -> str:
    return str(connection.execute(SQL["ledger_id"]).fetchone()[0])


def as_of(connection: sqlite3.Connection) -> AsOf:
    found = connection.execute(SQL["forgotten_version"]).fetchone()
    return AsOf(ledger_id(connection), 0 if found is None else int(found[0]))


def registry_revision(connection: sqlite3.Connection) -> int:
    return int(connection.execute(SQL["registry_revision"]).fetchone()[0])


def create_pod(connection: sqlite3.Connection, pod: Pod) -> Pod:
    if connection.execute(SQL["insert_pod"], (pod.pod_id, pod.name, pod.created_at)).rowcount:
        connection.execute(SQL["registry_changed"])
    stored = read_pod(connection.execute(SQL["find_pod"], (pod.pod_id,)).fetchone())
    if stored.name != pod.name:
        raise Conflict("pod_exists", f"The podId {pod.pod_id!r} is taken. Choose another.", field="podId")
    return stored


def pods(connection: sqlite3.Connection) -> list[Pod]:
    return [read_pod(columns) for columns in connection.execute(SQL["pods"])]


def change_pod(
    connection: sqlite3.Connection, pod_id: str, origins: Sequence[str] | None, quotas: Quotas | None
) -> Pod:
    need_pod(connection, pod_id)
    connection.execute(SQL["change_pod"], pod_values(pod_id, origins, quotas))
    connection.execute(SQL["registry_changed"])
    return read_pod(connection.execute(SQL["find_pod"], (pod_id,)).fetchone())


def add_usage(connection: sqlite3.Connection, day: int, events: Sequence[tuple[str, int]]) -> dict[str, int]:
    connection.execute(SQL["forget_usage"], (day,))
    connection.executemany(SQL["add_usage"], [(pod_id, day, count) for pod_id, count in events])
    return dict(connection.execute(SQL["usage_of_day"], (day,)))


def create_key(connection: sqlite3.Connection, key: Key) -> None:
    if key.pod_id is not None:
        need_pod(connection, key.pod_id)
    if not connection.execute(SQL["insert_key"], key_values(key)).rowcount:
        raise Conflict(
            "key_exists",
            f"This Idempotency-Key already created the key {key.key_id}, whose secret was shown then. "
            "If the secret is lost, revoke that key and create another.",
        )
    connection.execute(SQL["registry_changed"])


def keys(connection: sqlite3.Connection) -> list[Key]:
    return [read_key(columns) for columns in connection.execute(SQL["keys"])]


def revoke_key(connection: sqlite3.Connection, key_id: str, now_us: int) -> bool:
    revoked = connection.execute(SQL["revoke_key"], (now_us, key_id)).rowcount
    connection.execute(SQL["registry_changed"])
    return bool(revoked)


def expire_key(connection: sqlite3.Connection, key_id: str, at: int) -> bool:
    changed = connection.execute(SQL["expire_key"], (at, key_id)).rowcount
    connection.execute(SQL["registry_changed"])
    return bool(changed)


def mark_used(connection: sqlite3.Connection, used: Sequence[tuple[str, int]]) -> None:
    connection.executemany(SQL["key_used"], [(at, key_id) for key_id, at in used])


def revoke_tokens(connection: sqlite3.Connection, pod_id: str, user_id: str, at: int, forget_before: int) -> None:
    need_pod(connection, pod_id)
    connection.execute(SQL["forget_revocations"], (forget_before,))
    connection.execute(SQL["revoke_tokens"], (pod_id, user_id, at))
    connection.execute(SQL["registry_changed"])


def token_revocations(connection: sqlite3.Connection, since: int) -> dict[tuple[str, str], int]:
    return {(pod_id, user_id): at for pod_id, user_id, at in connection.execute(SQL["token_revocations"], (since,))}


def templates(connection: sqlite3.Connection) -> list[Template]:
    return [read_template(columns) for columns in connection.execute(SQL["templates"])]


def put_template(connection: sqlite3.Connection, template: Template) -> Template:
    need_pod(connection, template.pod_id)
    stored = connection.execute(SQL["put_template"], template_values(template)).fetchone()
    connection.execute(SQL["registry_changed"])
    return read_template(stored)


def delete_template(connection: sqlite3.Connection, pod_id: str, name: str) -> bool:
    deleted = connection.execute(SQL["delete_template"], (pod_id, name)).rowcount
    connection.execute(SQL["registry_changed"])
    return bool(deleted)


def create_board(connection: sqlite3.Connection, board: Board, spans: Sequence[Span]) -> Board:
    need_pod(connection, board.pod_id)
    inserted = connection.execute(SQL["insert_board"], insert_values(board)).fetchone()
    if inserted is None:
        raise Conflict("board_exists", f"The UUID {board.uuid!r} is taken. Choose another.", field="UUID")
    connection.execute(SQL["registry_changed"])
    return _add_periods(connection, replace(board, id=inserted[0]), spans)


def update_board(connection: sqlite3.Connection, change: BoardUpdate, now_us: int) -> Board:
    board, free_from = change.board, change.free_from
    if free_from is not None and (
        free_from <= now_us or latest_event_ahead(connection, board.id, free_from) is not None
    ):
        raise events_ahead()
    if change.ends_at is not None and _has_events_from(connection, board.id, change.ends_at, now_us):
        raise events_after_end()
    updated = connection.execute(SQL["update_board"], update_values(board))
    if not updated.rowcount:
        raise changed_meanwhile()
    connection.execute(SQL["registry_changed"])
    connection.executemany(SQL["update_period"], changed_periods(change.periods))
    return _add_periods(connection, replace(board, revision=board.revision + 1), change.spans)


def delete_board(connection: sqlite3.Connection, board: Board, now_us: int) -> None:
    deleted = connection.execute(SQL["delete_board"], (now_us, deleted_uuid(board), board.id, board.revision))
    if not deleted.rowcount:
        raise changed_meanwhile()
    connection.execute(SQL["end_periods_of_board"], (board.id,))
    connection.execute(SQL["end_actions_of_board"], (now_us, board.id))
    connection.execute(SQL["registry_changed"])


def boards_to_purge(connection: sqlite3.Connection) -> list[int]:
    return [board_id for (board_id,) in connection.execute(SQL["boards_to_purge"])]


def purge_board(connection: sqlite3.Connection, board_id: int, limit: int) -> int:
    for name in PURGES:
        removed = connection.execute(SQL[name], (board_id, limit)).rowcount
        if removed:
            return removed
    connection.execute(SQL["board_purged"], (board_id,))
    return 0


def boards(connection: sqlite3.Connection, ids: Sequence[int] | None) -> list[Board]:
    asked = (None if ids is None else str(list(ids)),)
    periods: dict[int, list[Period]] = {}
    for board_id, *columns in connection.execute(SQL["live_periods"], asked):
        periods.setdefault(board_id, []).append(read_period(columns))
    found = connection.execute(SQL["boards"], asked)
    return [read_board(columns, tuple(periods.get(columns[0], ()))) for columns in found]


def free_instant(connection: sqlite3.Connection, board_id: int, start: int) -> FreeInstant:
    ahead = latest_event_ahead(connection, board_id, start)
    (last_number,) = connection.execute(SQL["last_event_number"]).fetchone()
    return FreeInstant(start if ahead is None else ahead + 1, int(last_number))


def _has_events_from(connection: sqlite3.Connection, board_id: int, free: FreeInstant, now_us: int) -> bool:
    since = free.since
    if since is None and free.at > now_us:
        # The instant is in the future: only events with a time ahead of the clock can be there.
        (since,) = connection.execute(SQL["last_event_number"]).fetchone()
    return bool(connection.execute(SQL["has_events_from"], (board_id, free.at, since)).fetchone()[0])


def latest_event_ahead(connection: sqlite3.Connection, board_id: int, of: int) -> int | None:
    (latest,) = connection.execute(SQL["latest_event_ahead"], (board_id, of)).fetchone()
    return None if latest is None else int(latest)


def _add_periods(connection: sqlite3.Connection, board: Board, spans: Sequence[Span]) -> Board:
    added = []
    for span in spans:
        (period_id,) = connection.execute(
            SQL["insert_period"], (board.id, span.window, span.name, span.start, span.end)
        ).fetchone()
        added.append(Period(period_id, span.window, span.name, span.start, span.end))
    return with_periods(board, added)


def need_pod(connection: sqlite3.Connection, pod_id: str) -> None:
    if connection.execute(SQL["find_pod"], (pod_id,)).fetchone() is None:
        raise NotFound("pod_not_found", f"There is no pod {pod_id!r}.", field="podId")
