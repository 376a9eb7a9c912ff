"""An index that lost something, in every way that it can, is brought up to the ledger again, and says so meanwhile.

The service in this process, on a real PostgreSQL and a real Redis that the test kills, restores and writes past.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from laurels.adapters.http_sender import HttpSender
from laurels.adapters.postgres import PostgresLedger
from laurels.adapters.redis import RedisConnection, RedisFeed, RedisIndex, parse_redis_url
from laurels.core.board import Board
from laurels.core.order import Ties
from laurels.core.scores import Rule
from laurels.errors import Unavailable
from laurels.ports import Standby
from laurels.service import healing
from laurels.service.laurels import Laurels
from laurels.service.reads import Selection
from laurels.service.submit import Submission
from support.ledgers import FakeClock, new_event
from support.services import DEFAULTS, differences
from support.stores import RedisServer, end_claim, shared_postgres, temporary_folder
from support.waiting import until_async, until_so

_names = iter(range(10**6))


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """Its snapshots are made by hand, so that a restart brings an older state back."""
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
        **({"sender": HttpSender()} | DEFAULTS | {"repair_interval_ms": 100} | settings),
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
        # All of them: whoever loses Redis while building has to wait until its claim ends.
        await until_async(lambda: is_healthy(laurels, *laurels.boards.all()), "healthy rankings", 10)
        yield laurels, board
    finally:
        await laurels.close()


async def is_healthy(laurels: Laurels, *boards: Board) -> bool:
    states = await laurels._index.states([board.ranking(period.id) for board in boards for period in board.periods])
    return {state.standby for state in states} == {Standby.READY} and not laurels._healer.is_mending


async def submit(laurels: Laurels, board: Board, first: int, count: int) -> None:
    await laurels.submissions.submit_many(
        board, [Submission(f"u{number}", number, event_id=f"e{number}") for number in range(first, first + count)]
    )


def restore_snapshot(redis: RedisServer) -> None:
    """Kill it and start it again from the last snapshot."""
    redis.kill()
    redis.start()


def test_a_redis_that_comes_back_with_an_older_state_says_so_and_catches_up(database: str, redis: RedisServer) -> None:
    async def run() -> None:
        async with serving(database, redis, repair_interval_ms=600_000) as (laurels, board):
            ranking = board.ranking(board.periods[0].id)
            await submit(laurels, board, 0, 50)
            redis.call("SAVE")
            await submit(laurels, board, 50, 50)
            await asyncio.to_thread(restore_snapshot, redis)

            async def is_catching_up() -> bool:
                # Half of the users are missing from what Redis has: nothing of it may be shown.
                with pytest.raises(Unavailable) as caught:
                    await laurels._index.top(ranking, 0, 10, board.rank_style)
                return caught.value.code == "catching_up"

            # Before that, connections to the Redis that is gone have to end.
            await until_async(is_catching_up, "Redis", 10)
            shown = await laurels.reads.top(board, Selection(), 0, 3)
            assert shown.degraded
            assert [place.user_id for place in shown.value.places] == ["u99", "u98", "u97"]
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            shown = await laurels.reads.top(board, Selection(), 0, 3)
            assert (shown.degraded, shown.value.total) == (False, 100)
            # The other boards, whom nobody asked for.
            await laurels._healer.pass_once()
            assert await differences(laurels) == []

    asyncio.run(run())


async def reachable(laurels: Laurels) -> bool:
    try:
        await laurels._index.ping()
    except Unavailable:
        return False
    return True


def test_a_ranking_that_is_far_behind_is_built_anew(
    database: str, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "CATCH_UP_EVENTS", 20)

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


def test_what_a_dead_server_left_between_ledger_and_index_is_found_by_the_pass(
    database: str, redis: RedisServer
) -> None:
    async def run() -> None:
        async with serving(database, redis) as (laurels, board):
            await submit(laurels, board, 0, 5)
            await laurels._ledger.record([new_event(board, "orphan", "orphan", 1000.0, 1)])

            async def is_first() -> bool:
                page = (await laurels.reads.top(board, Selection(), 0, 1)).value
                return page.places[0].user_id == "orphan"

            await until_async(is_first, "the first", 10)
            assert await differences(laurels) == []

    asyncio.run(run())


def test_what_a_pass_found_and_could_not_apply_is_not_forgotten(database: str, redis: RedisServer) -> None:
    """Redis has no memory left: it answers, and takes nothing."""

    async def run() -> None:
        async with serving(database, redis, repair_interval_ms=600_000) as (laurels, board):
            await submit(laurels, board, 0, 5)
            await laurels._ledger.record([new_event(board, "orphan", "orphan", 1000.0, 1)])
            redis.call("CONFIG", "SET", "maxmemory", "1")
            await laurels._healer.pass_once()
            for _ in range(50):
                shown = await laurels.reads.top(board, Selection(), 0, 1)
                assert (shown.degraded, shown.value.places[0].user_id) == (True, "orphan")
                await asyncio.sleep(0.02)
            redis.call("CONFIG", "SET", "maxmemory", "0")
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            shown = await laurels.reads.top(board, Selection(), 0, 1)
            assert (shown.degraded, shown.value.places[0].user_id) == (False, "orphan")
            assert await differences(laurels) == []

    asyncio.run(run())


def test_what_is_found_while_a_ranking_is_mended_is_mended_too(
    database: str, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that can't apply something leaves it to the task that is just about to end."""

    async def run() -> None:
        async with serving(database, redis, repair_interval_ms=600_000) as (laurels, board):
            await submit(laurels, board, 0, 5)
            healer, index = laurels._healer, laurels._index
            period_id = board.periods[0].id
            looks = 0
            states = index.states

            async def late_find(rankings: Any) -> Any:
                nonlocal looks
                looks += 1
                if looks == 2:
                    await laurels._ledger.record([new_event(board, "orphan", "orphan", 1000.0, 1)])
                    healer._overflowed.add(period_id)
                    healer.mend(board, board.ranking(period_id))
                return await states(rankings)

            monkeypatch.setattr(index, "states", late_find)
            healer.mend(board, board.ranking(period_id))
            await until_so(lambda: not healer.is_mending, "the end of it")
            assert not healer.is_behind(board.ranking(period_id))
            shown = await laurels.reads.top(board, Selection(), 0, 1)
            assert (shown.degraded, shown.value.places[0].user_id) == (False, "orphan")

    asyncio.run(run())


def test_a_pass_does_not_miss_a_transaction_that_commits_late(database: str, redis: RedisServer) -> None:
    """Its numbers are older than those of transactions that were seen before it."""

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
                await laurels._healer.pass_once()
            await transaction.commit()
            await late.close()
            await submit(laurels, board, 5, 5)
            await laurels._healer.pass_once()
            found = (await laurels.reads.rank(board, Selection(), "late")).value
            assert (found.place.score, found.total) == (7, 11)
            assert await differences(laurels) == []

    asyncio.run(run())


def test_rows_that_could_not_be_applied_wait_in_the_queue(database: str, redis: RedisServer) -> None:
    async def run() -> None:
        async with serving(database, redis, 1000, repair_interval_ms=600_000) as (laurels, board):
            await submit(laurels, board, 0, 5)
            redis.freeze()
            await submit(laurels, board, 5, 5)
            assert laurels._healer.waiting == 5
            redis.thaw()
            # From the first moment on: what is shown is right, wherever it comes from.
            for _ in range(100):
                shown = await laurels.reads.top(board, Selection(), 0, 1)
                assert shown.value.total == 10
                await asyncio.sleep(0.01)
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            assert laurels._healer.waiting == 0
            assert (await laurels.reads.top(board, Selection(), 0, 1)).value.total == 10
            assert await differences(laurels) == []

    asyncio.run(run())


def test_more_rows_than_the_queue_takes_are_found_in_the_ledger(
    database: str, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "QUEUE_ROWS", 3)

    async def run() -> None:
        async with serving(database, redis, 1000, repair_interval_ms=600_000) as (laurels, board):
            await submit(laurels, board, 0, 5)
            redis.freeze()
            await submit(laurels, board, 5, 50)
            assert laurels._healer.waiting == 0
            redis.thaw()
            for _ in range(100):
                assert (await laurels.reads.top(board, Selection(), 0, 1)).value.total == 55
                await asyncio.sleep(0.01)
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            shown = await laurels.reads.top(board, Selection(), 0, 1)
            assert (shown.degraded, shown.value.total) == (False, 55)
            assert await differences(laurels) == []

    asyncio.run(run())


def test_a_revision_never_comes_back_with_another_content(database: str, redis: RedisServer) -> None:
    async def run() -> None:
        async with serving(database, redis) as (laurels, board):
            ranking = board.ranking(board.periods[0].id)
            seen = set()
            for number in range(6):
                await submit(laurels, board, number, 1)
                seen.add(await laurels._index.revision(ranking))
                if number == 2:
                    redis.call("SAVE")
            await asyncio.to_thread(restore_snapshot, redis)
            await until_async(lambda: reachable(laurels), "Redis", 10)
            for number in range(6, 12):
                await submit(laurels, board, number, 1)
                await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
                assert await laurels._index.revision(ranking) not in seen

    asyncio.run(run())


def test_an_index_of_another_ledger_is_not_taken_for_this_one(database: str, redis: RedisServer) -> None:
    async def fill(url: str, count: int) -> None:
        async with serving(url, redis) as (laurels, board):
            await submit(laurels, board, 0, count)
            assert (await laurels.reads.top(board, Selection(), 0, 1)).value.total == count

    asyncio.run(fill(database, 9))
    asyncio.run(fill(shared_postgres().new_database(f"healing_{next(_names)}"), 3))


def test_a_ledger_that_was_set_back_to_a_backup_makes_the_index_follow(database: str, redis: RedisServer) -> None:
    """Positions that lie ahead of the ledger's are of another time."""

    async def run() -> None:
        async with serving(database, redis) as (laurels, board):
            ranking = board.ranking(board.periods[0].id)
            await submit(laurels, board, 0, 5)
            (state,) = await laurels._index.states([ranking])
            assert state.position is not None
            mark = state.position.at.partition(" ")[2]
            ahead = replace(state.position, at=f"{10**15}:{10**15}: {mark}")
            await laurels._index.confirm(ranking, state, ahead)
            await laurels._ledger.record([new_event(board, "after", "after", 1.0, 1)])

            async def is_counted() -> bool:
                return (await laurels.reads.counts([board])).value == [6]

            await until_async(is_counted, "the count", 10)
            assert await differences(laurels) == []

    asyncio.run(run())


def test_a_builder_that_dies_is_replaced_when_its_claim_ends(database: str, redis: RedisServer) -> None:
    async def run() -> None:
        async with serving(database, redis) as (laurels, board):
            ranking = board.ranking(board.periods[0].id)
            await submit(laurels, board, 0, 5)
            index = laurels._index
            assert isinstance(index, RedisIndex)
            await index.drop(ranking)
            history = laurels._ledger.as_of.history
            await index._run(ranking, "begin_build", "dead", 60_000, "", 0, "any", history, 0)
            with pytest.raises(Unavailable) as caught:
                await laurels._healer.build(board, ranking)
            assert caught.value.code == "build_running"
            end_claim(redis, index._keys_of(ranking).names[0])
            await until_async(lambda: is_healthy(laurels, board), "a healthy ranking", 10)
            assert (await index._run(ranking, "build", "dead", 500, b"\x90", b""))[0] == b"gone"
            assert (await laurels.reads.counts([board])).value == [5]

    asyncio.run(run())
