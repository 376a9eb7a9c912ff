"""Contract of the Index port: a state machine that compares every adapter with a plain model.

The machine keeps a ledger of rows in a dict. It applies rows late, twice, in bulk and out of order, removes and hides
users, moves them between segments and rebuilds rankings while rows arrive. After each step it compares every read with
the model.
"""

import asyncio
import math
import random
import uuid
from collections.abc import AsyncIterator, Coroutine, Hashable, Iterable
from fractions import Fraction
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from laurels.adapters.memory_index import MemoryIndex
from laurels.adapters.redis import RedisConnection, RedisIndex, parse_redis_url, seek, split_ranks
from laurels.core.board import Ranking, RankStyle, ShadowViewer
from laurels.core.distribution import PER_PERCENT
from laurels.core.order import Order, Ties
from laurels.core.people import GLOBAL, Hidden
from laurels.core.scores import Standing
from laurels.errors import Unavailable
from laurels.ports import Held, Index, Position, RankEntry, Row, ScoreRange
from support.effort import examples
from support.stores import shared_cluster, shared_redis

T = TypeVar("T")

USERS = ["a", "ab", "abc", "b", "é", "日本", "👑", *(f"user-{number:02}" for number in range(90))]
SCORES = [-(2.0**53), -1.5, 0.0, 5e-324, 1.0, 1.5, 2.0, 3.0, 2.0**53]

# How many of the ranges of scores are read after each step.
RANGES_READ = 6
SEGMENTS = ["region:eu", "region:us", "circle:one", "circle:many"]

users = st.sampled_from(USERS)
capacities = st.sampled_from([None, 1, 3, 10])
places_to_be = st.lists(st.sampled_from(SEGMENTS), unique=True).map(tuple)
standings = st.builds(
    Standing,
    st.one_of(st.sampled_from(SCORES), st.integers(0, 30).map(float)),
    st.integers(0, 5),
    subscore=st.integers(-2, 2),
)


def _random(rng: random.Random, spread: int) -> Standing:
    return Standing(float(rng.randrange(-spread, spread)), rng.randrange(3), subscore=rng.randrange(3))


class IndexMachine(RuleBasedStateMachine):
    """The state machine. Each example uses one event loop, because a connection belongs to its loop."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.index = self.make_index()
        self.run(self.index.open(uuid.uuid4().hex[:8]))

    # How many parts a ranking may have.
    parts: tuple[int, ...] = (1,)

    def make_index(self) -> Index:
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.index.close())
        self.runner.close()

    rows = Bundle("rows")

    @initialize(
        order=st.sampled_from(Order),
        ties=st.sampled_from(Ties),
        capacity=capacities,
        segmented=st.booleans(),
        subscore=st.sampled_from([None, *Order]),
        data=st.data(),
    )
    def begin(
        self,
        order: Order,
        ties: Ties,
        capacity: int | None,
        segmented: bool,
        subscore: Order | None,
        data: st.DataObject,
    ) -> None:
        parts = data.draw(st.sampled_from(self.parts))
        self.ranking = Ranking(1, GLOBAL, order, ties, capacity, parts=parts, subscore=subscore)
        # Half of the boards have no segments, which is faster to check.
        self.segmented = segmented
        self.members: dict[str, tuple[str, ...]] = {}
        self.hidden: dict[str, Hidden] = {}
        self.ledger: dict[str, Row] = {}
        self.version = 0
        self.revisions: dict[Hashable, list[list[RankEntry]]] = {}
        self.run(self.load())

    # Rules

    @rule(target=rows, user=users, standing=st.none() | standings)
    def commit(self, user: str, standing: Standing | None) -> Row:
        """Write a row to the ledger, but not yet to the index."""
        return self.store(user, standing)

    def store(self, user: str, standing: Standing | None) -> Row:
        self.version += 1
        if standing is not None and self.ranking.subscore is None:
            standing = replace(standing, subscore=0)
        segments, hidden = self.members.get(user, ()), self.hidden.get(user, Hidden.NO)
        self.ledger[user] = Row(1, user, standing, self.version, segments, hidden)
        return self.ledger[user]

    @precondition(lambda self: self.segmented)
    @rule(target=rows, user=users, segments=places_to_be)
    def move(self, user: str, segments: tuple[str, ...]) -> Row:
        self.members[user] = segments
        return self.store(user, row.standing if (row := self.ledger.get(user)) else None)

    @precondition(lambda self: self.segmented)
    @rule(seed=st.integers(0, 1000))
    def move_many(self, seed: int) -> None:
        rng = random.Random(seed)
        for user in USERS:
            self.members[user] = tuple(rng.sample(SEGMENTS, rng.randrange(4)))
            if user in self.ledger:
                self.commit(user, self.ledger[user].standing)

    @rule(target=rows, user=users, hidden=st.sampled_from(Hidden))
    def hide(self, user: str, hidden: Hidden) -> Row:
        self.hidden[user] = hidden
        return self.store(user, row.standing if (row := self.ledger.get(user)) else None)

    @rule(chosen=st.lists(rows, max_size=5))
    def apply_again(self, chosen: list[Row]) -> None:
        """Apply any rows, old or new, in any order and repeatedly; then apply the latest rows of the ledger."""
        self.run(self.apply(chosen))
        self.run(self.apply(list(self.ledger.values())))

    @rule(batch=st.lists(st.tuples(users, standings), min_size=1, max_size=80))
    def write(self, batch: list[tuple[str, Standing]]) -> None:
        """Commit rows, then apply them, as the service does, and check the ranks before and after."""
        self.run(self.apply(list(self.ledger.values())))
        before = {user: self.rank(user) for user, _ in batch}
        for user, standing in batch:
            self.commit(user, standing)
        changed = [self.ledger[user] for user in dict.fromkeys(user for user, _ in batch)]
        rank_changes = self.run(self.index.apply(self.ranking, changed, RankStyle.ORDINAL)).rank_changes
        assert rank_changes is not None
        for row, rank_change in zip(changed, rank_changes, strict=True):
            assert (rank_change.before, rank_change.after) == (before[row.user_id], self.rank(row.user_id))

    @rule(seed=st.integers(0, 1000))
    def crowd(self, seed: int) -> None:
        """Submit scores for all users, who are more than any capacity."""
        rng = random.Random(seed)
        self.write([(user, _random(rng, 40)) for user in USERS])

    @rule(seed=st.integers(0, 1000))
    def sink(self, seed: int) -> None:
        """Let the leaders fall to the bottom, one after the other."""
        rng = random.Random(seed)
        worst = -1000.0 if self.ranking.order is Order.DESC else 1000.0
        for place in self.model()[: rng.randrange(1, 6)]:
            self.write([(place.user_id, Standing(worst + rng.randrange(5), 0))])

    @rule(count=st.integers(1, 60))
    def lose_the_best(self, count: int) -> None:
        """Remove many users at once."""
        for place in self.everybody()[:count]:
            self.commit(place.user_id, None)
        self.run(self.apply(list(self.ledger.values())))
        assert self.run(self.index.top(self.ranking, 0, 1000, RankStyle.ORDINAL)).entries == self.model()

    @rule(seed=st.integers(0, 1000))
    def apply_in_any_order(self, seed: int) -> None:
        """Change many rows in the ledger, then apply them in parts and in random order."""
        rng = random.Random(seed)
        spread = rng.choice([5, 40, 2000])
        for user in rng.sample(USERS, rng.randrange(len(USERS))):
            gone = rng.random() < 0.2
            self.commit(user, None if gone else _random(rng, spread))
        behind = list(self.ledger.values())
        rng.shuffle(behind)
        for start in range(0, len(behind), 20):
            self.run(self.apply(behind[start : start + 20]))
            self.check_inside()

    @rule(capacity=capacities)
    def change_the_capacity(self, capacity: int | None) -> None:
        """Change the capacity, which is a parameter of each read: no rebuild is needed."""
        self.ranking = replace(self.ranking, capacity=capacity)

    @rule(row=rows)
    def load_while_a_row_arrives(self, row: Row) -> None:
        self.run(self.load(row))
        self.run(self.apply(list(self.ledger.values())))

    @rule()
    def drop(self) -> None:
        self.run(self.index.drop(self.ranking))
        with pytest.raises(Unavailable) as caught:
            self.run(self.index.top(self.ranking, 0, 1, RankStyle.ORDINAL))
        assert caught.value.code == "catching_up"
        self.run(self.load())

    # Invariants, once the latest rows are applied

    @precondition(lambda self: hasattr(self, "ranking"))
    @invariant()
    def reads_equal_the_model(self) -> None:
        self.run(self.apply(list(self.ledger.values())))
        self.run(self.check_reads())
        self.check_inside()

    async def check_reads(self) -> None:
        index, model = self.index, self.model()
        # A page that was cached under this revision is still right.
        every = [self.everybody(segment) for segment in (GLOBAL, *SEGMENTS)]
        assert self.revisions.setdefault(await index.revision(self.ranking), every) == every
        await self.need_dense_ranks()
        await self.check_ranking(self.ranking, model)
        await self.together(self.check_user(user, model) for user in USERS)
        used = [segment for segment in SEGMENTS if any(segment in row.segments for row in self.ranked_rows())]
        assert sorted(await index.segments(self.ranking)) == sorted(used)
        for segment in SEGMENTS if self.segmented else ():
            await self.check_ranking(replace(self.ranking, segment=segment), self.model(segment))
        await self.check_guests()

    async def check_ranking(self, ranking: Ranking, model: list[RankEntry]) -> None:
        index = self.index
        assert await index.count(ranking) == len(model)
        listed = [user async for chunk in index.ranked_users(ranking) for user in chunk]
        assert listed == [place.user_id for place in model]
        await self.together(self.check_style(ranking, style, model) for style in RankStyle)
        # One style after each step is enough, because there are many ranges.
        await self.check_ranges(ranking, list(RankStyle)[len(model) % 3], model)
        await self.check_distribution(ranking, [place.score for place in model])

    async def check_guests(self) -> None:
        """Check that a shadow viewer sees the ranking as if they were not hidden.

        Their reads change nothing for other viewers.
        """
        shadows = [row for row in self.ledger.values() if row.hidden is Hidden.SHADOW and row.standing is not None]
        for row in shadows[:2]:
            assert row.standing is not None
            standing = row.standing
            viewer = ShadowViewer(row.user_id, standing.score, standing.achieved_at, standing.subscore)
            for segment in (GLOBAL, *row.segments[:1]):
                view = replace(self.ranking, segment=segment, shadow_viewer=viewer)
                await self.check_ranking(view, self.model(segment, seen_by=row.user_id))
                assert await self.index.count(replace(view, shadow_viewer=None)) == len(self.model(segment))

    async def check_style(self, ranking: Ranking, style: RankStyle, model: list[RankEntry]) -> None:
        index, total = self.index, len(model)
        styled, better = self.styled(style, model), self.better(model)
        by_user = {place.user_id: place for place in styled}

        async def check_page(offset: int, limit: int) -> None:
            page = await index.top(ranking, offset, limit, style)
            assert (page.entries, page.total) == (styled[offset : offset + limit], total)

        async def check_entries() -> None:
            places = await index.find_many(ranking, USERS, style)
            assert places == [by_user.get(user) for user in USERS]

        async def check_around(number: int, above: int, below: int) -> None:
            around = await index.around(ranking, styled[number].user_id, above, below, style)
            assert around is not None
            assert (around.entries, around.total) == (styled[max(0, number - above) : number + below + 1], total)

        async def check_found(place: RankEntry) -> None:
            found = await index.find(ranking, place.user_id, style)
            assert found is not None
            assert (found.entry, found.better, found.total) == (place, better[place.score, place.subscore], total)

        pages = [(0, 1), (0, 1000), (1, 3), (total // 2, 3), (max(0, total - 2), 5), (total, 5), (total + 7, 5)]
        widths = [(0, 0), (1, 2), (100, 100)]
        await self.together(
            (
                *(check_page(*page) for page in pages),
                check_entries(),
                *(check_around(number, *width) for number in range(total) for width in widths),
                *(check_found(place) for place in styled),
            )
        )

    async def together(self, checks: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run checks concurrently, as from many callers. Reads in memory never wait, so they need no tasks."""
        if isinstance(self.index, MemoryIndex):
            for check in checks:
                await check
        else:
            await asyncio.gather(*checks)

    async def check_user(self, user: str, model: list[RankEntry]) -> None:
        row = self.ledger.get(user)
        ranked = any(place.user_id == user for place in model)
        assert (await self.index.find(self.ranking, user, RankStyle.ORDINAL) is not None) == ranked
        (held,) = await self.index.held(self.ranking, [user])
        if row is not None and row.ranked is not None:
            # The index holds all users, also those beyond the capacity.
            standing = row.ranked
            assert held == Held(row.version, standing.score, standing.achieved_at, row.segments, standing.subscore)

    async def need_dense_ranks(self) -> None:
        """Rebuild the ranking if the index needs that for dense ranks and reports it."""
        try:
            await self.index.top(self.ranking, 0, 1, RankStyle.DENSE)
        except Unavailable:
            (states,) = await self.index.states([self.ranking])
            assert all(state.wants_build for state in states)
            await self.load()
            (states,) = await self.index.states([self.ranking])
            assert not any(state.wants_build for state in states)

    async def check_distribution(self, ranking: Ranking, scores: list[float]) -> None:
        for buckets in (1, 3, 20):
            spread = await self.index.distribution(ranking, buckets)
            if not scores:
                assert (spread.edges, spread.counts, spread.percentiles) == ([], [], [])
                continue
            assert (spread.edges[0], spread.edges[-1]) == (min(scores), max(scores))
            assert len(spread.counts) == len(spread.edges) - 1 <= buckets
            for number, (low, high) in enumerate(zip(spread.edges, spread.edges[1:], strict=False)):
                last = number == len(spread.counts) - 1
                assert low < high or (last and low == high)
                inside = [score for score in scores if low <= score and (score < high or last)]
                assert spread.counts[number] == len(inside)
            ascending = sorted(scores)
            for number, decile in enumerate(spread.percentiles, 1):
                at_most = sum(score <= decile for score in ascending)
                below = sum(score < decile for score in ascending)
                assert Fraction(at_most, len(ascending)) >= Fraction(number, 10) > Fraction(below, len(ascending))
        if scores:
            percent = [Fraction(p) for p in ("0", "0.01", "12.5", "50", "99.9999", "100")]
            spread = await self.index.distribution(ranking, 1, [int(p * PER_PERCENT) for p in percent])
            offsets = [max(0, math.ceil(p * len(scores) / 100) - 1) for p in percent]
            assert spread.percentiles == [sorted(scores)[offset] for offset in offsets]

    async def check_ranges(self, ranking: Ranking, style: RankStyle, model: list[RankEntry]) -> None:
        """Compare entries near ranges of scores: those of users, scores in between, open ends and reversed ranges."""
        styled, total = self.styled(style, model), len(model)
        scores = sorted({place.score for place in model}, reverse=ranking.order is Order.DESC)
        edges = [None, *scores[:1], *scores[-1:], *scores[len(scores) // 2 :][:1], 2.5, -2000.0]
        descending = ranking.order is Order.DESC

        async def check(best: float | None, worst: float | None, skip: int, limit: int, *, from_end: bool) -> None:
            def is_better(score: float) -> bool:
                return best is not None and (score > best if descending else score < best)

            def is_worse(score: float) -> bool:
                return worst is not None and (score < worst if descending else score > worst)

            before = sum(is_better(place.score) for place in model)
            after = max(before, total - sum(is_worse(place.score) for place in model))
            first = (after if from_end else before) + skip
            span = await self.index.in_range(ranking, ScoreRange(best, worst), skip, limit, style, from_end=from_end)
            assert (span.before, span.count, span.total) == (before, after - before, total)
            assert span.entries == styled[max(0, first) : max(0, first + limit)]
            assert not span.entries or span.start == max(0, first)

        every = [
            (best, worst, skip, limit, from_end)
            for best in edges
            for worst in edges
            for skip, limit in ((0, 3), (-2, 4), (-30, 100), (7, 5))
            for from_end in (False, True)
        ]
        chosen = random.Random(f"{self.version}/{ranking.segment}").sample(every, RANGES_READ)
        await self.together(
            check(best, worst, skip, limit, from_end=from_end) for best, worst, skip, limit, from_end in chosen
        )

    def check_inside(self) -> None:
        if isinstance(self.index, MemoryIndex):
            self.index.check()

    # The model

    def model(self, segment: str = GLOBAL, seen_by: str | None = None) -> list[RankEntry]:
        return self.everybody(segment, seen_by)[: self.ranking.capacity]

    def ranked_rows(self, seen_by: str | None = None) -> list[Row]:
        return [
            row for row in self.ledger.values() if row.standing and (row.hidden is Hidden.NO or row.user_id == seen_by)
        ]

    def everybody(self, segment: str = GLOBAL, seen_by: str | None = None) -> list[RankEntry]:
        ranking = self.ranking
        rows = sorted(
            (row for row in self.ranked_rows(seen_by) if segment == GLOBAL or segment in row.segments),
            key=lambda row: (
                (-row.standing.score if ranking.order is Order.DESC else row.standing.score) if row.standing else 0,
                (-row.standing.subscore if ranking.subscore is Order.DESC else row.standing.subscore)
                if row.standing
                else 0,
                (-row.standing.achieved_at if ranking.ties is Ties.LATEST else row.standing.achieved_at)
                if row.standing
                else 0,
                row.user_id.encode(),
            ),
        )
        return [
            RankEntry(
                row.user_id,
                row.standing.score,
                row.standing.achieved_at,
                number,
                None if ranking.subscore is None else row.standing.subscore,
            )
            for number, row in enumerate(rows, 1)
            if row.standing
        ]

    def rank(self, user: str) -> int | None:
        return next((place.rank for place in self.model() if place.user_id == user), None)

    def better(self, model: list[RankEntry]) -> dict[tuple[float, int | None], int]:
        """Return by score and subscore how many users have a better one. The model is in the order of these."""
        return {(place.score, place.subscore): number for number, place in reversed(list(enumerate(model)))}

    def styled(self, style: RankStyle, model: list[RankEntry]) -> list[RankEntry]:
        if style is RankStyle.ORDINAL:
            return model
        ties = dict.fromkeys((place.score, place.subscore) for place in model)
        distinct = {tie: number for number, tie in enumerate(ties)}
        ahead = distinct if style is RankStyle.DENSE else self.better(model)
        return [replace(place, rank=ahead[place.score, place.subscore] + 1) for place in model]

    # Writes, as the updater makes them

    async def apply(self, rows: list[Row]) -> None:
        await self.index.apply(self.ranking, rows, RankStyle.ORDINAL)

    async def load(self, arriving: Row | None = None) -> None:
        async def rows() -> AsyncIterator[list[Row]]:
            chunk = list(self.ledger.values())
            yield chunk[: len(chunk) // 2]
            if arriving is not None:
                await self.index.apply(self.ranking, [arriving], RankStyle.ORDINAL)
            yield chunk[len(chunk) // 2 :]

        await self.index.load(self.ranking, rows(), Position(at="0"))


class MemoryIndexMachine(IndexMachine):
    def make_index(self) -> Index:
        return MemoryIndex()


class RedisIndexMachine(IndexMachine):
    def make_index(self) -> Index:
        return RedisIndex(RedisConnection(parse_redis_url(shared_redis().url), timeout_ms=5000))


class SplitRedisIndexMachine(RedisIndexMachine):
    parts = (2, 3, 16)


class SmallStepsIndexMachine(RedisIndexMachine):
    """Deep offsets are searched, and reads take several scripts, although there are few users."""

    parts = (2, 3, 16)

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        for name, value in {"NEAR_ROWS": 1, "SLACK_ROWS": 2, "KEYS_AT_ONCE": 5, "SIGMAS": 1}.items():
            self.patch.setattr(split_ranks, name, value)
        self.patch.setattr(seek, "ENOUGH_ROWS", 2)
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()


class RedisClusterIndexMachine(IndexMachine):
    def make_index(self) -> Index:
        return RedisIndex(RedisConnection(parse_redis_url(shared_cluster().url), timeout_ms=5000))


class SplitClusterIndexMachine(RedisClusterIndexMachine):
    parts = (3, 16)


TestMemoryIndex = MemoryIndexMachine.TestCase
TestMemoryIndex.settings = settings(max_examples=examples(100), stateful_step_count=30)

TestRedisIndex = RedisIndexMachine.TestCase
TestRedisIndex.settings = settings(max_examples=examples(30), stateful_step_count=25)

TestRedisClusterIndex = RedisClusterIndexMachine.TestCase
TestRedisClusterIndex.settings = settings(max_examples=examples(8), stateful_step_count=20)

TestSplitRedisIndex = SplitRedisIndexMachine.TestCase
TestSplitRedisIndex.settings = settings(max_examples=examples(12), stateful_step_count=20)

TestSmallStepsIndex = SmallStepsIndexMachine.TestCase
TestSmallStepsIndex.settings = settings(max_examples=examples(10), stateful_step_count=15)

TestSplitClusterIndex = SplitClusterIndexMachine.TestCase
TestSplitClusterIndex.settings = settings(max_examples=examples(4), stateful_step_count=15)
