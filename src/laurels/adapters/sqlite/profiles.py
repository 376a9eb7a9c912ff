"""The ProfileStore in SQLite: profiles, hidden users, moderation actions, erasures."""

import json
import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

from laurels.adapters.sql.mapping import (
    changed_profile,
    digest_of,
    format_circles,
    quoted_user,
    read_profile,
    read_review,
    refreeze_running,
    with_hides,
)
from laurels.adapters.sqlite import scores
from laurels.adapters.sqlite.sql import SQL
from laurels.adapters.sqlite.threads import SqliteThreads
from laurels.core.board import Board
from laurels.core.people import Hidden, Profile, ProfileChange, name_key, name_range
from laurels.ports import ActionStep, Erasure, ModerationAction, Row, StoredAction, StoredEvent, StoredReview


class SqliteProfileStore:
    def __init__(self, threads: SqliteThreads) -> None:
        self._threads = threads

    # Profiles

    async def profiles(self, pod_id: str, user_ids: Sequence[str]) -> list[Profile]:
        asked = (pod_id, json.dumps(list(user_ids)))
        found = await self._threads.read(lambda c: c.execute(SQL["profiles"], asked).fetchall())
        return [read_profile(columns) for columns in found]

    async def page(self, pod_id: str, after: str, limit: int) -> list[tuple[Profile, dict[int, Hidden]]]:
        def read(connection: sqlite3.Connection) -> list[tuple[Profile, dict[int, Hidden]]]:
            found = connection.execute(SQL["profiles_page"], (pod_id, after, limit))
            profiles = [read_profile(columns) for columns in found]
            if not profiles:
                return []
            between = (pod_id, profiles[0].user_id, profiles[-1].user_id)
            return with_hides(profiles, connection.execute(SQL["hides_between"], between))

        return await self._threads.read(read)

    async def has_names(self, pod_id: str) -> bool:
        return await self._threads.read(lambda c: c.execute(SQL["has_names"], (pod_id,)).fetchone()) is not None

    async def users_named(self, pod_id: str, beginning: str, limit: int) -> list[str]:
        asked = (pod_id, *name_range(beginning), limit)
        found = await self._threads.read(lambda c: c.execute(SQL["users_named"], asked).fetchall())
        return [user_id for (user_id,) in found]

    async def change_profiles(self, pod_id: str, changes: Sequence[ProfileChange], at: int) -> list[Row]:
        return await self._threads.write(lambda c: _change_profiles(c, pod_id, changes, at))

    # Hidden users

    async def hide(
        self, pod_id: str, board_id: int, user_id: str, hidden: Hidden, act: ModerationAction
    ) -> tuple[int, list[Row]]:
        return await self._threads.write(lambda c: _hide(c, pod_id, board_id, user_id, hidden, act))

    async def hides(self, pod_id: str, user_id: str) -> dict[int, Hidden]:
        return await self._threads.read(lambda c: scores.find_hides(c, pod_id, user_id))

    # Moderation actions

    async def begin_action(
        self, pod_id: str, board_id: int, user_id: str | None, act: ModerationAction
    ) -> StoredAction:
        def begin(connection: sqlite3.Connection) -> StoredAction:
            if scores.insert_action(connection, pod_id, board_id, user_id, act) is not None:
                scores.need_no_refreeze(connection, board_id)
            return scores.action_by_key(connection, pod_id, board_id, act)

        return await self._threads.write(begin)

    async def finish_action(self, act: StoredAction, now: int, undoes: int | None = None) -> StoredAction:
        def finish(connection: sqlite3.Connection) -> StoredAction:
            connection.execute(SQL["end_action"], (now, act.id))
            if undoes is not None:
                connection.execute(SQL["undo_action"], (act.id, undoes))
            return StoredAction(*connection.execute(SQL["find_action"], (act.pod_id, act.id)).fetchone())

        return await self._threads.write(finish)

    async def find_action(self, pod_id: str, act_id: int) -> StoredAction | None:
        found = await self._threads.read(lambda c: c.execute(SQL["find_action"], (pod_id, act_id)).fetchone())
        return None if found is None else StoredAction(*found)

    async def actions(self, pod_id: str, board_id: int | None, before: int, limit: int) -> list[StoredAction]:
        asked = (pod_id, board_id, before, limit)
        found = await self._threads.read(lambda c: c.execute(SQL["actions"], asked).fetchall())
        return [StoredAction(*columns) for columns in found]

    async def actions_of_user(self, pod_id: str, user_id: str) -> list[StoredAction]:
        found = await self._threads.read(lambda c: c.execute(SQL["actions_of_user"], (pod_id, user_id)).fetchall())
        return [StoredAction(*columns) for columns in found]

    async def unfinished_actions(self, before: int) -> list[StoredAction]:
        found = await self._threads.read(lambda c: c.execute(SQL["unfinished_actions"], (before,)).fetchall())
        return [StoredAction(*columns) for columns in found]

    # Void events

    async def events_by_id(self, board_id: int, event_ids: Sequence[str]) -> list[StoredEvent]:
        asked = (board_id, json.dumps(list(event_ids)))
        return await self._threads.read(lambda c: scores.read_events(c.execute(SQL["events_by_id"], asked)))

    async def events_like(
        self, board_id: int, texts: Sequence[str], after_seq: int, before: int, limit: int
    ) -> tuple[list[StoredEvent], int | None]:
        until = after_seq + limit
        asked = (after_seq, until, board_id, before, json.dumps(list(texts)))

        def look(connection: sqlite3.Connection) -> tuple[list[StoredEvent], int | None]:
            (last,) = connection.execute(SQL["last_seq"]).fetchone()
            return scores.read_events(connection.execute(SQL["events_like"], asked)), until if until < last else None

        return await self._threads.read(look)

    async def voided_by(self, act_id: int, limit: int) -> list[StoredEvent]:
        return await self._threads.read(lambda c: scores.read_events(c.execute(SQL["voided_by"], (act_id, limit))))

    async def void(self, board: Board, act: StoredAction, seqs: Sequence[int]) -> ActionStep:
        def void(connection: sqlite3.Connection) -> ActionStep:
            if connection.execute(SQL["is_done"], (act.id,)).fetchone()[0]:
                return ActionStep(0, [])
            users = connection.execute(SQL["void_events"], (act.id, board.id, str(list(seqs)))).fetchall()
            return _refold(connection, board, act, [user_id for (user_id,) in users])

        return await self._threads.write(void)

    async def restore(self, board: Board, undone: StoredAction, act: StoredAction, seqs: Sequence[int]) -> ActionStep:
        def restore(connection: sqlite3.Connection) -> ActionStep:
            if connection.execute(SQL["is_done"], (act.id,)).fetchone()[0]:
                return ActionStep(0, [])
            users = connection.execute(SQL["restore_events"], (board.id, str(list(seqs)), undone.id)).fetchall()
            return _refold(connection, board, act, [user_id for (user_id,) in users])

        return await self._threads.write(restore)

    # Erasure

    async def erase(self, pod_id: str, user_id: str, stand_in: str, act: ModerationAction) -> list[Row] | None:
        return await self._threads.write(lambda c: _erase(c, pod_id, user_id, stand_in, act))

    async def move_users(self, pod_id: str, user_ids: Sequence[str]) -> list[Row]:
        return await self._threads.write(lambda c: scores.move_users(c, pod_id, user_ids))

    async def reviews(self, board_id: int, decision: str | None, before: int, limit: int) -> list[StoredReview]:
        asked: tuple[object, ...] = (board_id, before, decision, limit)
        name = "reviews"
        if decision == "":
            name, asked = "pending_reviews", (board_id, before, limit)
        found = await self._threads.read(lambda c: c.execute(SQL[name], asked).fetchall())
        return [read_review(columns) for columns in found]

    async def unswept_erasures(self, before: int) -> list[Erasure]:
        found = await self._threads.read(lambda c: c.execute(SQL["unswept_erasures"], (before,)).fetchall())
        return [Erasure(*columns) for columns in found]

    async def note_forgotten(self) -> int:
        def note(connection: sqlite3.Connection) -> int:
            version = scores.last_version(connection)
            connection.execute(SQL["put_fact"], ("forgotten_version", str(version)))
            return version

        return await self._threads.write(note)

    async def sweep_erasure(self, erasure: Erasure) -> None:
        def sweep(connection: sqlite3.Connection) -> None:
            connection.execute(SQL["sweep_cleared"], (erasure.pod_id, erasure.user_id))
            digest = digest_of(erasure.pod_id, erasure.user_id)
            connection.execute(SQL["forget_erased"], (erasure.pod_id, digest))

        await self._threads.write(sweep)


def _change_profiles(
    connection: sqlite3.Connection, pod_id: str, changes: Sequence[ProfileChange], at: int
) -> list[Row]:
    resegmented: dict[str, None] = {}
    for change in changes:
        before = scores.find_profile(connection, pod_id, change.user_id)
        after = changed_profile(change, before, at)
        connection.execute(
            SQL["put_profile"],
            (
                pod_id,
                after.user_id,
                after.display_name,
                after.avatar_url,
                after.region,
                after.region_at,
                format_circles(after.circles),
                name_key(after.display_name),
                after.attributes,
            ),
        )
        if (before.region, before.circles) != (after.region, after.circles):
            resegmented[change.user_id] = None
    return scores.move_users(connection, pod_id, list(resegmented))


def _hide(
    connection: sqlite3.Connection, pod_id: str, board_id: int, user_id: str, hidden: Hidden, act: ModerationAction
) -> tuple[int, list[Row]]:
    act_id = scores.insert_action(connection, pod_id, board_id, user_id, act)
    rows = _open_rows(connection, pod_id, board_id, user_id)
    if act_id is None:
        return scores.action_by_key(connection, pod_id, board_id, act).id, [row for _, row in rows]
    if board_id:
        scores.need_no_refreeze(connection, board_id)
    elif connection.execute(SQL["is_pod_refreezing"], (pod_id,)).fetchone() is not None:
        raise refreeze_running()
    connection.execute(SQL["end_action"], (act.at, act_id))
    connection.execute(SQL["need_profile"], (pod_id, user_id))
    if hidden is Hidden.NO:
        connection.execute(SQL["delete_hide"], (pod_id, user_id, board_id))
    else:
        connection.execute(SQL["put_hide"], (pod_id, user_id, board_id, int(hidden)))
    return act_id, scores.set_hidden(connection, rows, scores.find_hides(connection, pod_id, user_id))


def _open_rows(connection: sqlite3.Connection, pod_id: str, board_id: int, user_id: str) -> list[tuple[int, Row]]:
    found = connection.execute(SQL["open_rows"], {"pod": pod_id, "board": board_id, "user": user_id}).fetchall()
    return [(of_board, row) for of_board, *columns in found for row in scores.read_rows([columns])]


def _refold(connection: sqlite3.Connection, board: Board, act: StoredAction, user_ids: Sequence[str]) -> ActionStep:
    """Fold the events of some users again. `user_ids` has one entry for each event that changed."""
    scores.need_no_refreeze(connection, board.id)
    connection.execute(SQL["count_action_events"], (len(user_ids), act.id))
    return ActionStep(len(user_ids), scores.refold_rows(connection, board, sorted(set(user_ids))))


def _erase(
    connection: sqlite3.Connection, pod_id: str, user_id: str, stand_in: str, act: ModerationAction
) -> list[Row] | None:
    if connection.execute(SQL["is_busy"], (pod_id,)).fetchone()[0]:
        return None
    # Also if the user was erased before, because this call is in the audit log, too.
    connection.execute(SQL["erase_audit"], (pod_id, user_id, stand_in))
    act_id = scores.insert_action(connection, pod_id, 0, stand_in, act)
    if act_id is None:
        return [row for _, row in _open_rows(connection, pod_id, 0, user_id)]
    connection.execute(SQL["end_action"], (act.at, act_id))
    connection.execute(SQL["put_erased"], (pod_id, digest_of(pod_id, user_id), act.at, user_id))
    voided = connection.execute(SQL["erase_events"], (pod_id, user_id, stand_in, act_id)).rowcount
    connection.execute(SQL["count_action_events"], (voided, act_id))
    for statement in ("erase_finals", "erase_grants", "erase_actions"):
        connection.execute(SQL[statement], (pod_id, user_id, stand_in))
    connection.execute(SQL["erase_messages"], (pod_id, quoted_user(user_id), quoted_user(stand_in)))
    for statement in ("erase_bases", "erase_unswept", "erase_profile", "erase_hides", "erase_metadata"):
        connection.execute(SQL[statement], (pod_id, user_id))
    rows = [
        replace(row, standing=None, segments=(), hidden=Hidden.NO)
        for _, row in _open_rows(connection, pod_id, 0, user_id)
    ]
    return scores.write_versions(connection, rows, SQL["clear_row"], lambda _: (None,))
