"""The ProfileStore in PostgreSQL: profiles, hidden users, moderation actions, erasures.

A transaction that changes rows for another reason than a new event locks what a batch of events waits for: the profile
to change segments, the board to hide users, the row to fold the remaining events. So no batch interferes with it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from laurels.adapters.postgres import scores
from laurels.adapters.postgres.pool import Connection, PostgresPool, execute
from laurels.adapters.postgres.scores import read_events, read_rows, refold_rows
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.mapping import (
    HIDDEN,
    changed_profile,
    digest_of,
    format_circles,
    quoted_user,
    read_profile,
    read_review,
    with_hides,
)
from laurels.core.board import Board
from laurels.core.people import Hidden, Profile, ProfileChange, name_key, name_range
from laurels.ports import ActionStep, Erasure, ModerationAction, Row, StoredAction, StoredEvent, StoredReview


class PostgresProfileStore:
    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    # Profiles

    async def profiles(self, pod_id: str, user_ids: Sequence[str]) -> list[Profile]:
        found = await self._pool.read(lambda c: c.fetch(SQL["profiles"], pod_id, list(user_ids)))
        return [read_profile(columns) for columns in found]

    async def page(self, pod_id: str, after: str, limit: int) -> list[tuple[Profile, dict[int, Hidden]]]:
        async def read(connection: Connection) -> list[tuple[Profile, dict[int, Hidden]]]:
            found = await connection.fetch(SQL["profiles_page"], pod_id, after, limit)
            profiles = [read_profile(columns) for columns in found]
            if not profiles:
                return []
            hides = await connection.fetch(SQL["hides_between"], pod_id, profiles[0].user_id, profiles[-1].user_id)
            return with_hides(profiles, ((user_id, board_id, how) for user_id, board_id, how in hides))

        return await self._pool.scan(read)

    async def has_names(self, pod_id: str) -> bool:
        return await self._pool.read(lambda c: c.fetchval(SQL["has_names"], pod_id)) is not None

    async def users_named(self, pod_id: str, beginning: str, limit: int) -> list[str]:
        found = await self._pool.read(lambda c: c.fetch(SQL["users_named"], pod_id, *name_range(beginning), limit))
        return [row["user_id"] for row in found]

    async def change_profiles(self, pod_id: str, changes: Sequence[ProfileChange], at: int) -> list[Row]:
        return await self._pool.write(lambda c: _change_profiles(c, pod_id, changes, at), repeat=True)

    # Hidden users

    async def hide(
        self, pod_id: str, board_id: int, user_id: str, hidden: Hidden, act: ModerationAction
    ) -> tuple[int, list[Row]]:
        return await self._pool.write(lambda c: _hide(c, pod_id, board_id, user_id, hidden, act), repeat=True)

    async def hides(self, pod_id: str, user_id: str) -> dict[int, Hidden]:
        found = await self._pool.read(lambda c: c.fetch(SQL["hides"], pod_id, user_id))
        return {board_id: HIDDEN[hidden] for board_id, hidden in found}

    # Moderation actions

    async def begin_action(
        self, pod_id: str, board_id: int, user_id: str | None, act: ModerationAction
    ) -> StoredAction:
        async def begin(connection: Connection) -> StoredAction:
            await connection.execute(SQL["share_board"], board_id)
            if await scores.insert_action(connection, pod_id, board_id, user_id, act) is not None:
                await scores.need_no_refreeze(connection, [board_id])
            return await scores.action_by_key(connection, pod_id, board_id, act)

        return await self._pool.write(begin, repeat=True)

    async def finish_action(self, act: StoredAction, now: int, undoes: int | None = None) -> StoredAction:
        async def finish(connection: Connection) -> StoredAction:
            await connection.execute(SQL["end_action"], now, act.id)
            if undoes is not None:
                await connection.execute(SQL["undo_action"], act.id, undoes)
            (found,) = await connection.fetch(SQL["find_action"], act.pod_id, act.id)
            return StoredAction(*found)

        return await self._pool.write(finish, repeat=True)

    async def find_action(self, pod_id: str, act_id: int) -> StoredAction | None:
        found = await self._pool.read(lambda c: c.fetchrow(SQL["find_action"], pod_id, act_id))
        return None if found is None else StoredAction(*found)

    async def actions(self, pod_id: str, board_id: int | None, before: int, limit: int) -> list[StoredAction]:
        found = await self._pool.read(lambda c: c.fetch(SQL["actions"], pod_id, board_id, before, limit))
        return [StoredAction(*columns) for columns in found]

    async def actions_of_user(self, pod_id: str, user_id: str) -> list[StoredAction]:
        found = await self._pool.read(lambda c: c.fetch(SQL["actions_of_user"], pod_id, user_id))
        return [StoredAction(*columns) for columns in found]

    async def unfinished_actions(self, before: int) -> list[StoredAction]:
        return [
            StoredAction(*columns)
            for columns in await self._pool.read(lambda c: c.fetch(SQL["unfinished_actions"], before))
        ]

    # Void events

    async def events_by_id(self, board_id: int, event_ids: Sequence[str]) -> list[StoredEvent]:
        return read_events(await self._pool.read(lambda c: c.fetch(SQL["events_by_id"], board_id, list(event_ids))))

    async def events_like(
        self, board_id: int, texts: Sequence[str], after_seq: int, before: int, limit: int
    ) -> tuple[list[StoredEvent], int | None]:
        until = after_seq + limit

        async def look(connection: Connection) -> tuple[list[StoredEvent], int | None]:
            last = await connection.fetchval(SQL["last_seq"])
            found = await connection.fetch(SQL["events_like"], after_seq, until, board_id, before, list(texts))
            return read_events(found), until if until < last else None

        return await self._pool.scan(look)

    async def voided_by(self, act_id: int, limit: int) -> list[StoredEvent]:
        return read_events(await self._pool.read(lambda c: c.fetch(SQL["voided_by"], act_id, limit)))

    async def void(self, board: Board, act: StoredAction, seqs: Sequence[int]) -> ActionStep:
        return await self._turn(board, act, seqs, lambda c: c.fetch(SQL["void_events"], act.id, board.id, list(seqs)))

    async def restore(self, board: Board, undone: StoredAction, act: StoredAction, seqs: Sequence[int]) -> ActionStep:
        return await self._turn(
            board, act, seqs, lambda c: c.fetch(SQL["restore_events"], undone.id, board.id, list(seqs)), undone.id
        )

    async def _turn(
        self,
        board: Board,
        act: StoredAction,
        seqs: Sequence[int],
        turn: Callable[[Connection], Awaitable[list[Any]]],
        undone: int | None = None,
    ) -> ActionStep:
        async def change(connection: Connection) -> ActionStep:
            await connection.execute(SQL["share_board"], board.id)
            if await connection.fetchval(SQL["is_done"], act.id):
                # Another server finished the action, which may have been undone since.
                return ActionStep(0, [])
            found = await connection.fetch(SQL["users_of_events"], board.id, list(seqs))
            users = sorted((user_id for (user_id,) in found), key=str.encode)
            if undone is not None:
                # Events that never counted have no rows to lock.
                await scores.need_rows_of_events(connection, board, undone, seqs)
            # Lock the rows first: a batch with more events of these users waits, and adds to the result of this fold.
            rows = read_rows(await connection.fetch(SQL["rows_of_users_locked"], board.id, users))
            await scores.need_no_refreeze(connection, [board.id])
            turned = await turn(connection)
            await connection.execute(SQL["count_action_events"], len(turned), act.id)
            return ActionStep(len(turned), await refold_rows(connection, board, users, rows))

        return await self._pool.write(change, repeat=True, long=True)

    # Erasure

    async def erase(self, pod_id: str, user_id: str, stand_in: str, act: ModerationAction) -> list[Row] | None:
        return await self._pool.write(lambda c: _erase(c, pod_id, user_id, stand_in, act), repeat=True, long=True)

    async def unswept_erasures(self, before: int) -> list[Erasure]:
        found = await self._pool.read(lambda c: c.fetch(SQL["unswept_erasures"], before))
        return [Erasure(pod_id, user_id) for pod_id, user_id in found]

    async def note_forgotten(self) -> int:
        return int(await self._pool.write(lambda c: c.fetchval(SQL["note_forgotten"]), repeat=True))

    async def move_users(self, pod_id: str, user_ids: Sequence[str]) -> list[Row]:
        async def move(connection: Connection) -> list[Row]:
            await connection.execute(SQL["lock_profiles"], pod_id, list(user_ids))
            await connection.execute(SQL["resegment_users"], [(pod_id, user_id) for user_id in user_ids])
            return read_rows(await connection.fetch(SQL["rows_with_segments"], pod_id, list(user_ids)))

        return await self._pool.write(move, repeat=True)

    async def reviews(self, board_id: int, decision: str | None, before: int, limit: int) -> list[StoredReview]:
        asked: tuple[object, ...] = (board_id, before, decision, limit)
        name = "reviews"
        if decision == "":
            name, asked = "pending_reviews", (board_id, before, limit)
        found = await self._pool.read(lambda c: c.fetch(SQL[name], *asked))
        return [read_review(tuple(columns)) for columns in found]

    async def sweep_erasure(self, erasure: Erasure) -> None:
        async def sweep(connection: Connection) -> None:
            # Wait for batches that have found a cleared row and are about to fold into it.
            await connection.execute(SQL["lock_boards"], erasure.pod_id, 0)
            await connection.execute(SQL["sweep_cleared"], erasure.pod_id, erasure.user_id)
            if (last := await connection.fetchval(SQL["sweep_touches"], erasure.pod_id, erasure.user_id)) is not None:
                # `changes` can no longer report these rows.
                await connection.execute(SQL["note_pruned"], str(last))
            digest = digest_of(erasure.pod_id, erasure.user_id)
            await connection.execute(SQL["forget_erased"], erasure.pod_id, digest)

        await self._pool.write(sweep, repeat=True)


async def _change_profiles(connection: Connection, pod_id: str, changes: Sequence[ProfileChange], at: int) -> list[Row]:
    users = [change.user_id for change in changes]
    found = await connection.fetch(SQL["profiles_locked"], pod_id, users)
    before = {profile.user_id: profile for profile in map(read_profile, found)}
    after = dict(before)
    for change in changes:
        after[change.user_id] = changed_profile(change, after[change.user_id], at)
    profiles = list(after.values())
    await connection.execute(
        SQL["put_profiles"],
        pod_id,
        [profile.user_id for profile in profiles],
        [profile.display_name for profile in profiles],
        [profile.avatar_url for profile in profiles],
        [profile.region for profile in profiles],
        [profile.region_at for profile in profiles],
        [format_circles(profile.circles) for profile in profiles],
        [name_key(profile.display_name) for profile in profiles],
        [profile.attributes for profile in profiles],
    )
    resegmented = [
        profile.user_id
        for profile in profiles
        if (profile.region, profile.circles) != ((old := before[profile.user_id]).region, old.circles)
    ]
    if resegmented:
        await connection.execute(SQL["resegment_users"], [(pod_id, user_id) for user_id in resegmented])
    # Also rows that did not move: a caller that retries may not have received those that moved before.
    told = [change.user_id for change in changes if change.moves]
    return read_rows(await connection.fetch(SQL["rows_with_segments"], pod_id, told)) if told else []


async def _hide(
    connection: Connection, pod_id: str, board_id: int, user_id: str, hidden: Hidden, act: ModerationAction
) -> tuple[int, list[Row]]:
    await connection.execute(SQL["lock_boards"], pod_id, board_id)
    act_id = await scores.insert_action(connection, pod_id, board_id, user_id, act)
    if act_id is None:
        rows = read_rows(await connection.fetch(SQL["open_rows"], pod_id, board_id, user_id))
        return (await scores.action_by_key(connection, pod_id, board_id, act)).id, rows
    await scores.need_no_refreeze(connection, await _boards(connection, pod_id, board_id))
    await connection.execute(SQL["end_action"], act.at, act_id)
    await connection.execute(SQL["need_profiles"], pod_id, [user_id])
    if hidden is Hidden.NO:
        await connection.execute(SQL["delete_hide"], pod_id, user_id, board_id)
    else:
        await connection.execute(SQL["put_hide"], pod_id, user_id, board_id, int(hidden))
    return act_id, read_rows(await connection.fetch(SQL["hide_rows"], pod_id, board_id, user_id))


async def _boards(connection: Connection, pod_id: str, board_id: int) -> list[int]:
    return [number for (number,) in await connection.fetch(SQL["boards_of"], pod_id, board_id)]


async def _erase(
    connection: Connection, pod_id: str, user_id: str, stand_in: str, act: ModerationAction
) -> list[Row] | None:
    await connection.execute(SQL["lock_boards"], pod_id, 0)
    if await connection.fetchval(SQL["is_busy"], pod_id):
        return None
    # Also if the user was erased before, because this call is in the audit log, too.
    await connection.execute(SQL["erase_audit"], pod_id, user_id, stand_in)
    act_id = await scores.insert_action(connection, pod_id, 0, stand_in, act)
    if act_id is None:
        return read_rows(await connection.fetch(SQL["open_rows"], pod_id, 0, user_id))
    await connection.execute(SQL["end_action"], act.at, act_id)
    await connection.execute(SQL["put_erased"], pod_id, digest_of(pod_id, user_id), act.at, user_id)
    voided = await execute(connection, SQL["erase_events"], pod_id, user_id, stand_in, act_id)
    await connection.execute(SQL["count_action_events"], voided, act_id)
    for statement in ("erase_finals", "erase_grants", "erase_actions"):
        await connection.execute(SQL[statement], pod_id, user_id, stand_in)
    await connection.execute(SQL["erase_messages"], pod_id, quoted_user(user_id), quoted_user(stand_in))
    for statement in ("erase_bases", "erase_unswept", "erase_profile", "erase_hides", "erase_metadata"):
        await connection.execute(SQL[statement], pod_id, user_id)
    return read_rows(await connection.fetch(SQL["clear_rows"], pod_id, user_id))
