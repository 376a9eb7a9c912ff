"""The PeriodStore in SQLite: periods, final ranks, grants, retention."""

import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from typing import Any

from laurels.adapters.sql.final_ranks import FinalRanks
from laurels.adapters.sql.mapping import (
    WRITABLE,
    action_running,
    edition_name,
    events_pruned,
    folding_order,
    need_final,
    not_closed,
    not_refreezable,
    read_period,
    read_successor,
    segment_range,
)
from laurels.adapters.sqlite import scores
from laurels.adapters.sqlite.scores import LAST_SEQ, action_by_key, need_no_refreeze, ordered_rows_statement, read_rows
from laurels.adapters.sqlite.sql import SQL
from laurels.adapters.sqlite.threads import SqliteThreads
from laurels.core.board import Board, Ranking
from laurels.core.order import Order
from laurels.core.people import SegmentKind
from laurels.core.scores import Standing
from laurels.core.windows import Period
from laurels.ports import Final, Grant, Message, ModerationAction, Result, Row, StoredAction

# Small, because writing a chunk of final ranks occupies the only write thread.
CHUNK_ROWS = 2000
PERIOD_COLUMNS = 10


class SqlitePeriodStore:
    def __init__(self, threads: SqliteThreads) -> None:
        self._threads = threads
        self._finals = FinalRanks(self._page, self._find, self._scores, self._total)

    @property
    def finals(self) -> FinalRanks:
        return self._finals

    # Periods

    async def find_period(self, board_id: int, name: str) -> Period | None:
        found = await self._threads.read(lambda c: c.execute(SQL["find_period"], (board_id, name)).fetchone())
        return None if found is None else read_period(found)

    async def periods_at(self, asked: Sequence[tuple[int, str, int]]) -> list[Period | None]:
        found = await self._threads.read(lambda c: c.execute(SQL["periods_at"], (json.dumps(asked),)).fetchall())
        periods = {number: read_period(rest) for number, *rest in found}
        return [periods.get(number) for number in range(len(asked))]

    async def periods(
        self, board_id: int, window: str | None, before: tuple[int, int] | None, limit: int
    ) -> list[Period]:
        asked = (board_id, window, *(before or (LAST_SEQ, LAST_SEQ)), limit)
        found = await self._threads.read(lambda c: c.execute(SQL["periods_page"], asked).fetchall())
        return [read_period(columns) for columns in found]

    # The freeze

    async def ordered_rows(self, ranking: Ranking) -> AsyncIterator[list[Row]]:
        limit = LAST_SEQ if ranking.capacity is None else ranking.capacity
        statement, sub_sign = ordered_rows_statement(ranking), -1 if ranking.subscore is Order.DESC else 1
        async for found in self._threads.stream(statement, (ranking.period_id, limit, sub_sign), CHUNK_ROWS):
            yield read_rows(found)

    async def count_ranked(self, ranking: Ranking) -> int:
        (total,) = await self._threads.read(lambda c: c.execute(SQL["count_ranked"], (ranking.period_id,)).fetchone())
        return ranking.limit(total)

    async def last_place(self, period_id: int) -> int:
        return int((await self._threads.read(lambda c: c.execute(SQL["last_place"], (period_id,)).fetchone()))[0])

    async def write_finals(
        self, period_id: int, finals: Sequence[Final], grants: Sequence[Grant], messages: Sequence[Message]
    ) -> None:
        def write(connection: sqlite3.Connection) -> None:
            if connection.execute(SQL["state_of"], (period_id,)).fetchone()[0] not in WRITABLE:
                raise not_closed()
            connection.executemany(
                SQL["insert_final"],
                [
                    (
                        period_id,
                        f.segment,
                        f.place,
                        f.user_id,
                        f.score,
                        f.achieved_at,
                        f.competition,
                        f.dense,
                        f.subscore,
                    )
                    for f in finals
                ],
            )
            connection.executemany(
                SQL["insert_grant"],
                [
                    (
                        period_id,
                        g.place,
                        g.reward,
                        g.user_id,
                        g.rank,
                        g.score,
                        g.prize,
                        g.granted_at,
                        g.claimed_at,
                        g.claimed_by,
                        g.segment,
                    )
                    for g in grants
                ],
            )
            _insert_messages(connection, messages)

        await self._threads.write(write)

    async def finish_freeze(
        self, board: Board, period: Period, total_users: int, messages: Sequence[Message], now: int
    ) -> bool:
        def finish(connection: sqlite3.Connection) -> bool:
            frozen = connection.execute(SQL["freeze_period"], (total_users, now, period.id)).rowcount
            if frozen:
                _insert_messages(connection, messages)
                connection.execute(SQL["release_messages"], (now, period.id))
                connection.execute(SQL["grow_revision"], (board.id,))
                connection.execute(SQL["registry_changed"])
            return bool(frozen)

        return await self._threads.write(finish)

    # Refreeze

    async def begin_refreeze(self, board: Board, period: Period, act: ModerationAction) -> StoredAction:
        def begin(connection: sqlite3.Connection) -> StoredAction:
            if scores.insert_action(connection, board.pod_id, board.id, None, act) is not None:
                need_no_refreeze(connection, board.id)
                if connection.execute(SQL["is_action_running"], (board.id,)).fetchone()[0]:
                    raise action_running()
                pruned = connection.execute(SQL["pruned_before"], (board.id,)).fetchone()[0]
                if pruned is not None and (period.start is None or period.start < pruned):
                    raise events_pruned(period)
                if not connection.execute(SQL["insert_refreezing"], (period.id,)).rowcount:
                    raise not_refreezable(period)
            return action_by_key(connection, board.pod_id, board.id, act)

        return await self._threads.write(begin)

    async def refreezing(self) -> list[tuple[int, Period]]:
        found = await self._threads.read(lambda c: c.execute(SQL["refreezing"]).fetchall())
        return [(board_id, read_period(columns)) for board_id, *columns in found]

    async def last_refolded(self, period_id: int) -> str:
        return str((await self._threads.read(lambda c: c.execute(SQL["last_refolded"], (period_id,)).fetchone()))[0])

    async def refold_some(self, board: Board, period: Period, after: str, limit: int) -> str | None:
        return await self._threads.write(lambda c: _refold_some(c, board, period, after, limit))

    async def grants_of_users(self, period_id: int, user_ids: Sequence[str]) -> list[Grant]:
        asked = (period_id, json.dumps(list(user_ids)))
        found = await self._threads.read(lambda c: c.execute(SQL["grants_of_users"], asked).fetchall())
        return [Grant(*columns) for columns in found]

    async def finish_refreeze(
        self, board: Board, period: Period, total_users: int, messages: Sequence[Message], now: int
    ) -> bool:
        def finish(connection: sqlite3.Connection) -> bool:
            if connection.execute(SQL["state_of"], (period.id,)).fetchone() != ("refreezing",):
                return False
            name = period.name.removesuffix("@")
            found = connection.execute(SQL["find_period"], (board.id, name)).fetchone()
            replaced = read_period(found)
            (editions,) = connection.execute(SQL["count_editions"], (board.id, name)).fetchone()
            connection.execute(SQL["copy_claims"], (replaced.id, period.id))
            connection.execute(SQL["supersede"], (edition_name(name, editions + 1), replaced.id))
            connection.execute(SQL["replace_period"], (name, total_users, replaced.frozen_at, period.id))
            _insert_messages(connection, messages)
            connection.execute(SQL["release_messages"], (now, period.id))
            connection.execute(SQL["grow_revision"], (board.id,))
            connection.execute(SQL["registry_changed"])
            connection.execute(SQL["end_refreeze"], (now, board.id))
            return True

        return await self._threads.write(finish)

    async def owned_periods(self, period_ids: Sequence[int]) -> set[int]:
        asked = (json.dumps(list(period_ids)),)
        found = await self._threads.read(lambda c: c.execute(SQL["owned_periods"], asked).fetchall())
        return {period_id for (period_id,) in found}

    async def unswept(self, frozen_before: int) -> list[tuple[int, Period]]:
        found = await self._threads.read(lambda c: c.execute(SQL["unswept"], (frozen_before,)).fetchall())
        return [(board_id, read_period(columns)) for board_id, *columns in found]

    async def sweep(self, period_id: int, limit: int) -> int:
        def sweep(connection: sqlite3.Connection) -> int:
            asked = (period_id, limit)
            removed = connection.execute(SQL["sweep_rows"], asked).rowcount
            removed = max(removed, connection.execute(SQL["sweep_bases"], asked).rowcount)
            if removed < limit:
                connection.execute(SQL["mark_swept"], (period_id,))
            return removed

        return await self._threads.write(sweep)

    # Results and grants

    async def results(
        self, board_ids: Sequence[int], user_id: str, before: tuple[int, int] | None, limit: int
    ) -> list[Result]:
        asked = (user_id, *(before or (LAST_SEQ, LAST_SEQ)), str(list(board_ids)), limit)
        found = await self._threads.read(lambda c: c.execute(SQL["results"], asked).fetchall())
        return [_read_result(columns) for columns in found]

    async def finals_of_user(
        self, board_ids: Sequence[int], user_id: str, after: tuple[int, str], limit: int
    ) -> list[Result]:
        asked = (user_id, *after, str(list(board_ids)), limit)
        found = await self._threads.read(lambda c: c.execute(SQL["finals_of_user"], asked).fetchall())
        return [_read_result(columns) for columns in found]

    async def grants_of_user(
        self,
        board_ids: Sequence[int],
        user_id: str,
        before: tuple[int, int, str] | None,
        limit: int,
        *,
        withdrawn: bool = False,
    ) -> list[tuple[int, Period, Grant]]:
        asked = (user_id, str(list(board_ids)), *(before or (LAST_SEQ, LAST_SEQ, "")), limit, withdrawn)
        found = await self._threads.read(lambda c: c.execute(SQL["grants_of_user"], asked).fetchall())
        return [_read_grant(columns) for columns in found]

    async def grants_of_period(self, period_id: int, after: tuple[int, str], limit: int) -> list[Grant]:
        found = await self._threads.read(
            lambda c: c.execute(SQL["grants_of_period"], (period_id, *after, limit)).fetchall()
        )
        return [Grant(*columns) for columns in found]

    async def find_grant(self, period_id: int, place: int, reward: str) -> tuple[int, Period, Grant] | None:
        found = await self._threads.read(lambda c: c.execute(SQL["find_grant"], (period_id, place, reward)).fetchone())
        return None if found is None else _read_grant(found)

    async def successor(self, period_id: int, place: int, reward: str) -> tuple[int, int, str] | None:
        asked = (period_id, place, reward)
        found = await self._threads.read(lambda c: c.execute(SQL["successor"], asked).fetchone())
        return read_successor(found)

    async def claimed_edition(self, period_id: int, place: int, reward: str) -> tuple[int, Period, Grant] | None:
        asked = (period_id, place, reward)
        found = await self._threads.read(lambda c: c.execute(SQL["claimed_edition"], asked).fetchone())
        return None if found is None else _read_grant(found)

    async def claim(self, period_id: int, place: int, reward: str, by: str, now: int) -> bool:
        asked = (now, by, period_id, place, reward)
        return bool(await self._threads.write(lambda c: c.execute(SQL["claim_grant"], asked).rowcount))

    # Retention

    async def prune_events(
        self, boards: Sequence[Board], received_before: int, after_seq: int, limit: int
    ) -> tuple[int, int | None]:
        return await self._threads.write(lambda c: _prune_events(c, boards, received_before, after_seq, limit))

    async def prune_progress(self, name: str) -> str | None:
        found = await self._threads.read(lambda c: c.execute(SQL["find_fact"], (name,)).fetchone())
        return None if found is None else str(found[0])

    async def note_prune_progress(self, name: str, text: str) -> None:
        await self._threads.write(lambda c: c.execute(SQL["put_fact"], (name, text)))

    async def prunable_periods(self, board_id: int, frozen_before: int) -> list[Period]:
        asked = (board_id, frozen_before)
        found = await self._threads.read(lambda c: c.execute(SQL["prunable_periods"], asked).fetchall())
        return [read_period(columns) for columns in found]

    async def final_segments(self, period_id: int, kind: SegmentKind, limit: int) -> list[tuple[str, int]]:
        asked = (period_id, *segment_range(kind), limit)
        return await self._threads.read(lambda c: c.execute(SQL["final_segments"], asked).fetchall())

    async def prune_finals(self, period_id: int, limit: int) -> int:
        def prune(connection: sqlite3.Connection) -> int:
            connection.execute(SQL["mark_pruned"], (period_id,))
            return connection.execute(SQL["prune_finals"], (period_id, limit)).rowcount

        return await self._threads.write(prune)

    # Final ranks, by key

    async def _page(self, period_id: int, segment: str, after: int, limit: int) -> list[Final]:
        asked = (period_id, segment, after, limit)
        found = await self._threads.read(lambda c: c.execute(SQL["final_page"], asked).fetchall())
        return [Final(*columns) for columns in found]

    async def _find(self, period_id: int, segment: str, user_ids: Sequence[str]) -> list[Final]:
        asked = (period_id, segment, json.dumps(list(user_ids)))
        found = await self._threads.read(lambda c: c.execute(SQL["find_final"], asked).fetchall())
        return [Final(*columns) for columns in found]

    async def _scores(self, period_id: int, segment: str, places: Sequence[int]) -> dict[int, float]:
        asked = (period_id, segment, str(list(places)))
        return dict(await self._threads.read(lambda c: c.execute(SQL["final_score"], asked).fetchall()))

    async def _total(self, period_id: int, segment: str) -> int:
        asked = (period_id, segment)
        found = await self._threads.read(lambda c: c.execute(SQL["final_total"], asked).fetchone())
        return need_final(None if found is None else found[0])


def _insert_messages(connection: sqlite3.Connection, messages: Sequence[Message]) -> None:
    connection.executemany(
        SQL["insert_message"],
        [(m.message_id, m.pod_id, m.period_id, m.kind, m.body, m.created_at) for m in messages],
    )


def _read_result(columns: Sequence[Any]) -> Result:
    board_id, *rest = columns
    return Result(board_id, read_period(rest[:PERIOD_COLUMNS]), Final(*rest[PERIOD_COLUMNS:]))


def _read_grant(columns: Sequence[Any]) -> tuple[int, Period, Grant]:
    board_id, *rest = columns
    return board_id, read_period(rest[:PERIOD_COLUMNS]), Grant(*rest[PERIOD_COLUMNS:])


def _refold_some(connection: sqlite3.Connection, board: Board, period: Period, after: str, limit: int) -> str | None:
    users = [user for (user,) in connection.execute(SQL["next_event_users"], (board.id, after, limit))]
    if not users:
        return None
    asked = (board.id, users[0], users[-1], period.start, period.end, period.replaces)
    standings: dict[str, Standing] = {}
    for user_id, score, at, subscore, operation in connection.execute(
        SQL[folding_order(board, "events_of_period")], asked
    ):
        standings[user_id] = board.fold(standings.get(user_id), score, at, subscore, operation)
    # An erased user has no profile, and keeps the segments of the final ranks.
    segments: dict[str, tuple[str, ...]] = {}
    for user_id, segment in connection.execute(SQL["segments_of_erased"], (users[0], users[-1], period.replaces)):
        segments[user_id] = (*segments.get(user_id, ()), segment)
    scores.insert_rows(connection, board, period.id, standings, segments)
    return str(users[-1])


def _base(
    score: float, achieved_at: int, total: str | None, has_nonzero: int, subscore: int, last_at: int | None
) -> Standing:
    return Standing(score, achieved_at, total, bool(has_nonzero), subscore, last_at)


def _prune_events(
    connection: sqlite3.Connection, boards: Sequence[Board], received_before: int, after_seq: int, limit: int
) -> tuple[int, int | None]:
    by_id = {board.id: board for board in boards}
    periods = {
        board.id: [read_period(columns) for columns in connection.execute(SQL["open_periods_of"], (board.id,))]
        for board in boards
    }
    events = connection.execute(SQL["old_events"], (after_seq, limit)).fetchall()
    bases: dict[tuple[int, str], Standing | None] = {}
    removed: list[tuple[int]] = []
    last: int | None = after_seq
    for seq, board_id, user_id, score, at, received_at, voided, subscore, operation, waits in events:
        if received_at >= received_before:
            last = None
            break
        last = seq
        board = by_id.get(board_id)
        if board is None or waits:
            continue
        removed.append((seq,))
        for period in periods[board_id]:
            if period.contains(at) and not voided:
                place = (period.id, user_id)
                if place not in bases:
                    found = connection.execute(SQL["find_base"], place).fetchone()
                    bases[place] = None if found is None else _base(*found)
                bases[place] = board.fold(bases[place], score, at, subscore, operation)
    connection.executemany(
        SQL["put_base"],
        [
            (*place, b.score, b.achieved_at, b.total, b.has_nonzero, b.subscore, b.last_at)
            for place, b in bases.items()
            if b
        ],
    )
    connection.execute(SQL["keep_metadata"], (json.dumps([seq for (seq,) in removed]),))
    connection.executemany(SQL["delete_event"], removed)
    return len(removed), last if len(events) == limit else None
