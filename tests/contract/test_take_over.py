"""Import of an embedded ledger into PostgreSQL, beyond what a user can see."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from laurels.adapters.postgres import PostgresLedger
from laurels.adapters.sql.files import load_migrations
from laurels.adapters.sql.mapping import TABLES, RowBatch
from laurels.adapters.sqlite import SqliteLedger
from laurels.errors import Invalid, Unavailable
from laurels.ports import Cursors, Pod
from support.ledgers import FakeClock, new_board, new_event, open_sqlite
from support.stores import shared_postgres
from support.waiting import until_async

Work = Callable[[SqliteLedger, PostgresLedger], Awaitable[None]]


def play(folder: Path, database: str, work: Work) -> None:
    """Run a test with an embedded ledger and an empty ledger on PostgreSQL."""

    async def run() -> None:
        source = await open_sqlite(folder)
        target = PostgresLedger(shared_postgres().new_database(database), FakeClock(), max_connections=2)
        try:
            await target.open()
            await work(source, target)
        finally:
            await target.close()
            await source.close()

    asyncio.run(run())


def test_import_covers_every_table_and_column(tmp_path: Path) -> None:
    described = sqlite3.connect(":memory:")
    for migration in load_migrations("laurels.adapters.sqlite"):
        described.executescript(migration.script)
    tables = {name for (name,) in described.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables - set(TABLES) == {"jobs"}
    embedded = {
        (table, column)
        for table in TABLES
        for (column,) in described.execute("SELECT name FROM pragma_table_info(?)", (table,))
    }
    described.close()

    async def work(source: SqliteLedger, target: PostgresLedger) -> None:
        del source
        query = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        found = {(table, column) for table, column in await target.pool.read(lambda c: c.fetch(query))}
        columns = {(table, column) for table, column in found if table in TABLES}
        assert (embedded - columns, columns - embedded) == (set(), {("events", "ahead"), ("events", "xact")})

    play(tmp_path, "take-over-columns", work)


def test_import_is_completed_or_rolled_back_and_runs_once(tmp_path: Path) -> None:
    async def work(source: SqliteLedger, target: PostgresLedger) -> None:
        board = await new_board(source, uuid="board")
        await source.record([new_event(board, f"e{n}", f"u{n}", n, 0) for n in range(20)])

        async def broken() -> AsyncIterator[RowBatch]:
            async for batch in source.contents():
                yield batch
                if batch.table == "scores":
                    raise Unavailable("ledger_unavailable", "The disk is gone.")

        with pytest.raises(Unavailable, match="The disk is gone"):
            await target.take_over(broken)
        assert (await target.pods(), await target.boards(), await target.count_rows()) == ([], [], 0)
        await target.take_over(source.contents)
        assert await target.boards() == await source.boards() == [board]
        assert await target.count_rows() == await source.count_rows() == 20
        assert await target.identity() != await source.identity()
        with pytest.raises(Invalid, match="in use"):
            await target.take_over(source.contents)
        # New boards, periods and versions get new numbers.
        later = await new_board(target, uuid="later")
        assert (later.id, later.periods[0].id) == (board.id + 1, board.periods[0].id + 1)
        await target.record([new_event(board, "e20", "u3", 100, 0)])
        versions = [
            row.version for ledger in (source, target) for row in await ledger.rows_of_user([board.periods[0].id], "u3")
        ]
        assert versions == [4, 21]
        await target.create_pod(Pod("another", "Another", 0))

    play(tmp_path, "take-over-whole", work)


@pytest.mark.parametrize("published", [True, False], ids=["published before", "not published before"])
def test_publishing_continues_from_the_imported_cursor(tmp_path: Path, published: bool) -> None:
    async def work(source: SqliteLedger, target: PostgresLedger) -> None:
        # An older transaction is open on the same PostgreSQL.
        old = await asyncpg.connect(shared_postgres().url())
        await old.execute("BEGIN; SELECT pg_current_xact_id()")
        board = await new_board(source)
        await source.record([new_event(board, "before", "ada", 1, 0)])
        begun = await source.streams.begin_publishing()
        await source.record([new_event(board, f"e{n}", "ada", 1, 0) for n in range(5)])
        (*_, (_, third)), cursor = await source.streams.accepted_after(begun.every, 3)
        assert third.event_id == "e2"
        assert await source.streams.move_cursors(begun, Cursors(cursor, {"pod": cursor}))
        if not published:
            await source.threads.write(lambda c: c.execute("DELETE FROM facts WHERE name = 'published_events'"))
        await target.take_over(source.contents)
        assert await target.sender() == await source.sender() == await source.identity()
        for _ in range(2):
            cursors = await target.streams.begin_publishing()
            assert cursors.behind == ({"pod": cursors.every} if published else {})
            events, _ = await target.streams.accepted_after(cursors.every, 100)
            assert [event.event_id for _, event in events] == (["e3", "e4"] if published else [])
            await old.close()
        await target.record([new_event(board, "new", "ada", 1, 0)])

        async def is_told() -> bool:
            # The ledger returns the event only after all older transactions on the same PostgreSQL have ended.
            events, _ = await target.streams.accepted_after(cursors.every, 100)
            return [event.event_id for _, event in events] == (["e3", "e4", "new"] if published else ["new"])

        await until_async(is_told, "the new event")

    play(tmp_path, f"take-over-published-{published}", work)


def test_server_that_starts_during_an_import_waits(tmp_path: Path) -> None:
    async def work(source: SqliteLedger, target: PostgresLedger) -> None:
        await new_board(source, uuid="board")
        under_way, gate = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[RowBatch]:
            under_way.set()
            await gate.wait()
            async for batch in source.contents():
                yield batch

        taking = asyncio.create_task(target.take_over(slowly))
        await under_way.wait()
        late = PostgresLedger(target.pool.url, FakeClock(), max_connections=2)
        opening = asyncio.create_task(late.open())
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

        async def waits() -> bool:
            return bool(await target.pool.read(lambda c: c.fetchval(waiting)))

        await until_async(waits, "the waiting server")
        assert not opening.done()
        gate.set()
        await taking
        assert await opening == []
        assert [board.uuid for board in await late.boards()] == ["board"]
        await late.close()

    play(tmp_path, "take-over-waits", work)


def test_import_error_names_the_table_of_an_invalid_row(tmp_path: Path) -> None:
    async def work(source: SqliteLedger, target: PostgresLedger) -> None:
        await new_board(source, name="a zero \0 that nobody may send any more")
        with pytest.raises(Invalid, match=r"a row of the table 'boards': .*0x00"):
            await target.take_over(source.contents)
        assert await target.pods() == []

    play(tmp_path, "take-over-zero", work)
