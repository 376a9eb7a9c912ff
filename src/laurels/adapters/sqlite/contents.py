"""The contents of an embedded ledger, table by table, for another ledger to take over."""

import sqlite3
from collections.abc import AsyncIterator
from functools import partial

from laurels.adapters.sql.mapping import TABLES, RowBatch
from laurels.adapters.sqlite.threads import SqliteThreads

STRETCH_ROWS = 5000


async def count_rows(threads: SqliteThreads) -> int:
    return sum([await threads.read(partial(_count, table)) for table in TABLES])


async def batches(threads: SqliteThreads) -> AsyncIterator[RowBatch]:
    """Yield the rows of all tables, in batches.

    The batches are consistent with each other only if no process writes meanwhile. The lock of the data folder ensures
    that.
    """
    for table in TABLES:
        columns = await threads.read(partial(_columns, table))
        query = f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 - our own names
        async for rows in threads.stream(query, (), STRETCH_ROWS):
            yield RowBatch(table, columns, rows)


def _count(table: str, connection: sqlite3.Connection) -> int:
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - our own names
    return int(count)


def _columns(table: str, connection: sqlite3.Connection) -> tuple[str, ...]:
    return tuple(name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))
