"""Taking over the contents of an embedded ledger: the same rows with the same ids, in one transaction."""

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import asyncpg

from laurels.adapters.postgres.pool import SCAN_TIMEOUT_S, Connection
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.mapping import PUBLISHED, RowBatch, format_cursors, read_cursors
from laurels.core.scores import Operation, Rule, exact_text
from laurels.errors import Invalid
from laurels.ports import Cursors

# The transaction id of the events taken over: older than all transactions that an index or a publisher follows.
BEFORE_ALL = 0


async def need_empty(connection: Connection) -> None:
    if await connection.fetchval(SQL["is_in_use"]):
        raise Invalid(
            "wrong_format", "This PostgreSQL database is already in use. Specify an empty one.", field="--ledger"
        )


async def take_over(connection: Connection, batches: AsyncIterator[RowBatch]) -> None:
    """Copy all rows of another ledger. A server that starts meanwhile waits until this is done."""
    await connection.execute(SQL["lock_schema"])
    await need_empty(connection)
    translation = _Translation({(table, column) for table, column in await connection.fetch(SQL["booleans"])})
    async for batch in batches:
        columns, rows = translation.translate(batch)
        if columns:
            await _copy(connection, batch.table, columns, rows)
    await _continue_counting(connection, translation)


async def _copy(connection: Connection, table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    try:
        await connection.copy_records_to_table(table, records=rows, columns=columns, timeout=SCAN_TIMEOUT_S)
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        # The driver's message names the column, and the line within the batch.
        raise Invalid(
            "wrong_format", f"PostgreSQL can't store a row of the table {table!r}: {error}.", field="--from"
        ) from error


class _Translation:
    """The conversion of values that PostgreSQL stores differently.

    These are booleans, exact sums, whether an event was ahead of the clock, and counters.
    """

    def __init__(self, booleans: set[tuple[str, str]]) -> None:
        self._booleans = booleans
        self._increments: set[int] = set()
        self._summed: set[int] = set()
        self.counters: dict[str, int] = {}
        self.facts: dict[str, str] = {}

    def translate(self, batch: RowBatch) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the columns and the rows to write; without columns, there is nothing to write yet."""
        table, columns, rows = batch
        at = {column: number for number, column in enumerate(columns)}
        match table:
            case "counters":
                self.counters |= dict(rows)
                return [], []
            case "facts":
                self.facts |= dict(rows)
                return [], []
            case "boards":
                self._increments |= {
                    row[at["id"]]
                    for row in rows
                    if row[at["rule"]] == Rule.INCREMENT or Operation.INCREMENT in row[at["operations"]]
                }
            case "periods":
                self._summed |= {row[at["id"]] for row in rows if row[at["board_id"]] in self._increments}
            case "scores":
                parts = at["period_id"], at["score"], at["total"]
                rows = [_with(row, at["total"], self._total(*(row[number] for number in parts))) for row in rows]
            case "events":
                rows = [(*row, row[at["at"]] > row[at["received_at"]], BEFORE_ALL) for row in rows]
                columns = (*columns, "ahead", "xact")
        for column, number in at.items():
            if (table, column) in self._booleans:
                rows = [_with(row, number, None if row[number] is None else bool(row[number])) for row in rows]
        return list(columns), rows

    def _total(self, period_id: int, score: float | None, total: str | None) -> Decimal | None:
        if score is None or period_id not in self._summed:
            return None
        return Decimal(total or exact_text(score))


def _with(row: tuple[Any, ...], at: int, value: object) -> tuple[Any, ...]:
    return (*row[:at], value, *row[at + 1 :])


async def _continue_counting(connection: Connection, translation: _Translation) -> None:
    """Continue the numbering and the publishing of events where the other ledger stopped."""
    await connection.execute(SQL["continue_sequences"], translation.counters["version"], translation.counters["event"])
    await connection.execute(SQL["set_registry"], translation.counters["registry"] + 1)
    await connection.execute(SQL["insert_fact"], "sender", translation.facts["ledger_id"])
    if PUBLISHED in translation.facts:
        # In PostgreSQL, a cursor is a transaction id and an event number.
        known = read_cursors(translation.facts[PUBLISHED])
        behind = {pod_id: f"{BEFORE_ALL}.{cursor}" for pod_id, cursor in known.behind.items()}
        cursors = format_cursors(Cursors(f"{BEFORE_ALL}.{known.every}", behind))
        await connection.execute(SQL["insert_fact"], PUBLISHED, cursors)
