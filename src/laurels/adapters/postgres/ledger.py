"""The Ledger in PostgreSQL. It runs the functions of scores.py, registry.py, schema.py and take_over.py on a pool."""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import asyncpg

from laurels.adapters.postgres import registry, schema, scores
from laurels.adapters.postgres.audit import PostgresAuditStore
from laurels.adapters.postgres.history import PostgresHistory, Snapshot
from laurels.adapters.postgres.jobs import PostgresJobStore
from laurels.adapters.postgres.outbox import PostgresOutbox
from laurels.adapters.postgres.periods import PostgresPeriodStore
from laurels.adapters.postgres.pool import Connection, PostgresPool
from laurels.adapters.postgres.profiles import PostgresProfileStore
from laurels.adapters.postgres.ranks import PostgresRanks
from laurels.adapters.postgres.record import hold_for_review, record
from laurels.adapters.postgres.record_in_order import record_in_order
from laurels.adapters.postgres.scores import LAST_SEQ
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.postgres.streams import PostgresStreamStore
from laurels.adapters.postgres.take_over import need_empty, take_over
from laurels.adapters.sql.mapping import SUM_UNIT, RowBatch, read_pod, read_sum
from laurels.core.board import Board, Ranking
from laurels.core.quotas import Quotas
from laurels.core.windows import Span
from laurels.errors import Stale
from laurels.ports import (
    AsOf,
    BoardUpdate,
    Clock,
    Event,
    FreeInstant,
    Key,
    ModerationAction,
    NotAllStored,
    Pod,
    Position,
    RecordedEvent,
    RecordOutcome,
    Refolded,
    Row,
    StoredEvent,
    Template,
    are_stored,
)

CHUNK_ROWS = 5000
CHUNK_USERS = 1000
BATCHES_AT_ONCE = 3


class PostgresLedger:
    def __init__(self, url: str, clock: Clock, max_connections: int) -> None:
        self._clock = clock
        self._max_connections = max_connections
        self.pool = PostgresPool(url, max_connections)
        self._history = PostgresHistory(self.pool)
        self._ranks = PostgresRanks(self.pool)
        self.periods = PostgresPeriodStore(self.pool)
        self.profiles = PostgresProfileStore(self.pool)
        self.jobs = PostgresJobStore(self.pool)
        self.outbox = PostgresOutbox(self.pool)
        self.streams = PostgresStreamStore(self.pool)
        self.audit = PostgresAuditStore(self.pool)

    async def open(self) -> list[str]:
        await self.pool.open()
        is_current = await self.pool.read(schema.is_current)
        migrations = [] if is_current else await self.pool.fill(schema.migrate)
        await self._history.read()
        await self._history.warn()
        return migrations

    async def close(self) -> None:
        await self.pool.close()

    async def ping(self) -> None:
        await self.pool.read(lambda c: c.fetchval("SELECT 1"))

    async def identity(self) -> str:
        return str(await self.pool.read(lambda c: c.fetchval(SQL["ledger_id"])))

    async def sender(self) -> str:
        return str(await self.pool.read(lambda c: c.fetchval(SQL["sender"])))

    @property
    def ranks(self) -> PostgresRanks:
        return self._ranks

    async def take_over(self, contents: Callable[[], AsyncIterator[RowBatch]]) -> None:
        """Fill an empty ledger with the contents of another one, all or nothing."""
        await self.pool.fill(lambda c: take_over(c, contents()))

    async def need_empty(self) -> None:
        """Raise `Invalid` if the ledger is not empty."""
        await self.pool.read(need_empty)

    # History

    @property
    def as_of(self) -> AsOf:
        return self._history.as_of

    async def read_as_of(self) -> AsOf:
        return await self._history.read()

    async def mark(self) -> None:
        await self._history.mark()

    async def knows(self, position: Position) -> bool:
        return await self._history.knows(position)

    # Scores

    @property
    def batches_at_once(self) -> int:
        """Return at most half of the connections, so that reads and other writes don't wait for batches."""
        return max(1, min(BATCHES_AT_ONCE, self._max_connections // 2))

    async def record(self, events: Sequence[Event], history: str | None = None) -> list[RecordedEvent]:
        """See Ledger.record. Retried after a lost connection, which is safe because of the event ids."""
        known = history or self.as_of.history
        try:
            if not any(event.board.operations for event in events):
                return await self.pool.write(lambda c: record(c, events, known), repeat=True, statements=1)
            return await self._record_apart(events, known)
        except Stale:
            # A board was changed, or the ledger is in another history.
            await self._history.read()
            raise

    async def _record_apart(self, events: Sequence[Event], history: str) -> list[RecordedEvent]:
        """Record events of boards with operations and of others, each such board in a transaction of its own.

        So no transaction waits for the rows of one board while it has locked those of another.
        """
        plain = [event for event in events if not event.board.operations]
        found = await self.pool.write(lambda c: record(c, plain, history), repeat=True, statements=1) if plain else []
        results = dict(zip(map(id, plain), found, strict=True))
        boards = {event.board.id: event.board for event in events if event.board.operations}
        for board in boards.values():
            own = [event for event in events if event.board.id == board.id]
            recorded = await self.pool.write(
                partial(record_in_order, board=board, events=own), repeat=True, long=True, history=history
            )
            results |= dict(zip(map(id, own), recorded, strict=True))
        return [results[id(event)] for event in events]

    async def hold_for_review(self, event: Event, act: ModerationAction, history: str | None = None) -> RecordOutcome:
        known = history or self.as_of.history
        return await self.pool.write(lambda c: hold_for_review(c, event, act), repeat=True, history=known)

    async def record_all(self, events: Sequence[Event], history: str | None = None) -> list[RecordedEvent]:
        known = history or self.as_of.history

        async def record_all(connection: Connection) -> list[RecordedEvent]:
            records = await _record_both(connection, events, known)
            if not are_stored(records):
                raise NotAllStored(records)
            return records

        try:
            return await self.pool.write(record_all, repeat=True, history=known)
        except NotAllStored as undone:
            return undone.records
        except Stale:
            await self._history.read()
            raise

    async def remove_user(self, board: Board, user_id: str, act: ModerationAction) -> list[Row]:
        return await self.pool.write(lambda c: scores.remove_user(c, board, user_id, act), repeat=True, long=True)

    async def expire(self, board_id: int, cutoffs: Sequence[tuple[int, int]], limit: int) -> list[Row]:
        async def expire(connection: Connection) -> list[Row]:
            # The periods can't be closed meanwhile.
            await connection.execute(SQL["share_board"], board_id)
            periods, instants = map(list, zip(*cutoffs, strict=True))
            return scores.read_rows(await connection.fetch(SQL["expire_rows"], board_id, periods, instants, limit))

        return await self.pool.write(expire, repeat=True, long=True) if cutoffs else []

    async def oldest_last_at(self, period_ids: Sequence[int]) -> dict[int, int]:
        found = await self.pool.read(lambda c: c.fetch(SQL["oldest_last_at"], list(period_ids)))
        return {period_id: last_at for period_id, last_at in found}  # noqa: C416 - records are no pairs for dict

    async def rows(self, period_id: int) -> AsyncIterator[list[Row]]:
        after = ""
        while chunk := await self._rows_page(period_id, after):
            yield chunk
            after = chunk[-1].user_id

    async def sum_scores(self, ranking: Ranking, *, final: bool) -> tuple[int, float]:
        async def read(connection: Connection) -> tuple[int, float]:
            asked = (ranking.period_id, ranking.segment)
            if final:
                (row,) = await connection.fetch(SQL["sum_finals"], *asked, SUM_UNIT)
            else:
                await scores.need_live(connection, ranking.period_id)
                sign, _ = scores.signs(ranking)
                (row,) = await connection.fetch(SQL["sum_scores"], *asked, sign, ranking.capacity, SUM_UNIT)
            return read_sum(*row)

        return await self.pool.scan_together(read)

    async def count_rows(self) -> int:
        return int(await self.pool.scan(lambda c: c.fetchval(SQL["count_rows"])))

    async def position(self) -> Position:
        """Return a snapshot: which transactions are visible, and which of the older ones are not finished."""
        return await self._history.position()

    async def changes(self, since: Position) -> AsyncIterator[list[Row]]:
        snapshot = Snapshot.parse(since.at)
        # After a restore from a dump, events may have transaction ids that are not reached yet: leave them out.
        end = int(await self.pool.read(lambda c: c.fetchval(SQL["end_of_changes"])))
        touched = await self.pool.scan(lambda c: c.fetch(SQL["touched"], snapshot.unfinished, snapshot.next_id, end))
        for start in range(0, len(touched), CHUNK_ROWS):
            yield await self._rows_of({(board, user) for board, user in touched[start : start + CHUNK_ROWS]})
        for query, bounds in (("late_events", (snapshot.unfinished,)), ("new_events", (snapshot.next_id, end))):
            after = (0, 0)
            while found := await self._events_page(query, bounds, after):
                yield await self._rows_of({(event["board_id"], event["user_id"]) for event in found})
                after = (found[-1]["xact"], found[-1]["seq"])

    async def remembers(self, since: Position) -> bool:
        snapshot = Snapshot.parse(since.at)
        asked = (snapshot.next_id, snapshot.unfinished)
        return bool(await self.pool.read(lambda c: c.fetchval(SQL["remembers_changes"], *asked)))

    async def count_changes(self, since: Position, limit: int) -> int:
        snapshot = Snapshot.parse(since.at)
        asked = (snapshot.next_id, limit, snapshot.unfinished)
        return int(await self.pool.scan(lambda c: c.fetchval(SQL["count_changes"], *asked)))

    async def forget_changes(self, keep: int, limit: int) -> int:
        async def forget(connection: Connection) -> int:
            return int(await connection.fetchval(SQL["forget_touches"], keep, limit))

        return await self.pool.write(forget, repeat=True, statements=1, long=True)

    async def rows_of_user(self, period_ids: Sequence[int], user_id: str) -> list[Row]:
        return scores.read_rows(await self.pool.read(lambda c: c.fetch(SQL["rows_of_user"], list(period_ids), user_id)))

    async def rows_of_users(self, period_id: int, user_ids: Sequence[str]) -> list[Row]:
        return scores.read_rows(
            await self.pool.read(lambda c: c.fetch(SQL["rows_of_period_users"], period_id, list(user_ids)))
        )

    async def user_events(
        self, board_id: int, user_id: str, *, before_seq: int | None, limit: int
    ) -> list[StoredEvent]:
        last = LAST_SEQ if before_seq is None else before_seq
        return scores.read_events(
            await self.pool.read(lambda c: c.fetch(SQL["user_events"], board_id, user_id, last, limit))
        )

    async def events_at(self, board_id: int, moments: Sequence[tuple[str, int, float | None]]) -> list[StoredEvent]:
        users, times, wanted = map(list, zip(*moments, strict=True))
        # A scan, because one that takes long must not count as a lost ledger.
        found = await self.pool.scan(lambda c: c.fetch(SQL["events_at"], board_id, users, times, wanted))
        return scores.read_events(found)

    async def metadata_kept(self, board_id: int, moments: Sequence[tuple[str, int, float | None]]) -> dict[str, str]:
        users, times, wanted = map(list, zip(*moments, strict=True))
        found = await self.pool.scan(lambda c: c.fetch(SQL["metadata_kept"], board_id, users, times, wanted))
        return {user_id: metadata for user_id, metadata in found}  # noqa: C416 - records are no pairs for dict

    async def forget_metadata(self, board_id: int) -> None:
        await self.pool.write(lambda c: c.execute(SQL["forget_metadata"], board_id), repeat=True, long=True)

    async def board_events(self, board_id: int, *, after_seq: int, limit: int, voided: bool) -> list[StoredEvent]:
        return scores.read_events(
            await self.pool.read(lambda c: c.fetch(SQL["board_events"], board_id, after_seq, voided, limit))
        )

    async def count_events(self, board_id: int | None = None) -> int:
        if board_id is None:
            return int(await self.pool.scan(lambda c: c.fetchval(SQL["count_events"])))
        return int(await self.pool.scan(lambda c: c.fetchval(SQL["count_board_events"], board_id)))

    async def refold(self, board: Board) -> AsyncIterator[list[Refolded]]:
        after = ""
        while chunk := await self._refold_page(board, after):
            yield chunk
            after = chunk[-1].user_id

    # Registry: pods, keys, boards

    async def registry_revision(self) -> int:
        return int(await self.pool.read(lambda c: c.fetchval(SQL["registry_revision"])))

    async def create_pod(self, pod: Pod) -> Pod:
        return await self.pool.write(lambda c: registry.create_pod(c, pod), repeat=True)

    async def pods(self) -> list[Pod]:
        return [read_pod(columns) for columns in await self.pool.read(lambda c: c.fetch(SQL["pods"]))]

    async def create_key(self, key: Key) -> None:
        await self.pool.write(lambda c: registry.create_key(c, key), repeat=False)

    async def keys(self) -> list[Key]:
        return await self.pool.read(registry.keys)

    async def revoke_key(self, key_id: str) -> bool:
        now = self._clock.now_us()
        return await self.pool.write(lambda c: registry.revoke_key(c, key_id, now), repeat=False)

    async def expire_key(self, key_id: str, at: int) -> bool:
        return await self.pool.write(lambda c: registry.expire_key(c, key_id, at), repeat=True)

    async def mark_used(self, used: Sequence[tuple[str, int]]) -> None:
        await self.pool.write(lambda c: registry.mark_used(c, used), repeat=True)

    async def change_pod(self, pod_id: str, origins: Sequence[str] | None, quotas: Quotas | None) -> Pod:
        return await self.pool.write(lambda c: registry.change_pod(c, pod_id, origins, quotas), repeat=True)

    async def add_usage(self, day: int, events: Sequence[tuple[str, int]]) -> dict[str, int]:
        return await self.pool.write(lambda c: registry.add_usage(c, day, events), repeat=False)

    async def revoke_tokens(self, pod_id: str, user_id: str, at: int, forget_before: int) -> None:
        await self.pool.write(lambda c: registry.revoke_tokens(c, pod_id, user_id, at, forget_before), repeat=True)

    async def token_revocations(self, since: int) -> dict[tuple[str, str], int]:
        return await self.pool.read(lambda c: registry.token_revocations(c, since))

    async def templates(self) -> list[Template]:
        return await self.pool.read(registry.templates)

    async def put_template(self, template: Template) -> Template:
        return await self.pool.write(lambda c: registry.put_template(c, template), repeat=True)

    async def delete_template(self, pod_id: str, name: str) -> bool:
        return await self.pool.write(lambda c: registry.delete_template(c, pod_id, name), repeat=False)

    async def create_board(self, board: Board, spans: Sequence[Span]) -> Board:
        return await self.pool.write(lambda c: registry.create_board(c, board, spans), repeat=False)

    async def update_board(self, change: BoardUpdate, history: str | None = None) -> Board:
        return await self.pool.write(lambda c: registry.update_board(c, change), repeat=False, history=history)

    async def free_instant(self, board_id: int, earliest: int, notice_us: int) -> FreeInstant:
        async def read(connection: Connection) -> FreeInstant:
            found = await connection.fetchrow(SQL["now_and_oldest"])
            assert found is not None, "the statement has one row"
            # At least one microsecond, because an event may have the time of this very instant.
            start = max(earliest, found["now"]) + max(1, notice_us)
            ahead = await connection.fetchval(SQL["latest_event_ahead"], board_id, start)
            return FreeInstant(start if ahead is None else int(ahead) + 1, found["oldest"])

        return await self.pool.read(read)

    async def delete_board(self, board: Board, history: str | None = None) -> None:
        now_us = self._clock.now_us()
        await self.pool.write(lambda c: registry.delete_board(c, board, now_us), repeat=False, history=history)

    async def boards_to_purge(self) -> list[int]:
        return await self.pool.read(registry.boards_to_purge)

    async def purge_board(self, board_id: int, limit: int) -> int:
        return await self.pool.write(lambda c: registry.purge_board(c, board_id, limit), repeat=True, long=True)

    async def boards(self, ids: Sequence[int] | None = None) -> list[Board]:
        return await self.pool.scan_together(lambda c: registry.boards(c, ids))

    async def _rows_page(self, period_id: int, after: str) -> list[Row]:
        async def read(connection: Connection) -> list[Row]:
            rows = scores.read_rows(await connection.fetch(SQL["rows_page"], period_id, after, CHUNK_ROWS))
            await scores.need_live(connection, period_id)
            return rows

        return await self.pool.scan(read)

    async def _events_page(
        self, query: str, bounds: tuple[object, ...], after: tuple[int, int]
    ) -> list[asyncpg.Record]:
        return await self.pool.scan(lambda c: c.fetch(SQL[query], *bounds, *after, CHUNK_ROWS))

    async def _rows_of(self, users: set[tuple[int, str]]) -> list[Row]:
        boards, names = [board_id for board_id, _ in users], [user_id for _, user_id in users]
        return scores.read_rows(await self.pool.scan(lambda c: c.fetch(SQL["rows_of_users"], boards, names)))

    async def _refold_page(self, board: Board, after: str) -> list[Refolded]:
        return await self.pool.scan_together(lambda c: scores.refold(c, board, after, CHUNK_USERS))


async def _record_both(connection: Connection, events: Sequence[Event], history: str) -> list[RecordedEvent]:
    """Record events on boards with and without operations in one transaction."""
    plain = [event for event in events if not event.board.operations]
    results = dict(zip(map(id, plain), await record(connection, plain, history) if plain else [], strict=True))
    for board in {event.board.id: event.board for event in events if event.board.operations}.values():
        own = [event for event in events if event.board.id == board.id]
        results |= dict(zip(map(id, own), await record_in_order(connection, board, own), strict=True))
    return [results[id(event)] for event in events]
