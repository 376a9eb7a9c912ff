"""The ledger on PostgreSQL, beyond the contract: several servers, poolers, lost connections."""

import asyncio
import contextlib
import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from laurels.adapters.postgres import PostgresLedger, pool, scores
from laurels.adapters.sql.files import load_migrations
from laurels.core.people import ProfileChange
from laurels.core.scores import Rule
from laurels.errors import Invalid, Unavailable
from laurels.ports import Pod, Position, RecordOutcome
from support.ledgers import FakeClock, new_board, new_event
from support.stores import HOST, PgBouncer, PostgresServer, shared_postgres, temporary_folder
from support.waiting import until, until_async

_names = iter(range(10**6))


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """Start a PostgreSQL that the test may kill."""
    with temporary_folder() as folder, PostgresServer(folder / "postgres") as server:
        yield server


def new_database() -> str:
    return f"postgres_{next(_names)}"


async def open_ledger(url: str, connections: int = 4) -> PostgresLedger:
    ledger = PostgresLedger(url, FakeClock(), connections)
    try:
        await ledger.open()
        await ledger.create_pod(Pod("pod", "Pod", 0))
    except BaseException:
        await ledger.close()
        raise
    return ledger


def test_servers_that_start_together_apply_migrations_once() -> None:
    url = shared_postgres().new_database(new_database())

    async def run() -> list[list[str]]:
        ledgers = [PostgresLedger(url, FakeClock(), 2) for _ in range(12)]
        try:
            return list(await asyncio.gather(*(ledger.open() for ledger in ledgers)))
        finally:
            for ledger in ledgers:
                await ledger.close()

    applied = asyncio.run(run())
    assert sorted(map(len, applied)) == [0] * 11 + [len(load_migrations("laurels.adapters.postgres"))]


def test_ledger_of_a_newer_version_is_refused() -> None:
    name = new_database()
    server = shared_postgres()
    url = server.new_database(name)

    async def opened() -> None:
        await (await open_ledger(url)).close()

    asyncio.run(opened())
    server.sql("INSERT INTO migrations (number, name) VALUES (999, 'later')", name)
    with pytest.raises(Unavailable, match="newer Laurels"):
        asyncio.run(opened())


def test_database_with_encoding_other_than_utf8_is_refused() -> None:
    name = new_database()
    shared_postgres().sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(Invalid, match="UTF8"):
        asyncio.run(open_ledger(shared_postgres().url(name)))


def test_unreachable_postgresql_is_reported() -> None:
    with pytest.raises(Unavailable, match="PostgreSQL can't be reached"):
        asyncio.run(open_ledger("postgresql://nobody@127.0.0.1:1/nothing"))


def test_permanent_connection_errors_are_not_retried() -> None:
    port = shared_postgres().port
    for url in (f"postgresql://nobody@127.0.0.1:{port}/x", "postgresql://u@127.0.0.1:abc/x"):
        with pytest.raises(Invalid, match="PostgreSQL can't be used with LAURELS_LEDGER"):
            asyncio.run(open_ledger(url))
    with pytest.raises(Invalid, match='"nothing" does not exist'):
        asyncio.run(open_ledger(shared_postgres().url("nothing")))


@pytest.mark.parametrize("rule", Rule)
def test_concurrent_batches_on_the_same_rows_do_not_deadlock(rule: Rule) -> None:
    """Batches in random order with many rows and events in common: each event counts once."""
    url = shared_postgres().new_database(new_database())
    rng = random.Random(5)
    users = [f"user-{number}" for number in range(30)]

    async def run() -> None:
        ledgers = [await open_ledger(url) for _ in range(4)]
        board = await new_board(ledgers[0], rule=rule)
        numbers = [rng.randrange(2000) for _ in range(4000)]
        events = {n: new_event(board, f"e{n}", users[n % 30], float(n % 7), n) for n in set(numbers)}

        async def write(ledger: PostgresLedger, share: list[int]) -> int:
            accepted = 0
            for start in range(0, len(share), 50):
                records = await ledger.record([events[n] for n in share[start : start + 50]])
                assert all(record.outcome in {RecordOutcome.ACCEPTED, RecordOutcome.DUPLICATE} for record in records)
                accepted += sum(record.outcome is RecordOutcome.ACCEPTED for record in records)
            return accepted

        counts = await asyncio.gather(
            *(write(ledgers[number % 4], numbers[number * 250 : (number + 1) * 250]) for number in range(16))
        )
        assert sum(counts) == len(events)
        async for chunk in ledgers[0].refold(board):
            for user in chunk:
                assert [row.standing for row in user.rows] == list(user.fresh.values())
        for ledger in ledgers:
            await ledger.close()

    asyncio.run(run())
    own = url.rpartition("/")[2]
    deadlocks = shared_postgres().sql(f"SELECT deadlocks FROM pg_stat_database WHERE datname = '{own}'").stdout
    assert deadlocks.split()[2] == "0"


def test_every_result_contains_a_committed_row() -> None:
    """Concurrent increments of 1 for one user: the scores before and after form one unbroken chain."""
    url = shared_postgres().new_database(new_database())

    async def run() -> list[tuple[float | None, float]]:
        ledgers = [await open_ledger(url) for _ in range(3)]
        board = await new_board(ledgers[0], rule=Rule.INCREMENT)

        async def add(number: int) -> tuple[float | None, float]:
            (record,) = await ledgers[number % 3].record([new_event(board, f"e{number}", "ada", 1.0, number)])
            (change,) = record.changes
            assert change.row.standing is not None
            before = change.before.standing if change.before else None
            return before.score if before else None, change.row.standing.score

        steps = await asyncio.gather(*(add(number) for number in range(90)))
        for ledger in ledgers:
            await ledger.close()
        return list(steps)

    steps = sorted(asyncio.run(run()), key=lambda step: step[1])
    assert steps == [(number or None, number + 1.0) for number in map(float, range(90))]


def test_refold_reads_long_histories_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page never splits the events of a user, however many the user has."""
    url = shared_postgres().new_database(new_database())
    counts = [1, 9, 3, 30, 1, 1, 2, 17, 4, 5, 5, 1]

    async def run() -> None:
        ledger = await open_ledger(url)
        board = await new_board(ledger, rule=Rule.INCREMENT)
        events = [
            new_event(board, f"{user}-{number}", f"u{user:02}", 1.0, number)
            for user, count in enumerate(counts)
            for number in range(count)
        ]
        await ledger.record(events)
        whole = [user async for chunk in ledger.refold(board) for user in chunk]
        assert [user.fresh[board.periods[0].id].score for user in whole] == counts
        for chunk_events, page_events in itertools.product((1, 2, 7), (1, 5, 6, 40)):
            monkeypatch.setattr(scores, "CHUNK_EVENTS", chunk_events)
            monkeypatch.setattr(scores, "PAGE_EVENTS", page_events)
            pages = [chunk async for chunk in ledger.refold(board)]
            assert [user for chunk in pages for user in chunk] == whole
            assert len(pages) > 1
        await ledger.close()

    asyncio.run(run())


def test_query_timeout_leaves_the_ledger_available(monkeypatch: pytest.MonkeyPatch) -> None:
    url = shared_postgres().new_database(new_database())

    async def run() -> None:
        ledger = await open_ledger(url)
        with monkeypatch.context() as shortened:
            shortened.setattr(pool, "CALL_TIMEOUT_S", 0.2)
            shortened.setattr(pool, "SCAN_TIMEOUT_S", 0.3)
            with pytest.raises(Unavailable, match="took longer than"):
                await ledger.pool.scan(lambda c: c.execute("SELECT pg_sleep(60)"))
        await ledger.ping()
        assert (await ledger.pods())[0].pod_id
        await ledger.close()

    asyncio.run(run())


def test_ledger_works_behind_a_pooler_in_transaction_mode(tmp_path: Path) -> None:
    del tmp_path
    server = shared_postgres()
    name = new_database()
    server.new_database(name)
    with temporary_folder() as folder, PgBouncer(folder / "pgbouncer", server) as pooler:

        async def run() -> None:
            ledgers = [await open_ledger(pooler.url(name), connections=10) for _ in range(3)]
            assert all(ledger.pool.is_pooled for ledger in ledgers)
            board = await new_board(ledgers[0], rule=Rule.INCREMENT)
            await asyncio.gather(
                *(
                    ledgers[number % 3].record([new_event(board, f"e{number}", f"u{number % 4}", 1.0, number)])
                    for number in range(120)
                )
            )
            rows = [row async for chunk in ledgers[1].rows(board.periods[0].id) for row in chunk]
            assert [row.standing and row.standing.score for row in rows] == [30.0] * 4
            ranks = ledgers[2].ranks
            page = await ranks.top(board.ranking(board.periods[0].id), 0, 10, board.rank_style)
            assert page.total == 4
            for ledger in ledgers:
                await ledger.close()

        asyncio.run(run())


def test_direct_connection_is_not_detected_as_pooled() -> None:
    async def run() -> None:
        ledger = await open_ledger(shared_postgres().new_database(new_database()))
        assert not ledger.pool.is_pooled
        await ledger.close()

    asyncio.run(run())


def test_open_transaction_in_another_database_adds_no_changes() -> None:
    """The transaction may be in another database and stay open for hours."""

    async def run() -> None:
        url = shared_postgres().new_database(new_database())
        ledger = await open_ledger(url)
        board = await new_board(ledger, rule=Rule.INCREMENT)
        old = await asyncpg.connect(shared_postgres().new_database(new_database()))
        transaction = old.transaction()
        await transaction.start()
        await old.execute("CREATE TABLE busy ()")
        for number in range(5):
            position = await ledger.position()
            await ledger.record([new_event(board, f"e{number}-{n}", f"u{n}", 1.0, n) for n in range(number + 1)])
            rows = [row async for chunk in ledger.changes(position) for row in chunk]
            assert len(rows) == number + 1
            assert await ledger.count_changes(position, 100) == number + 1
        await transaction.rollback()
        await old.close()
        await ledger.close()

    asyncio.run(run())


def test_position_older_than_forgotten_changes_requires_a_rebuild() -> None:
    async def run() -> None:
        url = shared_postgres().new_database(new_database())
        ledger = await open_ledger(url)
        board = await new_board(ledger, rule=Rule.INCREMENT, segments=("global", "region"))
        await ledger.record([new_event(board, f"e{n}", f"u{n}", 1.0, n) for n in range(20)])
        old = await asyncpg.connect(url)
        await old.execute("BEGIN")
        unfinished = await old.fetchval("SELECT pg_current_xact_id()::text")

        async def count_from(position: Position, *unfinished: str) -> int:
            """Count changes from a position at which only the given transactions were unfinished."""
            snapshot, mark = position.at.split(" ")
            _, next_id, _ = snapshot.split(":")
            at = f"{next_id}:{next_id}:{','.join(unfinished)} {mark}"
            return await ledger.count_changes(replace(position, at=at), 100)

        positions = []
        for number in range(20):
            positions.append(await ledger.position())
            await ledger.profiles.change_profiles("pod", [ProfileChange(f"u{number}", region="eu")], 1)
        assert [await count_from(position) for position in positions] == list(range(20, 0, -1))
        assert [await ledger.forget_changes(5, 10) for _ in range(3)] == [10, 5, 0]
        assert [await count_from(position) for position in positions] == [100] * 15 + [5, 4, 3, 2, 1]
        (rows,) = [chunk async for chunk in ledger.changes(positions[15]) if chunk]
        assert {row.user_id for row in rows} >= {f"u{number}" for number in range(15, 20)}
        # Changes of a transaction that was unfinished at the position may be forgotten only after it ends.
        assert await count_from(positions[15], unfinished) == 5
        await old.execute("COMMIT")
        assert await count_from(positions[15], unfinished) == 100
        await old.close()
        await ledger.close()

    asyncio.run(run())


def test_connections_have_a_statement_timeout() -> None:
    async def run() -> None:
        ledger = await open_ledger(shared_postgres().new_database(new_database()))
        for _ in range(3):
            assert await ledger.pool.read(lambda c: c.fetchval("SHOW statement_timeout")) == "1min"
        await ledger.close()

    asyncio.run(run())


def test_writes_during_a_restart_wait_and_count_once(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laurels.adapters.postgres.pool.PATIENCE_S", 60)

    async def run() -> None:
        ledger = await open_ledger(postgres.url())
        board = await new_board(ledger, rule=Rule.INCREMENT)
        await ledger.record([new_event(board, "first", "ada", 1.0, 1)])
        restarting = asyncio.create_task(asyncio.to_thread(restart, postgres))
        written = 0
        while not restarting.done():
            await ledger.record([new_event(board, f"e{written}", "ada", 1.0, 1)])
            written += 1
        await restarting
        (row,) = await ledger.rows_of_user([board.periods[0].id], "ada")
        assert row.standing is not None
        assert row.standing.score == written + 1
        await ledger.close()

    asyncio.run(run())


def restart(postgres: PostgresServer) -> None:
    postgres.stop()
    postgres.start()


def test_failover_to_a_standby_loses_no_events() -> None:
    """The URL names both hosts, as the operating docs say. Replication is synchronous."""
    with (
        temporary_folder() as folder,
        PostgresServer(folder / "primary") as primary,
        PostgresServer(folder / "standby", None, hot_standby="on") as standby,
    ):
        standby.kill()
        shutil.rmtree(standby.folder / "data")
        standby.copy_from(primary)
        standby.start()
        until(lambda: "streaming" in primary.sql("SELECT state FROM pg_stat_replication").stdout, "the standby")
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.sql("SELECT pg_reload_conf()")
        hosts = f"{HOST}:{primary.port},{HOST}:{standby.port}"
        url = f"postgresql://{primary.user}@{hosts}/postgres?target_session_attrs=read-write"

        async def run() -> None:
            ledger = await open_ledger(url)
            board = await new_board(ledger, rule=Rule.INCREMENT)
            counted = 0

            async def write(count: int) -> None:
                nonlocal counted
                for _ in range(count):
                    event = new_event(board, f"e{counted}", "ada", 1.0, counted)
                    while True:
                        try:
                            await ledger.record([event])
                            break
                        except Unavailable:
                            await asyncio.sleep(0.05)
                    counted += 1

            await write(20)
            primary.kill()
            writing = asyncio.create_task(write(20))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(standby.promote)
            await writing
            (row,) = await ledger.rows_of_user([board.periods[0].id], "ada")
            assert row.standing is not None
            assert row.standing.score == counted == 40
            assert await ledger.count_events() == 40
            await ledger.close()

        asyncio.run(run())


def test_terminated_connections_lose_and_duplicate_no_events(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laurels.adapters.postgres.pool.PATIENCE_S", 60)

    async def run() -> None:
        ledger = await open_ledger(postgres.url())
        board = await new_board(ledger, rule=Rule.INCREMENT)
        killer = await asyncpg.connect(postgres.url())

        async def cut() -> None:
            for _ in range(30):
                await asyncio.sleep(0.01)
                await killer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                )

        cutting = asyncio.create_task(cut())
        number = 0
        while not cutting.done():
            await ledger.record([new_event(board, f"e{number}", "ada", 1.0, number)])
            number += 1
        await cutting
        await killer.close()
        (row,) = await ledger.rows_of_user([board.periods[0].id], "ada")
        assert row.standing is not None
        assert row.standing.score == number
        await ledger.close()

    asyncio.run(run())


def test_ledger_recovers_after_an_unresponsive_server_resumes(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        ledger = await open_ledger(postgres.url())
        board = await new_board(ledger, rule=Rule.INCREMENT)
        event = new_event(board, "e", "ada", 1.0, 1)
        postgres.freeze()
        with monkeypatch.context() as hurried:
            hurried.setattr("laurels.adapters.postgres.pool.CALL_TIMEOUT_S", 0.5)
            hurried.setattr("laurels.adapters.postgres.pool.ACQUIRE_TIMEOUT_S", 0.5)
            for _ in range(5):
                with pytest.raises(Unavailable) as caught:
                    await ledger.record([event])
                assert caught.value.code == "ledger_unavailable"
        postgres.thaw()

        async def is_recorded() -> bool:
            with contextlib.suppress(Unavailable):
                return bool(await ledger.record([event]))
            return False

        await until_async(is_recorded, "the ledger")
        (row,) = await ledger.rows_of_user([board.periods[0].id], "ada")
        assert row.standing is not None
        assert row.standing.score == 1
        await ledger.close()

    asyncio.run(run())
