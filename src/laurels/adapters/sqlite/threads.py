"""The threads that own SQLite connections: exactly one that writes, a few that read.

A connection never leaves its thread. Driver errors are translated here, once.
"""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from laurels import tracing
from laurels.errors import Unavailable

T = TypeVar("T")

# What traces say.
DATABASE = {"db.system.name": "sqlite"}
WRITER = "laurels-ledger-write"
READ_THREADS = 3
BUSY_TIMEOUT_MS = 5000
WRITE_CACHE_KIB = 64 * 1024
# Small, because the operating system caches the file, and the start-up reads every page only once.
READ_CACHE_KIB = 4 * 1024
# 32 MiB of WAL, so that pages that change often are copied into the file less often.
CHECKPOINT_PAGES = 8192


class SqliteThreads:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = ThreadPoolExecutor(1, WRITER)
        self._readers = ThreadPoolExecutor(READ_THREADS, "laurels-ledger-read")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._closed = False

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction on the write thread. Its changes are on disk when this returns."""
        with tracing.step("sqlite write", DATABASE):
            return await self._run(self._writer, lambda connection: _in_transaction(connection, "IMMEDIATE", work))

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on a read thread, with one consistent view for all of its statements."""
        with tracing.step("sqlite read", DATABASE):
            return await self._run(self._readers, lambda connection: _in_transaction(connection, "DEFERRED", work))

    async def stream(self, statement: str, parameters: Sequence[object], chunk: int) -> AsyncIterator[list[Any]]:
        """Run a query on a separate thread and connection, and yield its rows in chunks."""
        executor = ThreadPoolExecutor(1, "laurels-ledger-stream")
        try:
            cursor = await self._run(executor, lambda connection: connection.execute(statement, parameters))
            while rows := await self._run(executor, lambda _: cursor.fetchmany(chunk)):
                yield rows
        finally:
            # Don't wait: a sort that is still running must not block a caller that gave up.
            executor.submit(self._close_connection)
            executor.shutdown(wait=False)

    async def script(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work`, which manages its own transactions, on the write thread."""
        return await self._run(self._writer, work)

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._shutdown)

    def _shutdown(self) -> None:
        self._readers.shutdown()
        self._writer.shutdown()
        # Closing the last connection also copies the WAL into the database file.
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    async def _run(self, executor: ThreadPoolExecutor, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise Unavailable("stopping", "The server is shutting down.")
        return await asyncio.get_running_loop().run_in_executor(executor, self._translate, work)

    def _translate(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._connection())
        except sqlite3.Error as error:
            raise Unavailable("ledger_unavailable", f"SQLite reported an error: {error}") from error

    def _close_connection(self) -> None:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None and connection in self._connections:
            self._connections.remove(connection)
            connection.close()

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            # Autocommit, because _in_transaction begins transactions. Another thread closes the connection.
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            writes = threading.current_thread().name.startswith(WRITER)
            connection.execute(f"PRAGMA cache_size = -{WRITE_CACHE_KIB if writes else READ_CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            self._local.connection = connection
            self._connections.append(connection)
        return connection


def _in_transaction(connection: sqlite3.Connection, mode: str, work: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute(f"BEGIN {mode}")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result
