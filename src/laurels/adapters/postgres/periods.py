"""The PeriodStore in PostgreSQL: periods, final ranks, grants, retention."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from laurels.adapters.postgres import scores
from laurels.adapters.postgres.pool import Connection, PostgresPool, execute
from laurels.adapters.postgres.scores import LAST_SEQ, read_bases, read_rows, signs
from laurels.adapters.postgres.sql import SQL
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
from laurels.core.board import Board, Ranking
from laurels.core.people import SegmentKind
from laurels.core.scores import Standing
from laurels.core.windows import Period
from laurels.ports import Final, Grant, Message, ModerationAction, Result, Row, StoredAction

CHUNK_ROWS = 5000
PERIOD_COLUMNS = 10


class PostgresPeriodStore:
    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._finals = FinalRanks(self._page, self._find, self._scores, self._total)

    @property
    def finals(self) -> FinalRanks:
        return self._finals

    # Periods

    async def find_period(self, board_id: int, name: str) -> Period | None:
        found = await self._pool.read(lambda c: c.fetchrow(SQL["find_period"], board_id, name))
        return None if found is None else read_period(found)

    async def periods_at(self, asked: Sequence[tuple[int, str, int]]) -> list[Period | None]:
        columns = list(map(list, zip(*asked, strict=True)))
        found = await self._pool.read(lambda c: c.fetch(SQL["periods_at"], *columns)) if asked else []
        periods = {number: read_period(rest) for number, *rest in found}
        return [periods.get(number) for number in range(1, len(asked) + 1)]

    async def periods(
        self, board_id: int, window: str | None, before: tuple[int, int] | None, limit: int
    ) -> list[Period]:
        values = (board_id, window, *(before or (LAST_SEQ, LAST_SEQ)), limit)
        found = await self._pool.read(lambda c: c.fetch(SQL["periods_page"], *values))
        return [read_period(columns) for columns in found]

    # The freeze

    async def ordered_rows(self, ranking: Ranking) -> AsyncIterator[list[Row]]:
        values = (ranking.period_id, *signs(ranking), ranking.capacity, scores.sub_sign(ranking))
        async for found in self._pool.stream(SQL["ordered_rows"], *values, chunk=CHUNK_ROWS):
            yield read_rows(found)

    async def count_ranked(self, ranking: Ranking) -> int:
        total = int(await self._pool.scan(lambda c: c.fetchval(SQL["count_ranked"], ranking.period_id)))
        return ranking.limit(total)

    async def last_place(self, period_id: int) -> int:
        return int(await self._pool.read(lambda c: c.fetchval(SQL["last_place"], period_id)))

    async def write_finals(
        self, period_id: int, finals: Sequence[Final], grants: Sequence[Grant], messages: Sequence[Message]
    ) -> None:
        async def write(connection: Connection) -> None:
            if await connection.fetchval(SQL["state_of"], period_id) not in WRITABLE:
                raise not_closed()
            await connection.execute(
                SQL["insert_final"],
                period_id,
                [final.segment for final in finals],
                [final.place for final in finals],
                [final.user_id for final in finals],
                [final.score for final in finals],
                [final.achieved_at for final in finals],
                [final.competition for final in finals],
                [final.dense for final in finals],
                [final.subscore for final in finals],
            )
            if grants:
                await connection.execute(
                    SQL["insert_grant"],
                    period_id,
                    [grant.place for grant in grants],
                    [grant.reward for grant in grants],
                    [grant.user_id for grant in grants],
                    [grant.rank for grant in grants],
                    [grant.score for grant in grants],
                    [grant.prize for grant in grants],
                    [grant.granted_at for grant in grants],
                    [grant.claimed_at for grant in grants],
                    [grant.claimed_by for grant in grants],
                    [grant.segment for grant in grants],
                )
            await _insert_messages(connection, messages)

        # Long, because each user may be in many segments.
        await self._pool.write(write, repeat=True, long=True)

    async def finish_freeze(
        self, board: Board, period: Period, total_users: int, messages: Sequence[Message], now: int
    ) -> bool:
        async def finish(connection: Connection) -> bool:
            await connection.execute(SQL["lock_board"], board.id)
            frozen = await execute(connection, SQL["freeze_period"], total_users, now, period.id)
            if frozen:
                await _insert_messages(connection, messages)
                await connection.execute(SQL["release_messages"], now, period.id)
                await connection.execute(SQL["grow_revision"], board.id)
                await connection.execute(SQL["registry_changed"])
            return bool(frozen)

        return await self._pool.write(finish, repeat=True)

    # Refreeze

    async def begin_refreeze(self, board: Board, period: Period, act: ModerationAction) -> StoredAction:
        async def begin(connection: Connection) -> StoredAction:
            await connection.execute(SQL["lock_board"], board.id)
            if await scores.insert_action(connection, board.pod_id, board.id, None, act) is not None:
                await scores.need_no_refreeze(connection, [board.id])
                if await connection.fetchval(SQL["is_action_running"], board.id):
                    raise action_running()
                pruned = await connection.fetchval(SQL["pruned_before"], board.id)
                if pruned is not None and (period.start is None or period.start < pruned):
                    raise events_pruned(period)
                if not await execute(connection, SQL["insert_refreezing"], period.id):
                    raise not_refreezable(period)
            return await scores.action_by_key(connection, board.pod_id, board.id, act)

        return await self._pool.write(begin, repeat=True)

    async def refreezing(self) -> list[tuple[int, Period]]:
        found = await self._pool.read(lambda c: c.fetch(SQL["refreezing"]))
        return [(board_id, read_period(columns)) for board_id, *columns in found]

    async def last_refolded(self, period_id: int) -> str:
        return str(await self._pool.scan(lambda c: c.fetchval(SQL["last_refolded"], period_id)))

    async def refold_some(self, board: Board, period: Period, after: str, limit: int) -> str | None:
        return await self._pool.write(lambda c: _refold_some(c, board, period, after, limit), repeat=True, long=True)

    async def grants_of_users(self, period_id: int, user_ids: Sequence[str]) -> list[Grant]:
        found = await self._pool.read(lambda c: c.fetch(SQL["grants_of_users"], period_id, list(user_ids)))
        return [Grant(*columns) for columns in found]

    async def finish_refreeze(
        self, board: Board, period: Period, total_users: int, messages: Sequence[Message], now: int
    ) -> bool:
        async def finish(connection: Connection) -> bool:
            await connection.execute(SQL["lock_board"], board.id)
            if await connection.fetchval(SQL["state_of"], period.id) != "refreezing":
                return False
            name = period.name.removesuffix("@")
            (found,) = await connection.fetch(SQL["find_period"], board.id, name)
            replaced = read_period(found)
            editions = await connection.fetchval(SQL["count_editions"], board.id, name)
            await connection.execute(SQL["copy_claims"], replaced.id, period.id)
            await connection.execute(SQL["supersede"], edition_name(name, editions + 1), replaced.id)
            await connection.execute(SQL["replace_period"], name, total_users, replaced.frozen_at, period.id)
            await _insert_messages(connection, messages)
            await connection.execute(SQL["release_messages"], now, period.id)
            await connection.execute(SQL["grow_revision"], board.id)
            await connection.execute(SQL["registry_changed"])
            await connection.execute(SQL["end_refreeze"], now, board.id)
            return True

        return await self._pool.write(finish, repeat=True)

    async def owned_periods(self, period_ids: Sequence[int]) -> set[int]:
        found = await self._pool.read(lambda c: c.fetch(SQL["owned_periods"], list(period_ids)))
        return {row["id"] for row in found}

    async def unswept(self, frozen_before: int) -> list[tuple[int, Period]]:
        found = await self._pool.read(lambda c: c.fetch(SQL["unswept"], frozen_before))
        return [(board_id, read_period(columns)) for board_id, *columns in found]

    async def sweep(self, period_id: int, limit: int) -> int:
        async def sweep(connection: Connection) -> int:
            removed = await execute(connection, SQL["sweep_rows"], period_id, limit)
            removed = max(removed, await execute(connection, SQL["sweep_bases"], period_id, limit))
            if removed < limit:
                await connection.execute(SQL["mark_swept"], period_id)
            return removed

        return await self._pool.write(sweep, repeat=True)

    # Results and grants

    async def results(
        self, board_ids: Sequence[int], user_id: str, before: tuple[int, int] | None, limit: int
    ) -> list[Result]:
        values = (user_id, *(before or (LAST_SEQ, LAST_SEQ)), list(board_ids), limit)
        found = await self._pool.read(lambda c: c.fetch(SQL["results"], *values))
        return [_read_result(columns) for columns in found]

    async def finals_of_user(
        self, board_ids: Sequence[int], user_id: str, after: tuple[int, str], limit: int
    ) -> list[Result]:
        values = (user_id, *after, list(board_ids), limit)
        found = await self._pool.read(lambda c: c.fetch(SQL["finals_of_user"], *values))
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
        values = (user_id, list(board_ids), *(before or (LAST_SEQ, LAST_SEQ, "")), limit, withdrawn)
        found = await self._pool.read(lambda c: c.fetch(SQL["grants_of_user"], *values))
        return [_read_grant(columns) for columns in found]

    async def grants_of_period(self, period_id: int, after: tuple[int, str], limit: int) -> list[Grant]:
        found = await self._pool.read(lambda c: c.fetch(SQL["grants_of_period"], period_id, *after, limit))
        return [Grant(*columns) for columns in found]

    async def find_grant(self, period_id: int, place: int, reward: str) -> tuple[int, Period, Grant] | None:
        found = await self._pool.read(lambda c: c.fetchrow(SQL["find_grant"], period_id, place, reward))
        return None if found is None else _read_grant(found)

    async def successor(self, period_id: int, place: int, reward: str) -> tuple[int, int, str] | None:
        return read_successor(await self._pool.read(lambda c: c.fetchrow(SQL["successor"], period_id, place, reward)))

    async def claimed_edition(self, period_id: int, place: int, reward: str) -> tuple[int, Period, Grant] | None:
        found = await self._pool.read(lambda c: c.fetchrow(SQL["claimed_edition"], period_id, place, reward))
        return None if found is None else _read_grant(found)

    async def claim(self, period_id: int, place: int, reward: str, by: str, now: int) -> bool:
        async def claim(connection: Connection) -> bool:
            # Locks the period, so that no refreeze replaces it meanwhile.
            if await connection.fetchrow(SQL["need_claimable"], period_id) is None:
                return False
            return bool(await execute(connection, SQL["claim_grant"], now, by, period_id, place, reward))

        return await self._pool.write(claim, repeat=False)

    # Retention

    async def prune_events(
        self, boards: Sequence[Board], received_before: int, after_seq: int, limit: int
    ) -> tuple[int, int | None]:
        return await self._pool.write(
            lambda c: _prune_events(c, boards, received_before, after_seq, limit), repeat=True
        )

    async def prune_progress(self, name: str) -> str | None:
        found = await self._pool.read(lambda c: c.fetchval(SQL["find_fact"], name))
        return None if found is None else str(found)

    async def note_prune_progress(self, name: str, text: str) -> None:
        await self._pool.write(lambda c: c.execute(SQL["put_fact"], name, text), repeat=True, statements=1)

    async def prunable_periods(self, board_id: int, frozen_before: int) -> list[Period]:
        found = await self._pool.read(lambda c: c.fetch(SQL["prunable_periods"], board_id, frozen_before))
        return [read_period(columns) for columns in found]

    async def final_segments(self, period_id: int, kind: SegmentKind, limit: int) -> list[tuple[str, int]]:
        asked = (period_id, *segment_range(kind), limit)
        found = await self._pool.scan(lambda c: c.fetch(SQL["final_segments"], *asked))
        return [(segment, users) for segment, users in found]

    async def prune_finals(self, period_id: int, limit: int) -> int:
        async def prune(connection: Connection) -> int:
            await connection.execute(SQL["mark_pruned"], period_id)
            return await execute(connection, SQL["prune_finals"], period_id, limit)

        return await self._pool.write(prune, repeat=True)

    # Final ranks, by key

    async def _page(self, period_id: int, segment: str, after: int, limit: int) -> list[Final]:
        found = await self._pool.read(lambda c: c.fetch(SQL["final_page"], period_id, segment, after, limit))
        return [Final(*columns) for columns in found]

    async def _find(self, period_id: int, segment: str, user_ids: Sequence[str]) -> list[Final]:
        found = await self._pool.read(lambda c: c.fetch(SQL["find_final"], period_id, segment, list(user_ids)))
        return [Final(*columns) for columns in found]

    async def _scores(self, period_id: int, segment: str, places: Sequence[int]) -> dict[int, float]:
        found = await self._pool.read(lambda c: c.fetch(SQL["final_score"], period_id, segment, list(places)))
        return {row["place"]: row["score"] for row in found}

    async def _total(self, period_id: int, segment: str) -> int:
        return need_final(await self._pool.read(lambda c: c.fetchval(SQL["final_total"], period_id, segment)))


async def _insert_messages(connection: Connection, messages: Sequence[Message]) -> None:
    await connection.executemany(
        SQL["insert_message"],
        [(m.message_id, m.pod_id, m.period_id, m.kind, m.body, m.created_at) for m in messages],
    )


def _read_result(columns: Any) -> Result:
    board_id, *rest = columns
    return Result(board_id, read_period(rest[:PERIOD_COLUMNS]), Final(*rest[PERIOD_COLUMNS:]))


def _read_grant(columns: Any) -> tuple[int, Period, Grant]:
    board_id, *rest = columns
    return board_id, read_period(rest[:PERIOD_COLUMNS]), Grant(*rest[PERIOD_COLUMNS:])


async def _refold_some(connection: Connection, board: Board, period: Period, after: str, limit: int) -> str | None:
    users = [user for (user,) in await connection.fetch(SQL["next_event_users"], board.id, after, limit)]
    if not users:
        return None
    asked = (board.id, users[0], users[-1], period.start, period.end, period.replaces)
    standings: dict[str, Standing] = {}
    page = scores.EventPage(connection, SQL[folding_order(board, "events_of_period")], *asked)
    async for some in page.chunks():
        for user_id, score, at, subscore, operation in some:
            standings[user_id] = board.fold(standings.get(user_id), score, at, subscore, operation)
        await asyncio.sleep(0)
    await connection.execute(
        SQL["insert_refolded_rows"],
        period.id,
        board.id,
        list(standings),
        [standing.score for standing in standings.values()],
        [standing.achieved_at for standing in standings.values()],
        [scores.exact_total(board, standing) for standing in standings.values()],
        [standing.has_nonzero for standing in standings.values()],
        period.replaces,
        [standing.subscore for standing in standings.values()],
        [standing.last_at for standing in standings.values()],
    )
    return str(page.covered(users)[-1])


async def _prune_events(
    connection: Connection, boards: Sequence[Board], received_before: int, after_seq: int, limit: int
) -> tuple[int, int | None]:
    by_id = {board.id: board for board in boards}
    periods = {
        board.id: [read_period(columns) for columns in await connection.fetch(SQL["open_periods_of"], board.id)]
        for board in boards
    }
    found = await connection.fetch(SQL["old_events"], after_seq, limit)
    young = next((number for number, event in enumerate(found) if event["received_at"] >= received_before), None)
    # Wait for actions that are voiding some of these events, because they decide which ones count.
    own = [event["seq"] for event in found[:young] if event["board_id"] in by_id]
    voided = {row["seq"]: row["voided"] for row in await connection.fetch(SQL["lock_events"], own)}
    events = [event for event in found[:young] if event["seq"] in voided]
    counted = [
        (period, event)
        for event in events
        if not voided[event["seq"]]
        for period in periods[event["board_id"]]
        if period.contains(event["at"])
    ]
    places = sorted({(period.id, event["user_id"]) for period, event in counted})
    before = read_bases(
        await connection.fetch(SQL["find_base"], [place[0] for place in places], [place[1] for place in places])
    )
    bases: dict[tuple[int, str], Standing] = {(period_id, user_id): base for period_id, user_id, base in before}
    for period, event in counted:
        board, place = by_id[event["board_id"]], (period.id, event["user_id"])
        told = (event["score"], event["at"], event["subscore"], event["operation"])
        bases[place] = board.fold(bases.get(place), *told)
    kept = [(place, bases[place]) for place in places]
    await connection.execute(
        SQL["put_base"],
        [place[0] for place, _ in kept],
        [place[1] for place, _ in kept],
        [base.score for _, base in kept],
        [base.achieved_at for _, base in kept],
        [base.total for _, base in kept],
        [base.has_nonzero for _, base in kept],
        [base.subscore for _, base in kept],
        [base.last_at for _, base in kept],
    )
    if events:
        seqs = [event["seq"] for event in events]
        await connection.execute(SQL["keep_metadata"], seqs)
        await connection.execute(SQL["delete_event"], seqs)
        # `changes` can no longer report these events.
        await connection.execute(SQL["note_pruned"], str(max(event["xact"] for event in events)))
    last = found[-1]["seq"] if found else after_seq
    return len(events), None if young is not None or len(found) < limit else last
