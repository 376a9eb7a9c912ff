"""Repair of the index after every kind of loss; until then a stale ranking is reported as stale.

The service runs in this process, with a real PostgreSQL and a real Redis. The tests kill Redis, restore old snapshots,
and write to the ledger without updating the index.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from laurels.adapters.postgres import PostgresLedger
from laurels.adapters.redis import RedisConnection, RedisFeed, RedisIndex, parse_redis_url
from laurels.core.board import Board
from laurels.core.order import Ties
from laurels.core.scores import Rule
from laurels.errors import Unavailable
from laurels.ports import IndexHealth
from laurels.service.index import repairer
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.ledgers import FakeClock, new_event
from support.services import arguments, differences
from support.stores import RedisServer, end_claim, shared_postgres, temporary_folder
from support.waiting import until_async, until_so

_names = iter(range(10**6))


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """Start a Redis that saves only on demand, so that a restart brings back an older state."""
    with temporary_folder() as folder, RedisServer(folder / "redis") as server:
        yield server


@pytest.fixture
def database() -> str:
    return shared_postgres().new_database(f"healing_{next(_names)}")


@contextlib.asynccontextmanager
async def serving(
    database: str, redis: RedisServer, timeout_ms: int = 10_000, **settings: Any
) -> AsyncIterator[tuple[Laurels, Board]]:
    connection = RedisConnection(parse_redis_url(redis.url), timeout_ms)
    laurels = Laurels(
        PostgresLedger(database, FakeClock(), max_connections=4),
        RedisIndex(connection),
        RedisFeed(connection),
        FakeClock(),
        **arguments({"repair_interval_ms": 100} | settings),
    )
    try:
        await laurels.open()
        await laurels.load()
        board = Board(
            id=0,
            uuid="only",
            pod_id="default",
            name="Only",
            rule=Rule.INCREMENT,
            ties=Ties.SHARED,
            created_at=0,
        )
        board = await laurels.boards.create(board, None)
        # Wait for all boards: a server that loses Redis during a build must wait until its claim expires.
        await until_async(lambda: is_healthy(laurels, *laurels.boards.all()), "healthy rankings", 10)
        yield laurels, board
    finally:
        await laurels.close()


async def is_healthy(laurels: Laurels, *boards: Board) -> bool:
    states = await laurels.index.states([board.ranking(period.id) for board in boards for period in board.periods])
    return {state.health for parts in states for state in parts} == {
        IndexHealth.READY
    } and not laurels.repairer.is_repairing


async def submit(laurels: Laurels, board: Board, first: int, count: int) -> None:
    await laurels.submissions.submit_many(
        board, [Submission(f"u{number}", number, event_id=f"e{number}") for number in range(first, first + count)]
    )


def restore_snapshot(redis: RedisServer) -> None:
    """Kill Redis and start it from its last snapshot."""
    redis.kill()
    redis.start()


def test_redis_restarted_from_an_old_snapshot_is_stale_until_repaired(database: str, redis: RedisServer) -> None:
    async def run() -> None:
        async with serving(database, redis, repair_interval_ms=600_000) as (laurels, board):
            ranking = board.ranking(board.periods[0].id)
            await submit(laurels, board, 0, 50)
            redis.call("SAVE")
            await submit(laurels, board, 50, 50)
            await asyncio.to_thread(restore_snapshot, redis)

            async def is_catching_up() -> bool:
                # Half of the users are missing in Redis, so the index must not answer.
                with pytest.raises(Unavailable) as caught:
                    await laurels.index.top(ranking, 0, 10, board.rank_style)
                return caught.value.code == "catching_up"

            # Connections to the killed Redis must end first.
            await until_async(is_catching_up, "Redis", 10)
            shown = await laurels.reads.top(board, Selection(), 0, 3)
            assert shown.degraded
            assert [place.user_id for place in shown.value.entries] == ["u99", "u98", "u97"]
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            shown = await laurels.reads.top(board, Selection(), 0, 3)
            assert (shown.degraded, shown.value.total) == (False, 100)
            # Repair the boards that no read has touched.
            await laurels.repairer.run_pass()
            assert await differences(laurels) == []

    asyncio.run(run())


async def reachable(laurels: Laurels) -> bool:
    try:
        await laurels.index.ping()
    except Unavailable:
        return False
    return True


def test_ranking_far_behind_the_ledger_is_rebuilt(
    database: str, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairer, "CATCH_UP_EVENTS", 20)

    async def run() -> None:
        async with serving(database, redis) as (laurels, board):
            await submit(laurels, board, 0, 10)
            redis.call("SAVE")
            await submit(laurels, board, 10, 90)
            await asyncio.to_thread(restore_snapshot, redis)
            await until_async(lambda: reachable(laurels), "Redis", 10)
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            assert (await laurels.reads.top(board, Selection(), 0, 3)).value.total == 100
            assert await differences(laurels) == []

    asyncio.run(run())


def test_repair_pass_finds_events_that_a_dead_server_did_not_index(database: str, redis: RedisServer) -> None:
    async def run() -> None:
        async with serving(database, redis) as (laurels, board):
            await submit(laurels, board, 0, 5)
            await laurels.ledger.record([new_event(board, "orphan", "orphan", 1000.0, 1)])

            async def is_first() -> bool:
                page = (await laurels.reads.top(board, Selection(), 0, 1)).value
                return page.entries[0].user_id == "orphan"

            await until_async(is_first, "the first", 10)
            assert await differences(laurels) == []

    asyncio.run(run())


def test_rows_that_a_repair_pass_could_not_apply_are_retried(database: str, redis: RedisServer) -> None:
    """Redis is out of memory: it answers reads and refuses writes."""

    async def run() -> None:
        async with serving(database, redis, repair_interval_ms=600_000) as (laurels, board):
            await submit(laurels, board, 0, 5)
            await laurels.ledger.record([new_event(board, "orphan", "orphan", 1000.0, 1)])
            redis.call("CONFIG", "SET", "maxmemory", "1")
            await laurels.repairer.run_pass()
            for _ in range(50):
                shown = await laurels.reads.top(board, Selection(), 0, 1)
                assert (shown.degraded, shown.value.entries[0].user_id) == (True, "orphan")
                await asyncio.sleep(0.02)
            redis.call("CONFIG", "SET", "maxmemory", "0")
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            shown = await laurels.reads.top(board, Selection(), 0, 1)
            assert (shown.degraded, shown.value.entries[0].user_id) == (False, "orphan")
            assert await differences(laurels) == []

    asyncio.run(run())


def test_rows_found_during_a_repair_are_repaired_too(
    database: str, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass leaves rows that it can't apply to the repair task, which is about to end."""

    async def run() -> None:
        async with serving(database, redis, repair_interval_ms=600_000) as (laurels, board):
            await submit(laurels, board, 0, 5)
            repairer, index = laurels.repairer, laurels.index
            period_id = board.periods[0].id
            looks = 0
            states = index.states

            async def late_find(rankings: Any) -> Any:
                nonlocal looks
                looks += 1
                if looks == 2:
                    await laurels.ledger.record([new_event(board, "orphan", "orphan", 1000.0, 1)])
                    repairer.mark_stale(period_id)
                    repairer.schedule(board, board.ranking(period_id))
                return await states(rankings)

            monkeypatch.setattr(index, "states", late_find)
            repairer.schedule(board, board.ranking(period_id))
            await until_so(lambda: not repairer.is_repairing, "the end of the repair")
            assert not repairer.is_stale(board.ranking(period_id))
            shown = await laurels.reads.top(board, Selection(), 0, 1)
            assert (shown.degraded, shown.value.entries[0].user_id) == (False, "orphan")

    asyncio.run(run())


def test_repair_pass_finds_a_transaction_that_commits_late(database: str, redis: RedisServer) -> None:
    """Its versions are lower than those of transactions that the pass saw earlier."""

    async def run() -> None:
        async with serving(database, redis, repair_interval_ms=600_000) as (laurels, board):
            late = await asyncpg.connect(database)
            transaction = late.transaction()
            await transaction.start()
            await late.execute(
                "INSERT INTO events (seq, board_id, event_id, user_id, score, at, stamped, received_at) "
                "VALUES (nextval('event_seqs'), $1, 'late', 'late', 7, 1, false, 1)",
                board.id,
            )
            await late.execute(
                "INSERT INTO scores VALUES ($1, 'late', 7, 1, 7, true, nextval('versions'))", board.periods[0].id
            )
            await submit(laurels, board, 0, 5)
            for _ in range(3):
                await laurels.repairer.run_pass()
            await transaction.commit()
            await late.close()
            await submit(laurels, board, 5, 5)
            await laurels.repairer.run_pass()
            found = (await laurels.reads.rank(board, Selection(), "late")).value
            assert (found.entry.score, found.total) == (7, 11)
            assert await differences(laurels) == []

    asyncio.run(run())


def test_rows_wait_in_the_queue_while_redis_does_not_respond(database: str, redis: RedisServer) -> None:
    async def run() -> None:
        async with serving(database, redis, 1000, repair_interval_ms=600_000) as (laurels, board):
            await submit(laurels, board, 0, 5)
            redis.freeze()
            await submit(laurels, board, 5, 5)
            assert laurels.repairer.waiting == 5
            redis.thaw()
            # Reads are correct from the first moment on, whether from the index or from the ledger.
            for _ in range(100):
                shown = await laurels.reads.top(board, Selection(), 0, 1)
                assert shown.value.total == 10
                await asyncio.sleep(0.01)
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            assert laurels.repairer.waiting == 0
            assert (await laurels.reads.top(board, Selection(), 0, 1)).value.total == 10
            assert await differences(laurels) == []

    asyncio.run(run())


def test_rows_beyond_the_queue_limit_are_repaired_from_the_ledger(
    database: str, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairer, "QUEUE_ROWS", 3)

    async def run() -> None:
        async with serving(database, redis, 1000, repair_interval_ms=600_000) as (laurels, board):
            await submit(laurels, board, 0, 5)
            redis.freeze()
            await submit(laurels, board, 5, 50)
            assert laurels.repairer.waiting == 0
            redis.thaw()
            for _ in range(100):
                assert (await laurels.reads.top(board, Selection(), 0, 1)).value.total == 55
                await asyncio.sleep(0.01)
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            shown = await laurels.reads.top(board, Selection(), 0, 1)
            assert (shown.degraded, shown.value.total) == (False, 55)
            assert await differences(laurels) == []

    asyncio.run(run())


def test_revision_is_never_reused_after_redis_loses_data(database: str, redis: RedisServer) -> None:
    async def run() -> None:
        async with serving(database, redis) as (laurels, board):
            ranking = board.ranking(board.periods[0].id)
            seen = set()
            for number in range(6):
                await submit(laurels, board, number, 1)
                seen.add(await laurels.index.revision(ranking))
                if number == 2:
                    redis.call("SAVE")
            await asyncio.to_thread(restore_snapshot, redis)
            await until_async(lambda: reachable(laurels), "Redis", 10)
            for number in range(6, 12):
                await submit(laurels, board, number, 1)
                await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
                assert await laurels.index.revision(ranking) not in seen

    asyncio.run(run())


def test_index_of_another_ledger_is_not_used(database: str, redis: RedisServer) -> None:
    async def fill(url: str, count: int) -> None:
        async with serving(url, redis) as (laurels, board):
            await submit(laurels, board, 0, count)
            assert (await laurels.reads.top(board, Selection(), 0, 1)).value.total == count

    asyncio.run(fill(database, 9))
    asyncio.run(fill(shared_postgres().new_database(f"healing_{next(_names)}"), 3))


def test_index_ahead_of_a_restored_ledger_is_repaired(database: str, redis: RedisServer) -> None:
    """A position ahead of the ledger's own belongs to another history."""

    async def run() -> None:
        async with serving(database, redis) as (laurels, board):
            ranking = board.ranking(board.periods[0].id)
            await submit(laurels, board, 0, 5)
            ((state,),) = await laurels.index.states([ranking])
            assert state.position is not None
            mark = state.position.at.partition(" ")[2]
            ahead = replace(state.position, at=f"{10**15}:{10**15}: {mark}")
            await laurels.index.confirm(ranking, state, ahead)
            await laurels.ledger.record([new_event(board, "after", "after", 1.0, 1)])

            async def is_counted() -> bool:
                return (await laurels.reads.counts([board])).value == [6]

            await until_async(is_counted, "the count", 10)
            assert await differences(laurels) == []

    asyncio.run(run())


def test_build_of_a_dead_server_is_replaced_when_its_claim_expires(database: str, redis: RedisServer) -> None:
    async def run() -> None:
        async with serving(database, redis) as (laurels, board):
            ranking = board.ranking(board.periods[0].id)
            await submit(laurels, board, 0, 5)
            index = laurels.index
            assert isinstance(index, RedisIndex)
            await index.drop(ranking)
            history = laurels.ledger.as_of.history
            await index.scripts.run(ranking, 0, "begin_build", "dead", 60_000, "any", history, 0, 8)
            with pytest.raises(Unavailable) as caught:
                await laurels.repairer.build(board, ranking)
            assert caught.value.code == "build_running"
            end_claim(redis, index.scripts.names.of(ranking)[0].names[0])
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            assert (await index.scripts.run(ranking, 0, "build", "dead", 500, b"\x90", b""))[0] == b"gone"
            assert (await laurels.reads.counts([board])).value == [5]

    asyncio.run(run())
