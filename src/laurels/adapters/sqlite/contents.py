"""All that an embedded ledger holds, table by table, for another ledger to take over."""

import sqlite3
from collections.abc import AsyncIterator
from functools import partial

from laurels.adapters.sql_ledger import TABLES, Stretch
from laurels.adapters.sqlite.threads import SqliteThreads

STRETCH_ROWS = 5000


async def count_rows(threads: SqliteThreads) -> int:
    return sum([await threads.read(partial(_count, table)) for table in TABLES])


async def stretches(threads: SqliteThreads) -> AsyncIterator[Stretch]:
    """Of one moment only while nobody writes, which the lock of the data folder sees to."""
    for table in TABLES:
        columns = await threads.read(partial(_columns, table))
        query = f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 - our own names
        async for rows in threads.stream(query, (), STRETCH_ROWS):
            yield Stretch(table, columns, rows)


def _count(table: str, connection: sqlite3.Connection) -> int:
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - our own names
    return int(count)


def _columns(table: str, connection: sqlite3.Connection) -> tuple[str, ...]:
    return tuple(name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))
