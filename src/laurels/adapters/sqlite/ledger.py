"""The Ledger on SQLite. What it does is in scores.py, registry.py and seasons.py; here is where it runs."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from laurels.adapters.file_lock import FileLock
from laurels.adapters.sql_files import Migration, load_migrations
from laurels.adapters.sql_ledger import Stretch
from laurels.adapters.sqlite import contents, registry, scores
from laurels.adapters.sqlite.jobs import SqliteJobBook
from laurels.adapters.sqlite.outbox import SqliteOutbox
from laurels.adapters.sqlite.people import SqlitePeople
from laurels.adapters.sqlite.seasons import SqliteSeasons
from laurels.adapters.sqlite.streams import SqliteStreams
from laurels.adapters.sqlite.threads import SqliteThreads
from laurels.core.board import Board, Ranking
from laurels.core.windows import Span
from laurels.errors import Unavailable
from laurels.ports import (
    Act,
    AsOf,
    BoardChange,
    Clock,
    Event,
    FreeInstant,
    Key,
    Pod,
    Position,
    Record,
    Refolded,
    Row,
    StoredEvent,
)

CHUNK_ROWS = 5000
CHUNK_USERS = 1000
# STRICT tables came with 3.37.
OLDEST_SQLITE = (3, 37, 0)


class SqliteLedger:
    """`close` must follow `open` also when that fails."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._lock = FileLock(path.with_suffix(".lock"))
        self._threads = SqliteThreads(path)
        self.seasons = SqliteSeasons(self._threads)
        self.people = SqlitePeople(self._threads)
        self.jobs = SqliteJobBook(self._threads)
        self.outbox = SqliteOutbox(self._threads)
        self.streams = SqliteStreams(self._threads)
        self._as_of = AsOf()

    async def open(self) -> list[str]:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise Unavailable("ledger_unavailable", f"SQLite {sqlite3.sqlite_version} is too old; 3.37 is needed.")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            raise Unavailable("ledger_unavailable", f"{self.path.parent} can't be used: {error}") from error
        migrations = await self._threads.script(_migrate)
        await self.read_as_of()
        return migrations

    def announce(self, address: str) -> None:
        """Tell other processes where the holder of this ledger can be reached."""
        self._lock.announce(address)

    async def close(self) -> None:
        await self._threads.close()
        self._lock.release()

    async def ping(self) -> None:
        await self._threads.read(lambda connection: connection.execute("SELECT 1").fetchone())

    async def identity(self) -> str:
        return await self._threads.read(registry.ledger_id)

    async def sender(self) -> str:
        return await self.identity()

    @property
    def ranks(self) -> None:
        """The index is in the same process: there is no ledger without it."""
        return

    # For another ledger, to take it over

    async def count_contents(self) -> int:
        return await contents.count_rows(self._threads)

    def contents(self) -> AsyncIterator[Stretch]:
        return contents.stretches(self._threads)

    # Which history: one, because the index is in the process that holds the file, and lives no longer than it.

    @property
    def as_of(self) -> AsOf:
        return self._as_of

    async def read_as_of(self) -> AsOf:
        self._as_of = await self._threads.read(registry.as_of)
        return self._as_of

    async def mark(self) -> None:
        pass

    async def knows(self, position: Position) -> bool:
        return int(position.at) <= await self._threads.read(scores.last_version) + 1

    # Scores

    async def record(self, events: Sequence[Event], history: str | None = None) -> list[Record]:
        del history
        return await self._threads.write(lambda connection: scores.record(connection, events))

    async def remove_user(self, board: Board, user_id: str, act: Act) -> list[Row]:
        return await self._threads.write(lambda c: scores.remove_user(c, board, user_id, act))

    async def rows(self, period_id: int) -> AsyncIterator[list[Row]]:
        after = ""
        while chunk := await self._rows_page(period_id, after):
            yield chunk
            after = chunk[-1].user_id

    async def count_rows(self) -> int:
        return await self._threads.read(scores.count_rows)

    async def position(self) -> Position:
        """The version that the next row gets: there is one writer, so they are in the order of commits."""
        as_of = self._as_of
        return Position(as_of.history, as_of.floor, str(await self._threads.read(scores.last_version) + 1))

    async def changes(self, since: Position) -> AsyncIterator[list[Row]]:
        """A scan of all rows a chunk: nothing depends on it where nobody else writes."""
        version = int(since.at)
        while chunk := await self._changes_page(version):
            yield chunk
            version = chunk[-1].version + 1

    async def count_changes(self, since: Position, limit: int) -> int:
        return await self._threads.read(lambda c: scores.count_changed(c, int(since.at), limit))

    async def forget_changes(self, keep: int, limit: int) -> int:
        """Changes are found by the versions of rows: nothing else is noted."""
        del keep, limit
        return 0

    async def best_rows(self, ranking: Ranking, limit: int) -> list[Row]:
        return await self._threads.read(lambda c: scores.best_rows(c, ranking, limit))

    async def rows_of_user(self, period_ids: Sequence[int], user_id: str) -> list[Row]:
        return await self._threads.read(lambda c: scores.rows_of_user(c, period_ids, user_id))

    async def rows_of_users(self, period_id: int, user_ids: Sequence[str]) -> list[Row]:
        return await self._threads.read(lambda c: scores.rows_of_users(c, period_id, user_ids))

    async def user_events(
        self, board_id: int, user_id: str, *, before_seq: int | None, limit: int
    ) -> list[StoredEvent]:
        return await self._threads.read(lambda c: scores.user_events(c, board_id, user_id, before_seq, limit))

    async def board_events(self, board_id: int, *, after_seq: int, limit: int, voided: bool) -> list[StoredEvent]:
        return await self._threads.read(lambda c: scores.board_events(c, board_id, after_seq, limit, voided))

    async def count_events(self, board_id: int | None = None) -> int:
        return await self._threads.read(lambda c: scores.count_events(c, board_id))

    async def refold(self, board: Board) -> AsyncIterator[list[Refolded]]:
        after = ""
        while chunk := await self._refold_page(board, after):
            yield chunk
            after = chunk[-1].user_id

    # Who and what is there

    async def registry_revision(self) -> int:
        return await self._threads.read(registry.registry_revision)

    async def create_pod(self, pod: Pod) -> Pod:
        return await self._threads.write(lambda c: registry.create_pod(c, pod))

    async def pods(self) -> list[Pod]:
        return await self._threads.read(registry.pods)

    async def create_key(self, key: Key) -> None:
        await self._threads.write(lambda c: registry.create_key(c, key))

    async def keys(self) -> list[Key]:
        return await self._threads.read(registry.keys)

    async def revoke_key(self, key_id: str) -> bool:
        now = self._clock.now_us()
        return await self._threads.write(lambda c: registry.revoke_key(c, key_id, now))

    async def create_board(self, board: Board, spans: Sequence[Span]) -> Board:
        return await self._threads.write(lambda c: registry.create_board(c, board, spans))

    async def update_board(self, change: BoardChange, history: str | None = None) -> Board:
        del history
        return await self._threads.write(lambda c: registry.update_board(c, change, self._clock.now_us()))

    async def free_instant(self, board_id: int, earliest: int, notice_us: int) -> FreeInstant:
        # One microsecond at least: an event may be of this very moment.
        start = max(earliest, self._clock.now_us()) + max(1, notice_us)
        return await self._threads.read(lambda c: registry.free_instant(c, board_id, start))

    async def boards(self, ids: Sequence[int] | None = None) -> list[Board]:
        return await self._threads.read(lambda c: registry.boards(c, ids))

    async def _changes_page(self, since: int) -> list[Row]:
        return await self._threads.read(lambda c: scores.changed_rows(c, since, CHUNK_ROWS))

    async def _rows_page(self, period_id: int, after: str) -> list[Row]:
        return await self._threads.read(lambda c: scores.rows_page(c, period_id, after, CHUNK_ROWS))

    async def _refold_page(self, board: Board, after: str) -> list[Refolded]:
        return await self._threads.read(lambda c: scores.refold(c, board, after, CHUNK_USERS))


def _migrate(connection: sqlite3.Connection) -> list[str]:
    (done,) = connection.execute("PRAGMA user_version").fetchone()
    migrations = load_migrations("laurels.adapters.sqlite")
    if done > migrations[-1].number:
        raise Unavailable(
            "ledger_unavailable",
            f"The ledger was written by a newer Laurels (schema {done}, this one knows {migrations[-1].number}).",
        )
    missing = [migration for migration in migrations if migration.number > done]
    # A table that others refer to can be made anew only without it, and it can't be changed within a transaction.
    connection.execute("PRAGMA foreign_keys = OFF")
    for migration in missing:
        _apply(connection, migration)
    connection.execute("PRAGMA foreign_keys = ON")
    return [migration.name for migration in missing]


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    """One migration, all or nothing: the number of the last one is part of the same transaction."""
    try:
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{migration.script}\nPRAGMA user_version = {migration.number};\nCOMMIT;"
        )
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
