"""Connections to PostgreSQL: limited in number, every call with a timeout. Driver errors are translated here, once.

The pool detects a pooler in transaction mode (PgBouncer) by its answers. Behind a pooler, every call runs in a
transaction and no statement is prepared, because two calls may reach two different backends.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import structlog

from laurels import tracing
from laurels.errors import Invalid, Stale, Unavailable
from laurels.logs import LogLimit
from laurels.retry import Backoff, CircuitBreaker

if TYPE_CHECKING:
    # The driver's classes are generic for type checkers only.
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
# For calls that a game waits for, and for scans of many rows.
CALL_TIMEOUT_S = 5.0
SCAN_TIMEOUT_S = 60.0
# For the sort of a whole period, once, when it ends.
SORT_TIMEOUT_S = 600.0
# For migrations, and for filling a whole database, once.
FILL_TIMEOUT_S = 6 * 3600.0
# How long one call retries after a lost connection or a restart, and the interval of attempts to reach a lost ledger.
# What traces say.
DATABASE = {"db.system.name": "postgresql"}
PATIENCE_S = 2.0
TRY_EVERY_S = 0.25
LOG_EVERY_S = 10.0
# End a transaction whose client is gone. Set per transaction, because a pooler does not allow settings per connection.
LIMITS = (
    f"SET LOCAL idle_in_transaction_session_timeout = '15s'; SET LOCAL statement_timeout = '{int(SCAN_TIMEOUT_S)}s'"
)

# The server rolled back: a retry may succeed.
ROLLED_BACK = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
# The outcome is unknown.
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
# The timeouts among those in LOST, ours and the server's.
SLOW = (TimeoutError, asyncpg.QueryCanceledError)


class PostgresPool:
    def __init__(self, url: str, max_connections: int) -> None:
        self.url = url
        self._max = max_connections
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self.is_pooled = False
        self._commits_lazily = False
        self._breaker = CircuitBreaker(TRY_EVERY_S)
        self._refused_log, self._slow_log = LogLimit(LOG_EVERY_S), LogLimit(LOG_EVERY_S)
        # The history that this process knows: see history.py.
        self.history = ""

    async def open(self) -> None:
        """Check that this PostgreSQL can be used, and create the pool. Can be called again after a failure.

        Raises `Unavailable` if a retry may help, else `Invalid`.
        """
        await self.close()
        try:
            await self._look()
            self._pool = await asyncpg.create_pool(
                self.url,
                min_size=0,
                max_size=self._max,
                timeout=CONNECT_TIMEOUT_S,
                statement_cache_size=0 if self.is_pooled else 200,
                max_inactive_connection_lifetime=300,
                server_settings={} if self.is_pooled else self._settings(),
            )
        except LOST as error:
            raise Unavailable("ledger_unavailable", f"PostgreSQL can't be reached: {_words(error)}") from error
        except (asyncpg.PostgresError, ValueError) as error:
            # A retry would not help: a wrong password, a missing database, an invalid address.
            raise Invalid(
                "wrong_format",
                f"PostgreSQL can't be used with LAURELS_LEDGER: {_words(error)}.",
                field="LAURELS_LEDGER",
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
        """Run one short read-only statement."""
        return await self._persist(work, CALL_TIMEOUT_S, repeat=True, transaction=None)

    async def scan(self, work: Work[T]) -> T:
        """Run one read-only statement that scans many rows."""
        return await self._persist(work, SCAN_TIMEOUT_S, repeat=True, transaction=None)

    async def scan_together(self, work: Work[T]) -> T:
        """Run several read-only statements on one snapshot."""
        return await self._persist(work, SCAN_TIMEOUT_S, repeat=True, transaction="repeatable_read")

    async def stream(self, query: str, *values: object, chunk: int) -> AsyncIterator[list[asyncpg.Record]]:
        """Run a query that may take long to sort, and yield its rows in chunks, all from one snapshot.

        Not retried, because the caller knows where to continue.
        """
        if self._breaker.is_open:
            await self._probe()
        try:
            connection = await self._acquire()
            pool = self._pool
            assert pool is not None, "the connection came from it"
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
        """Run statements all or nothing.

        `repeat`: running them twice has the same effect as once, so they are retried after a lost connection. `long`:
        allow the time of a scan.

        Several statements raise `Stale` unless the ledger is in `history` (None: the history that this process knows),
        see history.py. `checked` False: run in any history. A single statement checks the history itself, if it must.
        """
        timeout_s = SCAN_TIMEOUT_S if long else CALL_TIMEOUT_S
        if statements == 1:
            return await self._persist(work, timeout_s, repeat=repeat, transaction=None)
        check = f"; SELECT need_ledger_v1('{_hex(history or self.history)}')" if checked else ""

        async def write(connection: Connection) -> T:
            await connection.execute(LIMITS + check)
            return await work(connection)

        return await self._persist(write, timeout_s, repeat=repeat, transaction="read_committed")

    async def fill(self, work: Work[T]) -> T:
        """Run very many statements all or nothing. Retried only if the server rolled them back."""

        async def fill(connection: Connection) -> T:
            await connection.execute(LIMITS)
            return await work(connection)

        return await self._persist(fill, FILL_TIMEOUT_S, repeat=False, transaction="read_committed")

    # Internals

    async def _persist(self, work: Work[T], timeout_s: float, *, repeat: bool, transaction: str | None) -> T:
        """Run `work`, and retry it for PATIENCE_S where that is safe.

        Once the ledger is lost, all calls fail immediately until it is back.
        """
        with tracing.step("postgresql", DATABASE):
            return await self._try(work, timeout_s, repeat=repeat, transaction=transaction)

    async def _try(self, work: Work[T], timeout_s: float, *, repeat: bool, transaction: str | None) -> T:
        if self._breaker.is_open:
            await self._probe()
        end = time.monotonic() + PATIENCE_S
        backoff = Backoff(first_s=0.02, longest_s=0.5, jitter=0.5)
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
                raise self._refused(error) from error
            else:
                return result
            # A call that used its whole timeout has no time left for a retry.
            again = not lost or (repeat and not isinstance(failure, TimeoutError))
            if not again or time.monotonic() > end:
                if sent and timeout_s > CALL_TIMEOUT_S and isinstance(failure, SLOW):
                    # One call that is too long does not mean that the ledger is lost for others.
                    raise self._slow(failure, timeout_s) from failure
                if lost:
                    await self._lost(failure)
                raise _unavailable(outcome_unknown=lost and ever_sent) from failure
            await asyncio.sleep(backoff.next_s())

    def _slow(self, failure: BaseException, timeout_s: float) -> Unavailable:
        if count := self._slow_log.count():
            log.warning("ledger_slow", reason=_words(failure), timeout_s=timeout_s, count=count)
        return _unavailable(f"PostgreSQL took longer than {timeout_s:g} s.", outcome_unknown=True)

    def _refused(self, error: asyncpg.PostgresError) -> Unavailable:
        if error.sqlstate == "LRL03":
            return Stale("changed_meanwhile", "The ledger was failed over or restored. Try again.")
        if count := self._refused_log.count(error.sqlstate or ""):
            log.error("ledger_refused", exc_info=error, count=count)
        return Unavailable("ledger_unavailable", "PostgreSQL refused the statement. The log has the details.")

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
                if transaction is None and not self.is_pooled:
                    return await work(connection)
                return await self._in_transaction(connection, work, transaction)
        except (*LOST, asyncio.CancelledError):
            # The state of the connection is unknown, and a clean close would wait for a server that may hang.
            with contextlib.suppress(asyncpg.InterfaceError):
                connection.terminate()
            raise
        finally:
            if pool is not None:
                await pool.release(connection, timeout=ACQUIRE_TIMEOUT_S)

    async def _probe(self) -> None:
        """Check if a lost ledger is back, at most once per TRY_EVERY_S; all other calls fail immediately."""
        if not self._breaker.may_try() or self._pool is None:
            raise _unavailable()
        self._breaker.begin()
        try:
            connection = await self._pool.acquire(timeout=PROBE_TIMEOUT_S)
            await self._run(connection, lambda c: c.fetchval("SELECT 1"), PROBE_TIMEOUT_S, None)
        except BaseException as error:
            self._breaker.failed()
            if isinstance(error, (*LOST, asyncpg.PostgresError)):
                raise _unavailable() from error
            raise
        self._breaker.succeeded()
        log.info("ledger_found")

    async def _in_transaction(self, connection: Connection, work: Work[T], kind: str | None) -> T:
        isolation: Any = kind or "read_committed"
        async with connection.transaction(isolation=isolation, readonly=kind == "repeatable_read"):
            if kind != "read_committed":
                # `write` and `fill` send the limits with their own first statement.
                await connection.execute(LIMITS)
            return await work(connection)

    async def _lost(self, error: Exception) -> None:
        if not self._breaker.is_open:
            log.warning("ledger_lost", reason=_words(error))
        self._breaker.failed()
        if self._pool is not None:
            # The other connections may be dead too, and would not notice sooner.
            await self._pool.expire_connections()

    def _settings(self) -> dict[str, str]:
        limits = {"statement_timeout": f"{int(SCAN_TIMEOUT_S)}s"}
        # Acknowledged scores are on disk, regardless of the server's default. Stricter defaults stay.
        return limits | {"synchronous_commit": "on"} if self._commits_lazily else limits

    async def _look(self) -> None:
        """Check that this PostgreSQL can be used, and detect a pooler in front of it."""
        connection = await asyncpg.connect(self.url, timeout=CONNECT_TIMEOUT_S, statement_cache_size=0)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S), connection.transaction():
                found = await connection.fetchrow(
                    "SELECT pg_backend_pid(), current_setting('server_version_num')::int, "
                    "current_setting('server_encoding'), current_setting('synchronous_commit') = 'off'"
                )
            assert found is not None, "the statement has one row"
            backend, version, encoding, self._commits_lazily = found
            # A pooler reports other process ids than the backends have.
            self.is_pooled = backend != connection.get_server_pid()
        finally:
            connection.terminate()
        if version < OLDEST:
            raise ValueError(f"Laurels needs version 13 or newer, and this is version {version // 10000}")
        if encoding != "UTF8":
            raise ValueError(f"the encoding of the database must be UTF8, and it is {encoding}")


async def execute(connection: Connection, statement: str, *values: object) -> int:
    """Run a statement that changes rows, and return how many it changed."""
    status = await connection.execute(statement, *values)
    # For example `UPDATE 3` or `INSERT 0 1`.
    return int(status.rpartition(" ")[2])


def _unavailable(told: str = "PostgreSQL can't be reached.", *, outcome_unknown: bool = False) -> Unavailable:
    """Return an `Unavailable` without the driver's message, which may contain addresses and is for the log."""
    error = Unavailable("ledger_unavailable", told)
    error.outcome_unknown = outcome_unknown
    return error


def _hex(history: str) -> str:
    """Return a history, after checking that it is safe inside a statement."""
    assert history.isalnum() or not history, "histories are named in hexadecimal"
    return history


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
