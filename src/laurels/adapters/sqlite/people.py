"""Profiles, who is hidden, what was done to scores, and erasure, in SQLite."""

import json
import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

from laurels.adapters.sql_files import load_queries
from laurels.adapters.sql_ledger import (
    changed_profile,
    digest_of,
    read_profile,
    refreeze_running,
    spell_circles,
    spelled_user,
    with_hides,
)
from laurels.adapters.sqlite import scores
from laurels.adapters.sqlite.scores import SQL as SCORES
from laurels.adapters.sqlite.threads import SqliteThreads
from laurels.core.board import Board
from laurels.core.people import Hidden, Profile, ProfileChange, name_key, name_range
from laurels.ports import Act, Erasure, Row, StoredAct, StoredEvent, Touched

SQL = load_queries("laurels.adapters.sqlite", "people.sql")
SEASONS = load_queries("laurels.adapters.sqlite", "seasons.sql")


class SqlitePeople:
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
            return with_hides(profiles, connection.execute(SCORES["hides_between"], between))

        return await self._threads.read(read)

    async def has_names(self, pod_id: str) -> bool:
        return await self._threads.read(lambda c: c.execute(SQL["has_names"], (pod_id,)).fetchone()) is not None

    async def users_named(self, pod_id: str, beginning: str, limit: int) -> list[str]:
        asked = (pod_id, *name_range(beginning), limit)
        found = await self._threads.read(lambda c: c.execute(SQL["users_named"], asked).fetchall())
        return [user_id for (user_id,) in found]

    async def change_profiles(self, pod_id: str, changes: Sequence[ProfileChange], at: int) -> list[Row]:
        return await self._threads.write(lambda c: _change_profiles(c, pod_id, changes, at))

    # Who is hidden

    async def hide(self, pod_id: str, board_id: int, user_id: str, hidden: Hidden, act: Act) -> tuple[int, list[Row]]:
        return await self._threads.write(lambda c: _hide(c, pod_id, board_id, user_id, hidden, act))

    async def hides(self, pod_id: str, user_id: str) -> dict[int, Hidden]:
        return await self._threads.read(lambda c: scores.find_hides(c, pod_id, user_id))

    # Acts

    async def begin_act(self, pod_id: str, board_id: int, user_id: str | None, act: Act) -> StoredAct:
        def begin(connection: sqlite3.Connection) -> StoredAct:
            if scores.insert_act(connection, pod_id, board_id, user_id, act) is not None:
                scores.need_no_refreeze(connection, board_id)
            return scores.act_by_key(connection, pod_id, board_id, act)

        return await self._threads.write(begin)

    async def finish_act(self, act: StoredAct, now: int, undoes: int | None = None) -> StoredAct:
        def finish(connection: sqlite3.Connection) -> StoredAct:
            connection.execute(SCORES["end_act"], (now, act.id))
            if undoes is not None:
                connection.execute(SQL["undo_act"], (act.id, undoes))
            return StoredAct(*connection.execute(SQL["find_act"], (act.pod_id, act.id)).fetchone())

        return await self._threads.write(finish)

    async def find_act(self, pod_id: str, act_id: int) -> StoredAct | None:
        found = await self._threads.read(lambda c: c.execute(SQL["find_act"], (pod_id, act_id)).fetchone())
        return None if found is None else StoredAct(*found)

    async def acts(self, pod_id: str, board_id: int | None, before: int, limit: int) -> list[StoredAct]:
        asked = {"pod": pod_id, "board": board_id, "before": before, "limit": limit}
        found = await self._threads.read(lambda c: c.execute(SQL["acts"], asked).fetchall())
        return [StoredAct(*columns) for columns in found]

    async def acts_of_user(self, pod_id: str, user_id: str) -> list[StoredAct]:
        found = await self._threads.read(lambda c: c.execute(SQL["acts_of_user"], (pod_id, user_id)).fetchall())
        return [StoredAct(*columns) for columns in found]

    async def unfinished_acts(self, before: int) -> list[StoredAct]:
        found = await self._threads.read(lambda c: c.execute(SQL["unfinished_acts"], (before,)).fetchall())
        return [StoredAct(*columns) for columns in found]

    # Events that don't count

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

    async def void(self, board: Board, act: StoredAct, seqs: Sequence[int]) -> Touched:
        def void(connection: sqlite3.Connection) -> Touched:
            if connection.execute(SQL["is_done"], (act.id,)).fetchone()[0]:
                return Touched(0, [])
            users = connection.execute(SQL["void_events"], (act.id, board.id, str(list(seqs)))).fetchall()
            return _refold(connection, board, act, [user_id for (user_id,) in users])

        return await self._threads.write(void)

    async def restore(self, board: Board, undone: StoredAct, act: StoredAct, seqs: Sequence[int]) -> Touched:
        def restore(connection: sqlite3.Connection) -> Touched:
            if connection.execute(SQL["is_done"], (act.id,)).fetchone()[0]:
                return Touched(0, [])
            users = connection.execute(SQL["restore_events"], (board.id, str(list(seqs)), undone.id)).fetchall()
            return _refold(connection, board, act, [user_id for (user_id,) in users])

        return await self._threads.write(restore)

    # Erasure

    async def erase(self, pod_id: str, user_id: str, stand_in: str, act: Act) -> list[Row] | None:
        return await self._threads.write(lambda c: _erase(c, pod_id, user_id, stand_in, act))

    async def unswept_erasures(self, before: int) -> list[Erasure]:
        found = await self._threads.read(lambda c: c.execute(SQL["unswept_erasures"], (before,)).fetchall())
        return [Erasure(*columns) for columns in found]

    async def note_forgotten(self) -> int:
        def note(connection: sqlite3.Connection) -> int:
            version = scores.last_version(connection)
            connection.execute(SEASONS["put_fact"], ("forgotten_version", str(version)))
            return version

        return await self._threads.write(note)

    async def sweep_erasure(self, erasure: Erasure) -> None:
        def sweep(connection: sqlite3.Connection) -> None:
            connection.execute(SQL["sweep_cleared"], {"pod": erasure.pod_id, "user": erasure.user_id})
            digest = digest_of(erasure.pod_id, erasure.user_id)
            connection.execute(SQL["forget_erased"], (erasure.pod_id, digest))

        await self._threads.write(sweep)


def _change_profiles(
    connection: sqlite3.Connection, pod_id: str, changes: Sequence[ProfileChange], at: int
) -> list[Row]:
    moved: dict[str, None] = {}
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
                spell_circles(after.circles),
                name_key(after.display_name),
            ),
        )
        if (before.region, before.circles) != (after.region, after.circles):
            moved[change.user_id] = None
    return scores.move_users(connection, pod_id, list(moved))


def _hide(
    connection: sqlite3.Connection, pod_id: str, board_id: int, user_id: str, hidden: Hidden, act: Act
) -> tuple[int, list[Row]]:
    act_id = scores.insert_act(connection, pod_id, board_id, user_id, act)
    rows = _open_rows(connection, pod_id, board_id, user_id)
    if act_id is None:
        return scores.act_by_key(connection, pod_id, board_id, act).id, [row for _, row in rows]
    if board_id:
        scores.need_no_refreeze(connection, board_id)
    elif connection.execute(SCORES["is_pod_refreezing"], (pod_id,)).fetchone() is not None:
        raise refreeze_running()
    connection.execute(SCORES["end_act"], (act.at, act_id))
    connection.execute(SQL["need_profile"], (pod_id, user_id))
    if hidden is Hidden.NO:
        connection.execute(SQL["delete_hide"], (pod_id, user_id, board_id))
    else:
        connection.execute(SQL["put_hide"], (pod_id, user_id, board_id, int(hidden)))
    return act_id, scores.set_hidden(connection, rows, scores.find_hides(connection, pod_id, user_id))


def _open_rows(connection: sqlite3.Connection, pod_id: str, board_id: int, user_id: str) -> list[tuple[int, Row]]:
    found = connection.execute(SQL["open_rows"], {"pod": pod_id, "board": board_id, "user": user_id}).fetchall()
    return [(of_board, row) for of_board, *columns in found for row in scores.read_rows([columns])]


def _refold(connection: sqlite3.Connection, board: Board, act: StoredAct, user_ids: Sequence[str]) -> Touched:
    """`user_ids`: one for each event that changed."""
    scores.need_no_refreeze(connection, board.id)
    connection.execute(SCORES["count_act"], (len(user_ids), act.id))
    return Touched(len(user_ids), scores.refold_rows(connection, board, sorted(set(user_ids))))


def _erase(connection: sqlite3.Connection, pod_id: str, user_id: str, stand_in: str, act: Act) -> list[Row] | None:
    if connection.execute(SQL["is_busy"], {"pod": pod_id}).fetchone()[0]:
        return None
    act_id = scores.insert_act(connection, pod_id, 0, stand_in, act)
    if act_id is None:
        return [row for _, row in _open_rows(connection, pod_id, 0, user_id)]
    connection.execute(SCORES["end_act"], (act.at, act_id))
    names = {
        "pod": pod_id,
        "user": user_id,
        "stand_in": stand_in,
        "act": act_id,
        "named": spelled_user(user_id),
        "unnamed": spelled_user(stand_in),
    }
    connection.execute(SQL["put_erased"], (pod_id, digest_of(pod_id, user_id), act.at, user_id))
    voided = connection.execute(SQL["erase_events"], names).rowcount
    connection.execute(SCORES["count_act"], (voided, act_id))
    for statement in ("finals", "grants", "acts", "messages", "bases", "unswept", "profile", "hides"):
        connection.execute(SQL[f"erase_{statement}"], names)
    rows = [
        replace(row, standing=None, segments=(), hidden=Hidden.NO)
        for _, row in _open_rows(connection, pod_id, 0, user_id)
    ]
    return scores.write_versions(connection, rows, SQL["clear_row"], lambda _: (None,))
