"""What PostgreSQL owes to a ledger that it takes over, beyond what a user can see."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from laurels.adapters.postgres import PostgresLedger
from laurels.adapters.sql_files import load_text
from laurels.adapters.sql_ledger import TABLES, Stretch
from laurels.adapters.sqlite import SqliteLedger
from laurels.errors import Invalid, Unavailable
from laurels.ports import Cursors, Pod
from support.ledgers import FakeClock, new_board, new_event, open_sqlite
from support.stores import shared_postgres
from support.waiting import until_async

Work = Callable[[SqliteLedger, PostgresLedger], Awaitable[None]]


def play(folder: Path, database: str, work: Work) -> None:
    """With an embedded ledger, and an empty one on PostgreSQL."""

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


def test_no_table_and_no_column_is_forgotten(tmp_path: Path) -> None:
    described = sqlite3.connect(":memory:")
    described.executescript(load_text("laurels.adapters.sqlite", "schema.sql"))
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
        found = {(table, column) for table, column in await target._pool.read(lambda c: c.fetch(query))}
        columns = {(table, column) for table, column in found if table in TABLES}
        assert (embedded - columns, columns - embedded) == (set(), {("events", "ahead"), ("events", "xact")})

    play(tmp_path, "take-over-columns", work)


def test_all_or_nothing(tmp_path: Path) -> None:
    async def work(source: SqliteLedger, target: PostgresLedger) -> None:
        board = await new_board(source, uuid="board")
        await source.record([new_event(board, f"e{n}", f"u{n}", n, 0) for n in range(20)])

        async def broken() -> AsyncIterator[Stretch]:
            async for stretch in source.contents():
                yield stretch
                if stretch.table == "scores":
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
        # What comes next is new.
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
def test_events_are_published_on_from_where_they_were(tmp_path: Path, published: bool) -> None:
    async def work(source: SqliteLedger, target: PostgresLedger) -> None:
        # Whatever else goes on there, and since when.
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
            await source._threads.write(lambda c: c.execute("DELETE FROM facts WHERE name = 'published_events'"))
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
            # Not before all that goes on in the same cluster is over.
            events, _ = await target.streams.accepted_after(cursors.every, 100)
            return [event.event_id for _, event in events] == (["e3", "e4", "new"] if published else ["new"])

        await until_async(is_told, "the new one")

    play(tmp_path, f"take-over-published-{published}", work)


def test_a_server_that_starts_meanwhile_waits(tmp_path: Path) -> None:
    async def work(source: SqliteLedger, target: PostgresLedger) -> None:
        await new_board(source, uuid="board")
        under_way, gate = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[Stretch]:
            under_way.set()
            await gate.wait()
            async for stretch in source.contents():
                yield stretch

        taking = asyncio.create_task(target.take_over(slowly))
        await under_way.wait()
        late = PostgresLedger(target._pool._url, FakeClock(), max_connections=2)
        opening = asyncio.create_task(late.open())
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

        async def waits() -> bool:
            return bool(await target._pool.read(lambda c: c.fetchval(waiting)))

        await until_async(waits, "the one that waits")
        assert not opening.done()
        gate.set()
        await taking
        assert await opening == []
        assert [board.uuid for board in await late.boards()] == ["board"]
        await late.close()

    play(tmp_path, "take-over-waits", work)


def test_what_postgresql_can_not_hold_is_named(tmp_path: Path) -> None:
    async def work(source: SqliteLedger, target: PostgresLedger) -> None:
        await new_board(source, name="a zero \0 that nobody may send any more")
        with pytest.raises(Invalid, match=r"a row of the table 'boards': .*0x00"):
            await target.take_over(source.contents)
        assert await target.pods() == []

    play(tmp_path, "take-over-zero", work)
