"""Connections to PostgreSQL: bounded in number, every call with a timeout, driver errors translated here, once.

A pooler in transaction mode (PgBouncer) is noticed by its answers. Behind one, every call is a transaction of its own
and nothing is prepared beforehand, for two calls may meet two different servers.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import structlog

from laurels.errors import Invalid, Stale, Unavailable

if TYPE_CHECKING:
    # The driver's classes take parameters for type checkers only.
    Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
else:
    Connection = asyncpg.pool.PoolConnectionProxy

log = structlog.get_logger()

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]

OLDEST = 130000
CONNECT_TIMEOUT_S = 5.0
ACQUIRE_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 2.0
# What a game waits for, and what looks through many rows.
CALL_TIMEOUT_S = 5.0
SCAN_TIMEOUT_S = 60.0
# What sorts a whole period, once, when it ends.
SORT_TIMEOUT_S = 600.0
# What fills a whole database, once.
FILL_TIMEOUT_S = 6 * 3600.0
# How long a lost connection or a restart is waited for within one call; and how often a lost ledger is tried again.
PATIENCE_S = 2.0
TRY_EVERY_S = 0.25
# What ends a transaction whose client is gone, also where a pooler keeps settings from us.
LIMITS = (
    f"SET LOCAL idle_in_transaction_session_timeout = '15s'; SET LOCAL statement_timeout = '{int(SCAN_TIMEOUT_S)}s'"
)

# The server said that nothing was done; another try may succeed.
ROLLED_BACK = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
# Nobody knows whether it was done.
LOST = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidCachedStatementError,
)
# Of those: the time was over, ours or the server's.
SLOW = (TimeoutError, asyncpg.QueryCanceledError)


class PostgresPool:
    def __init__(self, url: str, max_connections: int) -> None:
        self._url = url
        self._max = max_connections
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._pooled = False
        self._commits_lazily = False
        self._try_again_at = 0.0
        self._failing = False
        self._probing = False
        # What this process knows of the ledger is of this history: see history.py.
        self.history = ""

    async def open(self) -> None:
        """May be tried again after a failure."""
        await self.close()
        try:
            await self._look()
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=0,
                max_size=self._max,
                timeout=CONNECT_TIMEOUT_S,
                statement_cache_size=0 if self._pooled else 200,
                max_inactive_connection_lifetime=300,
                server_settings={} if self._pooled else self._settings(),
            )
        except LOST as error:
            raise Unavailable("ledger_unavailable", f"PostgreSQL can't be reached: {_words(error)}") from error
        except (asyncpg.PostgresError, ValueError) as error:
            # Trying again would not help: a wrong password, no such database, an address that can't be read.
            raise Invalid(
                "wrong_format", f"PostgreSQL can't be used like this: {_words(error)}.", field="LAURELS_LEDGER"
            ) from error

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    async def read(self, work: Work[T]) -> T:
        """Run one short statement that changes nothing."""
        return await self._persist(work, CALL_TIMEOUT_S, repeat=True, transaction=None)

    async def scan(self, work: Work[T]) -> T:
        """Run one statement that looks through many rows."""
        return await self._persist(work, SCAN_TIMEOUT_S, repeat=True, transaction=None)

    async def scan_together(self, work: Work[T]) -> T:
        """Run statements that see one moment."""
        return await self._persist(work, SCAN_TIMEOUT_S, repeat=True, transaction="repeatable_read")

    async def stream(self, query: str, *values: object, chunk: int) -> AsyncIterator[list[asyncpg.Record]]:
        """Run a query that may sort for long, and give its rows in chunks, all of one moment.

        Not repeated: whoever asked knows where to go on.
        """
        if self._failing:
            await self._probe()
        try:
            connection = await self._acquire()
            pool = self._pool
            assert pool is not None, "it gave the connection"
            try:
                async with connection.transaction(readonly=True):
                    await connection.execute(f"SET LOCAL statement_timeout = '{int(SORT_TIMEOUT_S)}s'")
                    cursor = await connection.cursor(query, *values)
                    while rows := await cursor.fetch(chunk, timeout=SORT_TIMEOUT_S):
                        yield rows
            except (*LOST, asyncio.CancelledError):
                connection.terminate()
                raise
            finally:
                await pool.release(connection, timeout=ACQUIRE_TIMEOUT_S)
        except LOST as error:
            await self._lost(error)
            raise _unavailable() from error

    async def write(
        self,
        work: Work[T],
        *,
        repeat: bool,
        statements: int = 2,
        long: bool = False,
        history: str | None = None,
        checked: bool = True,
    ) -> T:
        """Run statements all or nothing. `repeat`: doing it twice has the same effect as once.

        Several statements are run only in the history that this process knows, else Stale: see history.py. A single
        one sees to that itself, if it has to. `history`: one that was known before. `checked` False: in any.
        """
        timeout_s = SCAN_TIMEOUT_S if long else CALL_TIMEOUT_S
        if statements == 1:
            return await self._persist(work, timeout_s, repeat=repeat, transaction=None)
        check = f"; SELECT need_ledger('{_hex(history or self.history)}', NULL)" if checked else ""

        async def write(connection: Connection) -> T:
            await connection.execute(LIMITS + check)
            return await work(connection)

        return await self._persist(write, timeout_s, repeat=repeat, transaction="read_committed")

    async def fill(self, work: Work[T]) -> T:
        """Run very many statements all or nothing. Repeated only if the server undid them."""

        async def fill(connection: Connection) -> T:
            await connection.execute(LIMITS)
            return await work(connection)

        return await self._persist(fill, FILL_TIMEOUT_S, repeat=False, transaction="read_committed")

    # Inside

    async def _persist(self, work: Work[T], timeout_s: float, *, repeat: bool, transaction: str | None) -> T:
        """Repeat what can be repeated, for a moment; after that, and until the ledger is back, fail at once."""
        if self._failing:
            await self._probe()
        end = time.monotonic() + PATIENCE_S
        wait_s = 0.02
        ever_sent = False
        while True:
            sent = False
            try:
                connection = await self._acquire()
                ever_sent = sent = True
                result = await self._run(connection, work, timeout_s, transaction)
            except ROLLED_BACK as error:
                failure: Exception = error
                lost = False
            except LOST as error:
                failure = error
                lost = True
            except asyncpg.PostgresError as error:
                raise _refused(error) from error
            else:
                return result
            # Whoever waited for its whole time has no time left.
            again = not lost or (repeat and not isinstance(failure, TimeoutError))
            if not again or time.monotonic() > end:
                if sent and timeout_s > CALL_TIMEOUT_S and isinstance(failure, SLOW):
                    # Too much was asked of it at once: that says nothing about others.
                    log.warning("ledger_slow", reason=_words(failure), timeout_s=timeout_s)
                    raise _unavailable(
                        f"PostgreSQL took longer than {timeout_s:g} s.", outcome_unknown=sent
                    ) from failure
                if lost:
                    await self._lost(failure)
                raise _unavailable(outcome_unknown=lost and ever_sent) from failure
            await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311 - so that two don't meet again
            wait_s = min(0.5, wait_s * 2)

    async def _acquire(self) -> Connection:
        if self._pool is None:
            raise Unavailable("stopping", "The server is shutting down.")
        try:
            return await self._pool.acquire(timeout=ACQUIRE_TIMEOUT_S)
        except TimeoutError:
            if self._pool.get_size() >= self._max and not self._pool.get_idle_size():
                raise Unavailable("overloaded", "All connections to PostgreSQL are busy. Try again.") from None
            raise

    async def _run(self, connection: Connection, work: Work[T], timeout_s: float, transaction: str | None) -> T:
        pool = self._pool
        try:
            async with asyncio.timeout(timeout_s):
                if transaction is None and not self._pooled:
                    return await work(connection)
                return await self._in_transaction(connection, work, transaction)
        except (*LOST, asyncio.CancelledError):
            # What it was doing can't be known; a polite end would wait for a server that may be frozen.
            with contextlib.suppress(asyncpg.InterfaceError):
                connection.terminate()
            raise
        finally:
            if pool is not None:
                await pool.release(connection, timeout=ACQUIRE_TIMEOUT_S)

    async def _probe(self) -> None:
        """While the ledger is lost: one asks for it, now and then, and everybody else fails at once."""
        if self._probing or time.monotonic() < self._try_again_at or self._pool is None:
            raise _unavailable()
        self._probing = True
        try:
            connection = await self._pool.acquire(timeout=PROBE_TIMEOUT_S)
            await self._run(connection, lambda c: c.fetchval("SELECT 1"), PROBE_TIMEOUT_S, None)
        except (*LOST, asyncpg.PostgresError) as error:
            raise _unavailable() from error
        else:
            self._failing = False
            log.info("ledger_found")
        finally:
            self._probing = False
            self._try_again_at = time.monotonic() + TRY_EVERY_S

    async def _in_transaction(self, connection: Connection, work: Work[T], kind: str | None) -> T:
        isolation: Any = kind or "read_committed"
        async with connection.transaction(isolation=isolation, readonly=kind == "repeatable_read"):
            if kind != "read_committed":
                # Whoever writes sets them with what else comes first.
                await connection.execute(LIMITS)
            return await work(connection)

    async def _lost(self, error: Exception) -> None:
        if not self._failing:
            log.warning("ledger_lost", reason=_words(error))
        self._failing = True
        self._try_again_at = time.monotonic() + TRY_EVERY_S
        if self._pool is not None:
            # Others may be as dead as this one, and say so no sooner.
            await self._pool.expire_connections()

    def _settings(self) -> dict[str, str]:
        limits = {"statement_timeout": f"{int(SCAN_TIMEOUT_S)}s"}
        # What is acknowledged is on the disk, whatever the server's default is. Stricter settings stay.
        return limits | {"synchronous_commit": "on"} if self._commits_lazily else limits

    async def _look(self) -> None:
        """Check that this PostgreSQL will do, and whether a pooler stands before it."""
        connection = await asyncpg.connect(self._url, timeout=CONNECT_TIMEOUT_S, statement_cache_size=0)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S), connection.transaction():
                found = await connection.fetchrow(
                    "SELECT pg_backend_pid(), current_setting('server_version_num')::int, "
                    "current_setting('server_encoding'), current_setting('synchronous_commit') = 'off'"
                )
            assert found is not None, "the statement has one row"
            backend, version, encoding, self._commits_lazily = found
            # A pooler gives out process ids of its own.
            self._pooled = backend != connection.get_server_pid()
        finally:
            connection.terminate()
        if version < OLDEST:
            raise ValueError(f"version 13 is needed, and this is {version // 10000}")
        if encoding != "UTF8":
            raise ValueError(f"the database must be encoded in UTF8, and this one is {encoding}")


def _unavailable(told: str = "PostgreSQL can't be reached.", *, outcome_unknown: bool = False) -> Unavailable:
    """The driver's own words may tell of addresses: they are for the log."""
    error = Unavailable("ledger_unavailable", told)
    error.outcome_unknown = outcome_unknown
    return error


def _refused(error: asyncpg.PostgresError) -> Unavailable:
    if error.sqlstate == "LRL03":
        return Stale("changed_meanwhile", "The ledger was failed over or restored. Try again.")
    log.error("ledger_refused", exc_info=error)
    return Unavailable("ledger_unavailable", "PostgreSQL can't do that; the log says why.")


def _hex(history: str) -> str:
    """What may stand within a statement as it is."""
    assert history.isalnum() or not history, "histories are named in hexadecimal"
    return history


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
