"""The Ledger in SQLite. It runs the functions of record.py, scores.py, registry.py and contents.py on its threads."""

import json
import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import structlog

from laurels.adapters.file_lock import FileLock
from laurels.adapters.sql.files import Migration, load_migrations
from laurels.adapters.sql.mapping import RowBatch
from laurels.adapters.sqlite import contents, registry, scores
from laurels.adapters.sqlite.audit import SqliteAuditStore
from laurels.adapters.sqlite.jobs import SqliteJobStore
from laurels.adapters.sqlite.outbox import SqliteOutbox
from laurels.adapters.sqlite.periods import SqlitePeriodStore
from laurels.adapters.sqlite.profiles import SqliteProfileStore
from laurels.adapters.sqlite.record import hold_for_review, record
from laurels.adapters.sqlite.sql import SQL
from laurels.adapters.sqlite.streams import SqliteStreamStore
from laurels.adapters.sqlite.threads import SqliteThreads
from laurels.core.board import Board, Ranking
from laurels.core.quotas import Quotas
from laurels.core.windows import Span
from laurels.errors import Unavailable
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

log = structlog.get_logger()

CHUNK_ROWS = 5000
CHUNK_USERS = 1000
# The first version with STRICT tables.
OLDEST_SQLITE = (3, 37, 0)


class SqliteLedger:
    """The ledger in one SQLite file. Callers must call `close` after `open`, even if `open` failed."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._lock = FileLock(path.with_suffix(".lock"))
        self.threads = SqliteThreads(path)
        self.periods = SqlitePeriodStore(self.threads)
        self.profiles = SqliteProfileStore(self.threads)
        self.jobs = SqliteJobStore(self.threads)
        self.outbox = SqliteOutbox(self.threads)
        self.streams = SqliteStreamStore(self.threads)
        self.audit = SqliteAuditStore(self.threads)
        self._as_of = AsOf()

    async def open(self) -> list[str]:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise Unavailable(
                "ledger_unavailable", f"SQLite {sqlite3.sqlite_version} is too old. Laurels needs 3.37 or newer."
            )
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
            _make_private(self.path)
        except OSError as error:
            raise Unavailable(
                "ledger_unavailable", f"The data folder {self.path.parent} can't be used: {error}"
            ) from error
        migrations = await self.threads.script(_migrate)
        await self.read_as_of()
        return migrations

    def announce(self, address: str) -> None:
        """Publish the address at which other processes can reach the process that owns this ledger."""
        self._lock.announce(address)

    async def close(self) -> None:
        await self.threads.close()
        self._lock.release()

    async def ping(self) -> None:
        await self.threads.read(lambda connection: connection.execute("SELECT 1").fetchone())

    async def identity(self) -> str:
        return await self.threads.read(registry.ledger_id)

    async def sender(self) -> str:
        return await self.identity()

    @property
    def ranks(self) -> None:
        """Return None: the index is in the same process, so it needs no fallback."""
        return

    # Contents, for another ledger to take over

    async def count_contents(self) -> int:
        return await contents.count_rows(self.threads)

    def contents(self) -> AsyncIterator[RowBatch]:
        return contents.batches(self.threads)

    # History: always the same one, because the index is in the process that owns the file, and ends with it.

    @property
    def as_of(self) -> AsOf:
        return self._as_of

    async def read_as_of(self) -> AsOf:
        self._as_of = await self.threads.read(registry.as_of)
        return self._as_of

    async def mark(self) -> None:
        pass

    async def knows(self, position: Position) -> bool:
        return int(position.at) <= await self.threads.read(scores.last_version) + 1

    # Scores

    @property
    def batches_at_once(self) -> int:
        """Return 1: there is one write thread."""
        return 1

    async def record(self, events: Sequence[Event], history: str | None = None) -> list[RecordedEvent]:
        del history
        return await self.threads.write(lambda connection: record(connection, events))

    async def hold_for_review(self, event: Event, act: ModerationAction, history: str | None = None) -> RecordOutcome:
        del history
        return await self.threads.write(lambda connection: hold_for_review(connection, event, act))

    async def record_all(self, events: Sequence[Event], history: str | None = None) -> list[RecordedEvent]:
        del history

        def record_all(connection: sqlite3.Connection) -> list[RecordedEvent]:
            records = record(connection, events)
            if not are_stored(records):
                raise NotAllStored(records)
            return records

        try:
            return await self.threads.write(record_all)
        except NotAllStored as undone:
            return undone.records

    async def remove_user(self, board: Board, user_id: str, act: ModerationAction) -> list[Row]:
        return await self.threads.write(lambda c: scores.remove_user(c, board, user_id, act))

    async def expire(self, board_id: int, cutoffs: Sequence[tuple[int, int]], limit: int) -> list[Row]:
        del board_id
        return await self.threads.write(lambda c: scores.expire(c, cutoffs, limit))

    async def oldest_last_at(self, period_ids: Sequence[int]) -> dict[int, int]:
        return await self.threads.read(lambda c: scores.oldest_last_at(c, period_ids))

    async def rows(self, period_id: int) -> AsyncIterator[list[Row]]:
        after = ""
        while chunk := await self._rows_page(period_id, after):
            yield chunk
            after = chunk[-1].user_id

    async def sum_scores(self, ranking: Ranking, *, final: bool) -> tuple[int, float]:
        return await self.threads.read(lambda c: scores.sum_scores(c, ranking, final=final))

    async def count_rows(self) -> int:
        return await self.threads.read(scores.count_rows)

    async def position(self) -> Position:
        """Return the version that the next row gets. With one writer, versions are in commit order."""
        as_of = self._as_of
        return Position(as_of.history, as_of.floor, str(await self.threads.read(scores.last_version) + 1))

    async def changes(self, since: Position) -> AsyncIterator[list[Row]]:
        """See Ledger.changes. Each chunk scans all rows.

        That is acceptable, because nothing depends on this method where no other process writes.
        """
        version = int(since.at)
        while chunk := await self._changes_page(version):
            yield chunk
            version = chunk[-1].version + 1

    async def remembers(self, since: Position) -> bool:
        """Return True: `changes` finds changes by the versions of rows."""
        del since
        return True

    async def count_changes(self, since: Position, limit: int) -> int:
        return await self.threads.read(lambda c: scores.count_changed(c, int(since.at), limit))

    async def forget_changes(self, keep: int, limit: int) -> int:
        """Return 0: `changes` finds changes by the versions of rows, so there are no notes to forget."""
        del keep, limit
        return 0

    async def rows_of_user(self, period_ids: Sequence[int], user_id: str) -> list[Row]:
        return await self.threads.read(lambda c: scores.rows_of_user(c, period_ids, user_id))

    async def rows_of_users(self, period_id: int, user_ids: Sequence[str]) -> list[Row]:
        return await self.threads.read(lambda c: scores.rows_of_users(c, period_id, user_ids))

    async def user_events(
        self, board_id: int, user_id: str, *, before_seq: int | None, limit: int
    ) -> list[StoredEvent]:
        return await self.threads.read(lambda c: scores.user_events(c, board_id, user_id, before_seq, limit))

    async def events_at(self, board_id: int, moments: Sequence[tuple[str, int, float | None]]) -> list[StoredEvent]:
        return await self.threads.read(lambda c: scores.events_at(c, board_id, moments))

    async def metadata_kept(self, board_id: int, moments: Sequence[tuple[str, int, float | None]]) -> dict[str, str]:
        asked = (json.dumps(moments), board_id)
        return dict(await self.threads.read(lambda c: c.execute(SQL["metadata_kept"], asked).fetchall()))

    async def forget_metadata(self, board_id: int) -> None:
        await self.threads.write(lambda c: c.execute(SQL["forget_metadata"], (board_id,)))

    async def board_events(self, board_id: int, *, after_seq: int, limit: int, voided: bool) -> list[StoredEvent]:
        return await self.threads.read(lambda c: scores.board_events(c, board_id, after_seq, limit, voided))

    async def count_events(self, board_id: int | None = None) -> int:
        return await self.threads.read(lambda c: scores.count_events(c, board_id))

    async def refold(self, board: Board) -> AsyncIterator[list[Refolded]]:
        after = ""
        while chunk := await self._refold_page(board, after):
            yield chunk
            after = chunk[-1].user_id

    # Registry: pods, keys, boards

    async def registry_revision(self) -> int:
        return await self.threads.read(registry.registry_revision)

    async def create_pod(self, pod: Pod) -> Pod:
        return await self.threads.write(lambda c: registry.create_pod(c, pod))

    async def pods(self) -> list[Pod]:
        return await self.threads.read(registry.pods)

    async def create_key(self, key: Key) -> None:
        await self.threads.write(lambda c: registry.create_key(c, key))

    async def keys(self) -> list[Key]:
        return await self.threads.read(registry.keys)

    async def revoke_key(self, key_id: str) -> bool:
        now = self._clock.now_us()
        return await self.threads.write(lambda c: registry.revoke_key(c, key_id, now))

    async def expire_key(self, key_id: str, at: int) -> bool:
        return await self.threads.write(lambda c: registry.expire_key(c, key_id, at))

    async def mark_used(self, used: Sequence[tuple[str, int]]) -> None:
        await self.threads.write(lambda c: registry.mark_used(c, used))

    async def change_pod(self, pod_id: str, origins: Sequence[str] | None, quotas: Quotas | None) -> Pod:
        return await self.threads.write(lambda c: registry.change_pod(c, pod_id, origins, quotas))

    async def add_usage(self, day: int, events: Sequence[tuple[str, int]]) -> dict[str, int]:
        return await self.threads.write(lambda c: registry.add_usage(c, day, events))

    async def revoke_tokens(self, pod_id: str, user_id: str, at: int, forget_before: int) -> None:
        await self.threads.write(lambda c: registry.revoke_tokens(c, pod_id, user_id, at, forget_before))

    async def token_revocations(self, since: int) -> dict[tuple[str, str], int]:
        return await self.threads.read(lambda c: registry.token_revocations(c, since))

    async def templates(self) -> list[Template]:
        return await self.threads.read(registry.templates)

    async def put_template(self, template: Template) -> Template:
        return await self.threads.write(lambda c: registry.put_template(c, template))

    async def delete_template(self, pod_id: str, name: str) -> bool:
        return await self.threads.write(lambda c: registry.delete_template(c, pod_id, name))

    async def create_board(self, board: Board, spans: Sequence[Span]) -> Board:
        return await self.threads.write(lambda c: registry.create_board(c, board, spans))

    async def update_board(self, change: BoardUpdate, history: str | None = None) -> Board:
        del history
        return await self.threads.write(lambda c: registry.update_board(c, change, self._clock.now_us()))

    async def free_instant(self, board_id: int, earliest: int, notice_us: int) -> FreeInstant:
        # At least one microsecond, because an event may have the time of this very instant.
        start = max(earliest, self._clock.now_us()) + max(1, notice_us)
        return await self.threads.read(lambda c: registry.free_instant(c, board_id, start))

    async def delete_board(self, board: Board, history: str | None = None) -> None:
        del history
        await self.threads.write(lambda c: registry.delete_board(c, board, self._clock.now_us()))

    async def boards_to_purge(self) -> list[int]:
        return await self.threads.read(registry.boards_to_purge)

    async def purge_board(self, board_id: int, limit: int) -> int:
        return await self.threads.write(lambda c: registry.purge_board(c, board_id, limit))

    async def boards(self, ids: Sequence[int] | None = None) -> list[Board]:
        return await self.threads.read(lambda c: registry.boards(c, ids))

    async def _changes_page(self, since: int) -> list[Row]:
        return await self.threads.read(lambda c: scores.changed_rows(c, since, CHUNK_ROWS))

    async def _rows_page(self, period_id: int, after: str) -> list[Row]:
        return await self.threads.read(lambda c: scores.rows_page(c, period_id, after, CHUNK_ROWS))

    async def _refold_page(self, board: Board, after: str) -> list[Refolded]:
        return await self.threads.read(lambda c: scores.refold(c, board, after, CHUNK_USERS))


def _make_private(path: Path) -> None:
    """Create the database file, readable by its owner only; remove the permissions of others if it exists.

    SQLite gives new files beside it the same permissions.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if each.exists() and each.stat().st_mode & 0o077:
            try:
                each.chmod(0o600)
            except PermissionError:
                log.warning("ledger_readable_by_others", file=str(each), hint="another user owns it: chmod 600")


def _migrate(connection: sqlite3.Connection) -> list[str]:
    (done,) = connection.execute("PRAGMA user_version").fetchone()
    migrations = load_migrations("laurels.adapters.sqlite")
    if done > migrations[-1].number:
        raise Unavailable(
            "ledger_unavailable",
            f"The ledger was written by a newer Laurels (schema {done}, this one knows {migrations[-1].number}). "
            "Upgrade this Laurels.",
        )
    missing = [migration for migration in migrations if migration.number > done]
    # A referenced table can be recreated only with foreign keys off, and a transaction can't switch them.
    connection.execute("PRAGMA foreign_keys = OFF")
    for migration in missing:
        _apply(connection, migration)
    connection.execute("PRAGMA foreign_keys = ON")
    return [migration.name for migration in missing]


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    """Apply one migration, all or nothing: its number is stored in the same transaction."""
    try:
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{migration.script}\nPRAGMA user_version = {migration.number};\nCOMMIT;"
        )
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
