"""The calls of an index that the state machine does not make: forgetting users, positions, leases and leftovers."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest

from laurels.adapters.memory_index import MemoryIndex
from laurels.adapters.redis import RedisConnection, RedisIndex, parse_redis_url
from laurels.core.board import Ranking, RankStyle
from laurels.core.order import Order, Ties
from laurels.core.people import GLOBAL
from laurels.core.scores import Standing
from laurels.errors import Unavailable
from laurels.ports import AsOf, Index, IndexHealth, Position, RankChange, RanksWanted, Row
from support.stores import shared_cluster, shared_redis

RANKING = Ranking(1, GLOBAL, Order.DESC, Ties.EARLIEST, None)
_ledgers = count(time.time_ns())


@pytest.fixture(params=["memory", "redis", "cluster"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_index(backend: str) -> Index:
    if backend == "memory":
        return MemoryIndex()
    url = shared_redis().url if backend == "redis" else shared_cluster().url
    return RedisIndex(RedisConnection(parse_redis_url(url), timeout_ms=5000))


def play(backend: str, work: Callable[[Index], Awaitable[None]]) -> None:
    async def run() -> None:
        index = make_index(backend)
        await index.open(f"calls-{next(_ledgers)}")
        try:
            await work(index)
        finally:
            await index.close()

    asyncio.run(run())


async def rows(*found: Row) -> AsyncIterator[list[Row]]:
    yield list(found)


def row(user: str, score: float | None, version: int) -> Row:
    return Row(1, user, None if score is None else Standing(score, 0), version)


async def ranked(index: Index) -> list[str]:
    return [entry.user_id for entry in (await index.top(RANKING, 0, 10, RankStyle.ORDINAL)).entries]


def test_forgotten_user_returns_only_with_rows_that_know_the_floor(backend: str) -> None:
    async def work(index: Index) -> None:
        await index.load(RANKING, rows(row("ada", 5, 1), row("bob", 3, 2)), Position(at="1"))
        await index.apply(RANKING, [row("ada", None, 3)], RankStyle.ORDINAL)
        await index.forget(RANKING, ["ada", "bob"], floor=3)
        # A ranked user is never forgotten.
        assert [held is None for held in await index.held(RANKING, ["ada", "bob"])] == [True, False]
        old = await index.apply(RANKING, [row("ada", 5, 1)], RankStyle.ORDINAL, AsOf(floor=0))
        assert old.refused
        assert await ranked(index) == ["bob"]
        known = await index.apply(RANKING, [row("ada", 4, 3)], RankStyle.ORDINAL, AsOf(floor=3))
        assert not known.refused
        newer = await index.apply(RANKING, [row("cyd", 9, 4)], RankStyle.ORDINAL, AsOf(floor=0))
        assert not newer.refused
        assert await ranked(index) == ["cyd", "ada", "bob"]

    play(backend, work)


@pytest.mark.parametrize("style", list(RankStyle))
def test_apply_returns_the_ranks_that_are_wanted(backend: str, style: RankStyle) -> None:
    async def work(index: Index) -> None:
        await index.load(RANKING, rows(row("ada", 5, 1), row("bob", 3, 2), row("cyd", 1, 3)), Position(at="1"))
        if style is RankStyle.DENSE and backend != "memory":
            with pytest.raises(Unavailable):
                await index.top(RANKING, 0, 1, style)
            await index.load(RANKING, rows(row("ada", 5, 1), row("bob", 3, 2), row("cyd", 1, 3)), Position(at="1"))
        changed = [row("cyd", 9, 4), row("dan", 4, 5), row("bob", None, 6)]
        both = await index.apply(RANKING, changed[:1], style, wanted=RanksWanted.BOTH)
        assert both.rank_changes == [RankChange(3, 1)]
        after = await index.apply(RANKING, changed, style, wanted=RanksWanted.AFTER)
        assert after.rank_changes == [RankChange(None, 1), RankChange(None, 3), RankChange(None, None)]
        none = await index.apply(RANKING, [row("ada", 10, 7)], style, wanted=RanksWanted.NONE)
        assert none.rank_changes == []
        assert await ranked(index) == ["ada", "cyd", "dan"]

    play(backend, work)


def test_of_two_rows_of_a_user_in_one_call_the_newer_decides(backend: str) -> None:
    async def work(index: Index) -> None:
        await index.load(RANKING, rows(row("ada", 5, 1)), Position(at="1"))
        await index.apply(RANKING, [row("bob", 7, 2), row("bob", 6, 4), row("bob", 9, 3)], RankStyle.ORDINAL)
        await index.apply(RANKING, [row("ada", None, 5), row("ada", 8, 6)], RankStyle.ORDINAL)
        await index.apply(
            RANKING, [row("cyd", 1, 7), row("dan", 2, 8), row("cyd", 3, 9), row("dan", 4, 10)], RankStyle.ORDINAL
        )
        assert await ranked(index) == ["ada", "bob", "dan", "cyd"]
        found = await index.find_many(RANKING, ["ada", "bob", "cyd", "dan"], RankStyle.ORDINAL)
        shown = [(entry.rank, entry.score) for entry in found if entry is not None]
        assert shown == [(1, 8.0), (2, 6.0), (4, 3.0), (3, 4.0)]
        held = await index.held(RANKING, ["ada", "bob", "cyd", "dan"])
        assert [each.version for each in held if each is not None] == [6, 4, 9, 10]

    play(backend, work)


def test_rows_of_a_large_call_are_all_applied(backend: str) -> None:
    async def work(index: Index) -> None:
        users = [f"user-{number:05}" for number in range(2500)]
        await index.load(RANKING, rows(), Position(at="1"))
        for score, version in ((1, 1), (2, 3000)):
            some = [row(user, score, version + number) for number, user in enumerate(users)]
            await index.apply(RANKING, some, RankStyle.ORDINAL, wanted=RanksWanted.NONE)
        page = await index.top(RANKING, 2490, 20, RankStyle.ORDINAL)
        assert (page.total, [entry.user_id for entry in page.entries]) == (2500, users[2490:])
        assert {entry.score for entry in page.entries} == {2.0}

    play(backend, work)


def test_build_is_abandoned_if_it_may_have_read_a_forgotten_user(backend: str) -> None:
    async def work(index: Index) -> None:
        await index.load(RANKING, rows(row("ada", 5, 1)), Position(at="1"))

        async def interrupted() -> AsyncIterator[list[Row]]:
            yield [row("bob", 3, 2)]
            await index.forget(RANKING, [], floor=2)
            yield [row("cyd", 1, 3)]

        with pytest.raises(Unavailable) as caught:
            await index.load(RANKING, interrupted(), Position(at="2"))
        assert caught.value.code == "catching_up"
        assert await ranked(index) == ["ada"]

    play(backend, work)


def test_build_does_not_restore_a_dropped_ranking(backend: str) -> None:
    async def work(index: Index) -> None:
        async def dropped() -> AsyncIterator[list[Row]]:
            yield [row("bob", 3, 2)]
            await index.drop(RANKING)
            yield [row("cyd", 1, 3)]

        with pytest.raises(Unavailable):
            await index.load(RANKING, dropped(), Position(at="2"))
        ((state,),) = await index.states([RANKING])
        assert state.health is IndexHealth.MISSING

    play(backend, work)


def test_periods_are_listed_until_they_are_dropped(backend: str) -> None:
    async def work(index: Index) -> None:
        for period in (1, 2):
            ranking = Ranking(period, GLOBAL, Order.DESC, Ties.EARLIEST, None)
            await index.load(ranking, rows(Row(period, "ada", Standing(1, 0), 1)), Position(at="1"))
        assert {each async for some in index.built() for each, _ in some} == {1, 2}
        await index.drop(RANKING)
        await index.drop(RANKING)
        assert {each async for some in index.built() for each, _ in some} == {2}

    play(backend, work)


def test_state_contains_health_and_position(backend: str) -> None:
    async def work(index: Index) -> None:
        ((state,),) = await index.states([RANKING])
        assert state.health is IndexHealth.MISSING
        await index.load(RANKING, rows(row("ada", 5, 1)), Position("here", 0, "1"))
        ((state,),) = await index.states([RANKING])
        assert state.health is IndexHealth.READY
        await index.confirm(RANKING, state, Position("here", 0, "7"))
        ((state,),) = await index.states([RANKING])
        # An index that can't lose rows needs no position.
        assert state.position in {None, Position("here", 0, "7")}
        assert index.outages == 0

    play(backend, work)


def test_task_is_claimed_by_one_caller_at_a_time(backend: str) -> None:
    async def work(index: Index) -> None:
        assert await index.claim("repair", 60)
        # The index in memory has only one caller.
        assert await index.claim("repair", 60) == (backend == "memory")
        assert await index.claim("another", 60)

    play(backend, work)
