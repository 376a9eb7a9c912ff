"""Lost data: PostgreSQL or Redis comes back with an older state.

Lost writes stay lost. Every server shows what is left, and keeps everything that it acknowledges afterwards.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest
import structlog

from laurels.adapters.postgres import PostgresLedger
from laurels.adapters.redis import RedisConnection, RedisFeed, RedisIndex, parse_redis_url
from laurels.adapters.system_clock import SystemClock
from laurels.core.board import Board, RankStyle
from laurels.core.scores import Rule
from laurels.errors import LaurelsError, NotFound, Unavailable
from laurels.ports import AsOf, RecordOutcome, Row
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Accepted, Submission
from support.replicas import DiskSnapshot, PostgresPair, RedisSnapshot
from support.services import arguments, differences
from support.stores import PostgresServer, RedisServer, shared_redis, temporary_folder
from support.waiting import until, until_async

Stores = tuple[PostgresServer, RedisServer]
T = TypeVar("T")


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    with temporary_folder() as folder, PostgresPair(folder) as both:
        yield both


@pytest.fixture
def stores() -> Iterator[Stores]:
    with (
        temporary_folder() as folder,
        RedisServer(folder / "redis") as redis,
        PostgresServer(folder / "postgres") as postgres,
    ):
        yield postgres, redis


@contextlib.asynccontextmanager
async def serving(url: str, redis: RedisServer | None = None, **settings: Any) -> AsyncIterator[Laurels]:
    connection = RedisConnection(parse_redis_url((redis or shared_redis()).url), timeout_ms=10_000)
    clock = SystemClock()
    settings = {"repair_interval_ms": 300} | settings
    ledger = PostgresLedger(url, clock, max_connections=4)
    laurels = Laurels(ledger, RedisIndex(connection), RedisFeed(connection), clock, **arguments(settings))
    try:
        await laurels.open()
        await laurels.load()
        yield laurels
    finally:
        await laurels.close()


async def make(laurels: Laurels, uuid: str, **fields: Any) -> Board:
    definition = {"rule": Rule.INCREMENT} | fields
    return await laurels.boards.create(
        Board(id=0, uuid=uuid, pod_id="default", name=uuid, created_at=0, **definition), None
    )


def board_of(laurels: Laurels, uuid: str) -> Board:
    return next(board for board in laurels.boards.all() if board.uuid == uuid)


async def insist(work: Callable[[], Awaitable[T]]) -> T:
    """Retry while the ledger is unavailable, as clients do during a failover."""
    while True:
        try:
            return await work()
        except Unavailable:
            await asyncio.sleep(0.05)


async def answers(laurels: Laurels) -> bool:
    with contextlib.suppress(Unavailable):
        await laurels.ledger.ping()
        return True
    return False


async def submit(laurels: Laurels, uuid: str, user: str, score: float, event_id: str) -> Accepted:
    return await insist(
        lambda: laurels.submissions.submit(board_of(laurels, uuid), Submission(user, score, event_id=event_id))
    )


async def top(laurels: Laurels, uuid: str) -> tuple[dict[str, float], bool]:
    shown = await laurels.reads.top(board_of(laurels, uuid), Selection(), 0, 100)
    return {place.user_id: place.score for place in shown.value.entries}, shown.degraded


async def await_top(laurels: Laurels, uuid: str, wanted: dict[str, float]) -> None:
    """Wait until the index, not the ledger, returns the wanted scores."""

    async def is_shown() -> bool:
        with contextlib.suppress(Unavailable):
            return await top(laurels, uuid) == (wanted, False)
        return False

    await until_async(is_shown, f"{wanted} on {uuid}")


def test_writes_succeed_after_a_board_change_was_lost(pair: PostgresPair) -> None:
    async def run() -> None:
        async with serving(pair.url()) as one, serving(pair.url()) as two:
            await make(one, "changed")
            await make(one, "other")
            await asyncio.to_thread(pair.catch_up)
            await until_async(lambda: _sees(two, "other"), "the boards")
            pair.cut()
            await one.boards.change(board_of(one, "changed"), {"metadata": {"lost": True}})
            await until_async(lambda: _has_metadata(two, "changed"), "the change")
            await asyncio.to_thread(pair.fail_over)
            # Writes to both boards share batches, on both servers; none is refused because of the other board.
            for laurels in (one, two):
                name = "one" if laurels is one else "two"
                await asyncio.gather(
                    *(
                        submit(laurels, uuid, f"{name}-{n}", 1, f"{name}-{n}")
                        for n in range(20)
                        for uuid in ("changed", "other")
                    )
                )
            for laurels in (one, two):
                assert board_of(laurels, "changed").metadata is None
                for uuid in ("changed", "other"):
                    await await_top(laurels, uuid, {f"{name}-{n}": 1.0 for name in ("one", "two") for n in range(20)})
            assert await differences(one) == []

    async def _sees(laurels: Laurels, uuid: str) -> bool:
        return any(board.uuid == uuid for board in laurels.boards.all())

    async def _has_metadata(laurels: Laurels, uuid: str) -> bool:
        return board_of(laurels, uuid).metadata is not None

    asyncio.run(run())


def test_lost_board_refuses_scores_and_can_be_created_again(pair: PostgresPair) -> None:
    async def run() -> None:
        async with serving(pair.url()) as laurels:
            await make(laurels, "kept")
            await asyncio.to_thread(pair.catch_up)
            pair.cut()
            lost = await make(laurels, "lost")
            assert (await submit(laurels, "lost", "ada", 1, "e1")).outcome is RecordOutcome.ACCEPTED
            await asyncio.to_thread(pair.fail_over)
            # A caller that still holds the lost board can't write to it, because acknowledged scores must count.
            with pytest.raises(NotFound):
                await insist(lambda: laurels.submissions.submit(lost, Submission("ada", 1, event_id="e2")))
            assert await laurels.ledger.count_events(lost.id) == 0
            with pytest.raises(StopIteration):
                board_of(laurels, "lost")
            again = await make(laurels, "lost")
            # Ids that were used before the loss are not used again.
            assert again.id > lost.id
            assert {period.id for period in again.periods}.isdisjoint({period.id for period in lost.periods})
            await submit(laurels, "lost", "bob", 2, "e3")
            await await_top(laurels, "lost", {"bob": 2.0})
            assert await differences(laurels) == []

    asyncio.run(run())


def test_lost_scores_are_not_shown_and_do_not_override_new_ones(pair: PostgresPair) -> None:
    async def run() -> None:
        async with serving(pair.url()) as one, serving(pair.url()) as two:
            await make(one, "b")
            await submit(one, "b", "ada", 5, "kept")
            await asyncio.to_thread(pair.catch_up)
            await until_async(lambda: _shows_both(two), "the board")
            before = one.ledger.as_of
            pair.cut()
            for number in range(200):
                await submit(one, "b", "ada", 25, f"lost-{number}")
            await submit(one, "b", "bob", 10, "lost-bob")
            await await_top(two, "b", {"ada": 5005.0, "bob": 10.0})
            lost = (await one.ledger.rows_of_user([board_of(one, "b").periods[0].id], "bob"))[0]
            await asyncio.to_thread(pair.fail_over)
            accepted = await submit(one, "b", "ada", 2, "after")
            assert accepted.score == 7.0
            for laurels in (one, two):
                await await_top(laurels, "b", {"ada": 7.0})
            # A server that was suspended since before the loss can't bring the row back.
            assert await _apply_late(one, lost, before) == ({"ada": 7.0}, False)
            # If the client repeats the lost event, it counts.
            assert (await submit(two, "b", "bob", 10, "lost-bob")).outcome is RecordOutcome.ACCEPTED
            await await_top(one, "b", {"ada": 7.0, "bob": 10.0})
            assert await differences(one) == []

    async def _shows_both(laurels: Laurels) -> bool:
        return any(board.uuid == "b" for board in laurels.boards.all())

    async def _apply_late(laurels: Laurels, row: Row, as_of: AsOf) -> tuple[dict[str, float], bool]:
        ranking = board_of(laurels, "b").ranking(row.period_id)
        assert (await laurels.index.apply(ranking, [row], RankStyle.ORDINAL, as_of=as_of)).refused
        return await top(laurels, "b")

    asyncio.run(run())


def test_server_logs_if_postgresql_may_lose_data(pair: PostgresPair) -> None:
    async def opened(url: str) -> list[str]:
        with structlog.testing.capture_logs() as logs:
            ledger = PostgresLedger(url, SystemClock(), max_connections=2)
            await ledger.open()
            # The ledger works nevertheless.
            assert ledger.as_of == await ledger.read_as_of()
            await ledger.mark()
            await ledger.close()
        return [each["event"] + ": " + each["reason"] for each in logs if each["event"].startswith("ledger_may_lose")]

    (told,) = asyncio.run(opened(pair.url()))
    assert told.startswith("ledger_may_lose: Standbys follow asynchronously")
    pair.cut()
    until(lambda: pair.followers == 0, "the end of the replication")
    assert asyncio.run(opened(pair.primary.url())) == []
    # A role that is not allowed to read the timeline.
    pair.primary.sql("CREATE ROLE plain LOGIN")
    pair.primary.sql("CREATE DATABASE plain OWNER plain")
    pair.primary.sql("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC", "plain")
    url = pair.primary.url("plain").replace(f"//{pair.primary.user}@", "//plain@")
    (told,) = asyncio.run(opened(url))
    assert told.startswith("ledger_may_lose_unnoticed: This PostgreSQL does not tell its timeline")


@pytest.mark.parametrize("stopped", [True, False], ids=["while nobody runs", "under running servers"])
def test_restored_postgresql_disk_starts_a_new_history(stores: Stores, stopped: bool) -> None:
    """Server, files and timeline are the same: only the missing marks reveal it."""

    async def run(postgres: PostgresServer, redis: RedisServer) -> None:
        async with serving(postgres.url(), redis) as laurels:
            await make(laurels, "b")
            await submit(laurels, "b", "ada", 5, "kept")
            await await_top(laurels, "b", {"ada": 5.0})
            snapshot = await asyncio.to_thread(DiskSnapshot, postgres)
            history = laurels.ledger.as_of.history
            await submit(laurels, "b", "bob", 10, "lost")
            await asyncio.gather(*(submit(laurels, "b", "ada", 100, f"lost-{n}") for n in range(20)))
            await await_top(laurels, "b", {"ada": 2005.0, "bob": 10.0})
            marked = await laurels.ledger.position()
            await until_async(lambda: _moved_on(laurels, marked.at), "another mark")
            if not stopped:
                await asyncio.to_thread(snapshot.restore)
                await check(laurels, history)
        if stopped:
            await asyncio.to_thread(snapshot.restore)
            # Run more transactions than were lost, so that transaction ids no longer reveal the loss.
            for _ in range(60):
                postgres.sql("SELECT pg_current_xact_id()")
            async with serving(postgres.url(), redis) as laurels:
                await check(laurels, history)

    async def check(laurels: Laurels, history: str) -> None:
        await submit(laurels, "b", "ada", 2, "after")
        await await_top(laurels, "b", {"ada": 7.0})
        assert laurels.ledger.as_of.history != history
        assert await differences(laurels) == []

    async def _moved_on(laurels: Laurels, at: str) -> bool:
        await laurels.repairer.run_pass()
        return (await laurels.ledger.position()).at.split()[1] != at.split()[1]

    asyncio.run(run(*stores))


def test_dump_restored_to_another_database_has_another_history() -> None:
    async def run(postgres: PostgresServer) -> None:
        url = postgres.new_database("first")
        async with serving(url) as laurels:
            await make(laurels, "b")
            await submit(laurels, "b", "ada", 5, "e")
            history = laurels.ledger.as_of.history
            sender = await laurels.ledger.sender()
        postgres.new_database("second")
        postgres.dump("first", "second")
        async with serving(postgres.url("second")) as copy:
            assert copy.ledger.as_of.history != history
            assert await copy.ledger.sender() == sender
            await submit(copy, "b", "ada", 1, "f")
            await await_top(copy, "b", {"ada": 6.0})
            assert await differences(copy) == []

    with temporary_folder() as folder, PostgresServer(folder) as postgres:
        asyncio.run(run(postgres))


def test_erased_user_stays_erased_after_redis_restores_an_old_snapshot(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laurels.service.people.erasures.SWEEP_AFTER_US", -1)

    async def run(postgres: PostgresServer, redis: RedisServer) -> None:
        async with serving(postgres.url(), redis) as laurels:
            await make(laurels, "b")
            for user in ("ada", "bob"):
                await submit(laurels, "b", user, 5, user)
            await await_top(laurels, "b", {"ada": 5.0, "bob": 5.0})
            snapshot = await asyncio.to_thread(RedisSnapshot, redis)
            as_of = laurels.ledger.as_of
            (old,) = await laurels.ledger.rows_of_user([board_of(laurels, "b").periods[0].id], "ada")
            caller = laurels.access.authenticate("admin")
            await laurels.erasures.erase(caller, "default", "ada", None, None)
            assert await laurels.erasures.sweep() == 1
            # A server that was suspended since before the erasure applies its old row.
            ranking = board_of(laurels, "b").ranking(old.period_id)
            assert (await laurels.index.apply(ranking, [old], RankStyle.ORDINAL, as_of=as_of)).refused
            await await_top(laurels, "b", {"bob": 5.0})
            await asyncio.to_thread(snapshot.restore)
            await await_top(laurels, "b", {"bob": 5.0})
            # It applies the row again after the ranking was dropped and rebuilt.
            await laurels.index.drop(ranking)
            await await_top(laurels, "b", {"bob": 5.0})
            assert (await laurels.index.apply(ranking, [old], RankStyle.ORDINAL, as_of=as_of)).refused
            await await_top(laurels, "b", {"bob": 5.0})
            # An erased user who plays again is a new user.
            await submit(laurels, "b", "ada", 1, "new")
            await await_top(laurels, "b", {"bob": 5.0, "ada": 1.0})
            assert await differences(laurels) == []

    asyncio.run(run(*stores))


def test_trim_drops_rankings_of_swept_periods(stores: Stores) -> None:
    """Rankings of periods that were swept before Redis came back from an older snapshot."""

    async def run(postgres: PostgresServer, redis: RedisServer) -> None:
        async with serving(postgres.url(), redis) as laurels:
            board = await make(laurels, "b", segments=("global", "region"))
            insist_region = Submission("ada", 5, event_id="e", region="eu")
            await insist(lambda: laurels.submissions.submit(board, insist_region))
            await await_top(laurels, "b", {"ada": 5.0})
            (period,) = board.periods
            snapshot = await asyncio.to_thread(RedisSnapshot, redis)
            await laurels.ledger.pool.write(  # type: ignore[attr-defined]
                lambda c: c.execute("UPDATE periods SET state = 'frozen', swept = true WHERE id = $1", period.id),
                repeat=True,
            )
            await laurels.index.drop(board.ranking(period.id))
            await asyncio.to_thread(snapshot.restore)

            def keys() -> list[bytes]:
                return [key for key in redis.call("KEYS", "*") if f"/{period.id}}}".encode() in key]

            assert len(keys()) > 2
            await asyncio.sleep(0.5)
            runs = await laurels_trim(laurels)
            assert runs["dropped"] == 1
            assert keys() == []
            # The other rankings are kept.
            assert await laurels_trim(laurels) == {"dropped": 0}

    async def laurels_trim(laurels: Laurels) -> dict[str, Any]:
        (trim,) = [job for job in laurels.jobs.jobs if job.name == "trim"]
        with contextlib.suppress(LaurelsError):
            return await trim.run()
        raise AssertionError("Redis is unreachable")

    asyncio.run(run(*stores))


def test_rankings_are_completed_after_the_ledger_lost_an_erasure(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis has a floor that the restored ledger does not know."""
    monkeypatch.setattr("laurels.service.people.erasures.SWEEP_AFTER_US", -1)

    async def run(postgres: PostgresServer, redis: RedisServer) -> None:
        async with serving(postgres.url(), redis) as laurels:
            await make(laurels, "b", capacity=5)
            for number in range(60):
                await submit(laurels, "b", f"u{number:02}", number + 1, f"e{number}")
            snapshot = await asyncio.to_thread(DiskSnapshot, postgres)
            await until_async(lambda: answers(laurels), "PostgreSQL")
            caller = laurels.access.authenticate("admin")
            await laurels.erasures.erase(caller, "default", "u00", None, None)
            assert await laurels.erasures.sweep() == 1
            await laurels.repairer.run_pass()
            await asyncio.sleep(1.1)
            await laurels.repairer.run_pass()
            await asyncio.to_thread(snapshot.restore)
            await submit(laurels, "b", "u59", 1, "after")
            await await_top(laurels, "b", {f"u{n}": n + 1.0 + (n == 59) for n in range(55, 60)})
            # Remove the best users, so that lower ones move up into the capacity.
            for number in range(59, 20, -1):
                board, user = board_of(laurels, "b"), f"u{number}"
                await insist(partial(laurels.submissions.remove_user, caller, board, user, f"remove-{user}"))
            await await_top(laurels, "b", {f"u{n:02}": n + 1.0 for n in range(16, 21)})
            assert await differences(laurels) == []

    asyncio.run(run(*stores))


def test_claims_expire_after_the_redis_clock_is_set_back(stores: Stores) -> None:
    """When a clock was set back, a claim seems to expire far in the future."""

    async def run(postgres: PostgresServer, redis: RedisServer) -> None:
        async with serving(postgres.url(), redis, repair_interval_ms=600_000) as laurels:
            board = await make(laurels, "b")
            await submit(laurels, "b", "ada", 5, "e")
            index = laurels.index
            assert isinstance(index, RedisIndex)
            assert await index.claim("task", 60)
            assert not await index.claim("task", 60)
            (key,) = redis.call("KEYS", "*claim:task")
            in_an_hour = redis.call("TIME")[0] * 1000 + 3_600_000
            redis.call("SET", key, in_an_hour)
            assert await index.claim("task", 60)
            # The same applies to the claim of a build.
            ranking = board.ranking(board.periods[0].id)
            history = laurels.ledger.as_of.history
            await index.scripts.run(ranking, 0, "begin_build", "dead", 60_000, "any", history, 0, 8)
            with pytest.raises(Unavailable):
                await laurels.repairer.build(board, ranking)
            redis.call("HSET", index.scripts.names.of(ranking)[0].names[0], "until", in_an_hour)
            await laurels.repairer.build(board, ranking)
            await await_top(laurels, "b", {"ada": 5.0})

    asyncio.run(run(*stores))
