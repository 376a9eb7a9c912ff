"""Taking over all that an embedded ledger holds: the same rows under the same ids, in one transaction."""

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import asyncpg

from laurels.adapters.postgres.pool import SCAN_TIMEOUT_S, Connection
from laurels.adapters.postgres.scores import SQL as SCORES
from laurels.adapters.sql_files import load_queries
from laurels.adapters.sql_ledger import PUBLISHED, Stretch, read_cursors, spell_cursors
from laurels.core.scores import Rule, exact_text
from laurels.errors import Invalid
from laurels.ports import Cursors

SQL = load_queries("laurels.adapters.postgres", "take_over.sql")

# The transaction that the events are said to be of: they are older than all that an index or a publisher follows.
BEFORE_ALL = 0


async def need_empty(connection: Connection) -> None:
    if await connection.fetchval(SQL["is_in_use"]):
        raise Invalid("wrong_format", "That PostgreSQL is in use already. Name an empty database.", field="--ledger")


async def take_over(connection: Connection, stretches: AsyncIterator[Stretch]) -> None:
    """A server that starts meanwhile waits until it is done."""
    await connection.execute(SCORES["lock_schema"])
    await need_empty(connection)
    translation = _Translation({(table, column) for table, column in await connection.fetch(SQL["booleans"])})
    async for stretch in stretches:
        columns, rows = translation.translate(stretch)
        if columns:
            await _copy(connection, stretch.table, columns, rows)
    await _go_on(connection, translation)


async def _copy(connection: Connection, table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    try:
        await connection.copy_records_to_table(table, records=rows, columns=columns, timeout=SCAN_TIMEOUT_S)
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        # The words of the driver tell the column, and the line of the stretch.
        raise Invalid(
            "wrong_format", f"PostgreSQL can't hold a row of the table {table!r}: {error}.", field="--from"
        ) from error


class _Translation:
    """What PostgreSQL keeps in another way: whether something is so, exact sums, what is yet to come, counters."""

    def __init__(self, booleans: set[tuple[str, str]]) -> None:
        self._booleans = booleans
        self._increments: set[int] = set()
        self._summed: set[int] = set()
        self.counters: dict[str, int] = {}
        self.facts: dict[str, str] = {}

    def translate(self, stretch: Stretch) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and the rows that are to be written; without columns there is nothing to write yet."""
        table, columns, rows = stretch
        at = {column: number for number, column in enumerate(columns)}
        match table:
            case "counters":
                self.counters |= dict(rows)
                return [], []
            case "facts":
                self.facts |= dict(rows)
                return [], []
            case "boards":
                self._increments |= {row[at["id"]] for row in rows if row[at["rule"]] == Rule.INCREMENT}
            case "periods":
                self._summed |= {row[at["id"]] for row in rows if row[at["board_id"]] in self._increments}
            case "scores":
                places = at["period_id"], at["score"], at["total"]
                rows = [_with(row, at["total"], self._total(*(row[place] for place in places))) for row in rows]
            case "events":
                rows = [(*row, row[at["at"]] > row[at["received_at"]], BEFORE_ALL) for row in rows]
                columns = (*columns, "ahead", "xact")
        for column, place in at.items():
            if (table, column) in self._booleans:
                rows = [_with(row, place, bool(row[place])) for row in rows]
        return list(columns), rows

    def _total(self, period_id: int, score: float | None, total: str | None) -> Decimal | None:
        if score is None or period_id not in self._summed:
            return None
        return Decimal(total or exact_text(score))


def _with(row: tuple[Any, ...], at: int, value: object) -> tuple[Any, ...]:
    return (*row[:at], value, *row[at + 1 :])


async def _go_on(connection: Connection, told: _Translation) -> None:
    """Numbers, and where the publishing of events has come to, go on from where they were."""
    await connection.execute(SQL["go_on_counting"], told.counters["version"], told.counters["event"])
    await connection.execute(SQL["set_registry"], told.counters["registry"] + 1)
    await connection.execute(SQL["insert_fact"], "sender", told.facts["ledger_id"])
    if PUBLISHED in told.facts:
        # Here a cursor is a transaction and an event.
        known = read_cursors(told.facts[PUBLISHED])
        behind = {pod_id: f"{BEFORE_ALL}.{cursor}" for pod_id, cursor in known.behind.items()}
        cursors = spell_cursors(Cursors(f"{BEFORE_ALL}.{known.every}", behind))
        await connection.execute(SQL["insert_fact"], PUBLISHED, cursors)
