"""Reads of split rankings while other users move: each answer is that of one moment.

A write is made before every round of scripts of a read, as from another server. So an answer that mixes two rounds
shows a user twice, leaves one out, or numbers the ranks wrongly; the right one is that of the last round.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from laurels.adapters.redis import RedisConnection, RedisIndex, parse_redis_url, split_ranks
from laurels.adapters.redis import seek as seek_module
from laurels.core.board import Ranking, RankStyle
from laurels.core.order import Order, Ties
from laurels.core.people import GLOBAL
from laurels.core.scores import Standing
from laurels.errors import Unavailable
from laurels.ports import Position, RankEntry, Row
from support.stores import shared_redis

USERS = [f"user-{number:03}" for number in range(150)]
ROUNDS = 60


class Game:
    """A ranking, the plain model of it, and moves of users between the rounds of a read."""

    def __init__(self, index: RedisIndex, ranking: Ranking, rng: random.Random) -> None:
        self.index, self.ranking, self.rng = index, ranking, rng
        self.rows: dict[str, Row] = {}
        self.version = 0
        self.moves_left = 0
        self._look_at = index.scripts.look_at
        for user in USERS:
            self._change(user)

    def _change(self, user: str) -> Row:
        self.version += 1
        # Few different scores, so that many users share one.
        standing = Standing(float(self.rng.randrange(30)), self.rng.randrange(5))
        self.rows[user] = Row(self.ranking.period_id, user, standing, self.version)
        return self.rows[user]

    async def load(self) -> None:
        async def rows() -> AsyncIterator[list[Row]]:
            yield list(self.rows.values())

        await self.index.load(self.ranking, rows(), Position(at="1"))

    async def look_at(self, ranking: Ranking, script: str, args: Any) -> Any:
        """Do as PartScripts.look_at, but move somebody before it."""
        if self.moves_left:
            self.moves_left -= 1
            rows = [self._change(user) for user in self.rng.sample(USERS, 3)]
            await self.index.apply(self.ranking, rows, RankStyle.ORDINAL)
        return await self._look_at(ranking, script, args)

    def model(self, style: RankStyle) -> list[RankEntry]:
        def key(row: Row) -> tuple[float, int, bytes]:
            assert row.standing is not None
            return -row.standing.score, row.standing.achieved_at, row.user_id.encode()

        rows = sorted(self.rows.values(), key=key)
        scores = [row.standing.score for row in rows if row.standing is not None]
        distinct = sorted(set(scores), reverse=True)
        entries = []
        for number, (row, score) in enumerate(zip(rows, scores, strict=True)):
            rank = {
                RankStyle.ORDINAL: number,
                RankStyle.COMPETITION: scores.index(score),
                RankStyle.DENSE: distinct.index(score),
            }[style]
            assert row.standing is not None
            entries.append(RankEntry(row.user_id, score, row.standing.achieved_at, rank + 1))
        return entries[: self.ranking.capacity]


async def check_top(game: Game, style: RankStyle) -> None:
    offset, limit = game.rng.randrange(len(USERS)), game.rng.choice([1, 5, 40])
    page = await game.index.top(game.ranking, offset, limit, style)
    assert page.entries == game.model(style)[offset : offset + limit]


async def check_around(game: Game, style: RankStyle) -> None:
    user, above, below = game.rng.choice(USERS), game.rng.choice([0, 2, 30]), game.rng.choice([0, 3])
    page = await game.index.around(game.ranking, user, above, below, style)
    model = game.model(style)
    number = next((number for number, entry in enumerate(model) if entry.user_id == user), None)
    if number is None:
        assert page is None
    else:
        assert page is not None
        assert page.entries == model[max(0, number - above) : number + below + 1]


async def check_find_many(game: Game, style: RankStyle) -> None:
    users = game.rng.sample(USERS, 40)
    found = await game.index.find_many(game.ranking, users, style)
    by_user = {entry.user_id: entry for entry in game.model(style)}
    assert found == [by_user.get(user) for user in users]


async def check_distribution(game: Game, _: RankStyle) -> None:
    spread = await game.index.distribution(game.ranking, 5)
    scores = sorted(entry.score for entry in game.model(RankStyle.ORDINAL))
    assert (spread.edges[0], spread.edges[-1]) == (scores[0], scores[-1])
    assert sum(spread.counts) == len(scores)
    for number, decile in enumerate(spread.percentiles, 1):
        assert sum(score <= decile for score in scores) * 10 >= number * len(scores)
        assert sum(score < decile for score in scores) * 10 < number * len(scores)


CHECKS: list[Callable[[Game, RankStyle], Coroutine[Any, Any, None]]] = [
    check_top,
    check_around,
    check_find_many,
    check_distribution,
]


@pytest.mark.parametrize("capacity", [None, 40])
@pytest.mark.parametrize("style", list(RankStyle))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_answer_is_that_of_one_moment(
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[[Game, RankStyle], Coroutine[Any, Any, None]],
    style: RankStyle,
    capacity: int | None,
) -> None:
    # Search for offsets although there are few users.
    monkeypatch.setattr(split_ranks, "NEAR_ROWS", 10)
    monkeypatch.setattr(seek_module, "ENOUGH_ROWS", 8)
    seed = random.randrange(10**6)
    print(f"seed: {seed}")

    async def run() -> None:
        index = RedisIndex(RedisConnection(parse_redis_url(shared_redis().url), timeout_ms=10_000))
        await index.open(f"torn-{time.time_ns()}")
        ranking = Ranking(1, GLOBAL, Order.DESC, Ties.EARLIEST, capacity, parts=4)
        game = Game(index, ranking, random.Random(seed))
        await game.load()
        if style is RankStyle.DENSE:
            with pytest.raises(Unavailable):
                await index.top(ranking, 0, 1, style)
            await game.load()
        monkeypatch.setattr(index.scripts, "look_at", game.look_at)
        for _ in range(ROUNDS):
            # After these moves the ranking rests, so every read ends.
            game.moves_left = game.rng.randrange(6)
            await check(game, style)
        await index.close()

    asyncio.run(run())
