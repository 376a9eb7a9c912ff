"""Review lists: a suspicious score counts once a moderator accepts it, with its own time, and never twice."""

import asyncio
import random
from typing import Any

import pytest

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.reviews import ReviewRule, ReviewState, Rise
from laurels.core.rewards import Between
from laurels.core.scores import RankState, Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Conflict
from laurels.ports import RecordOutcome, Role
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.moderation.reviews import Review
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.services import Stage, differences

ADMIN = Caller(Role.ADMIN, None, "moderator")
MINUTE = 60 * SECOND_US
HIGH = ReviewRule("high", scores=Between(low=100))
LAST = 2**62


async def create(laurels: Laurels, *rules: ReviewRule, **fields: Any) -> Board:
    fields = {"rule": Rule.BEST, "windows": (Window("daily"), ALL_TIME), "review": rules} | fields
    return await laurels.boards.create(Board(id=0, uuid="b", pod_id="default", name="b", created_at=0, **fields), None)


def held(laurels: Laurels) -> Board:
    return laurels.boards.to_read(ADMIN, "b")


async def top(laurels: Laurels, window: str = "all") -> list[tuple[str, float, int]]:
    page = await laurels.reads.top(held(laurels), Selection(window=window), 0, 100)
    return [(entry.user_id, entry.score, entry.achieved_at) for entry in page.value.entries]


async def listed(laurels: Laurels, state: ReviewState | None = None) -> list[Review]:
    return await laurels.reviews.page(held(laurels), state, LAST, 100)


async def submit(laurels: Laurels, user: str, score: float, **fields: Any) -> RecordOutcome:
    return (await laurels.submissions.submit(held(laurels), Submission(user, score, **fields))).outcome


def test_suspicious_score_counts_with_its_own_time_once_it_is_accepted(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, HIGH)
            assert await submit(laurels, "ada", 50) is RecordOutcome.ACCEPTED
            at = stage.clock.now
            answer = await laurels.submissions.submit(
                held(laurels), Submission("ada", 500, event_id="big", metadata={"map": "ice"})
            )
            assert (answer.outcome, answer.rank_state) == (RecordOutcome.IN_REVIEW, RankState.IN_REVIEW)
            assert answer.counted == ()
            assert [score for _, score, _ in await top(laurels)] == [50]
            assert await differences(laurels) == []
            # A repetition waits as well, another payload is a conflict.
            assert await submit(laurels, "ada", 500, event_id="big", metadata={"map": "ice"}) is RecordOutcome.IN_REVIEW
            with pytest.raises(Conflict) as caught:
                await submit(laurels, "ada", 700, event_id="big")
            assert caught.value.code == "event_conflict"
            (review,) = await listed(laurels)
            assert (review.state, review.stored.review.user_id) == (ReviewState.PENDING, "ada")
            assert review.held is not None
            assert (review.held.rule, review.held.score, review.held.event_id) == ("high", 500, "big")

            stage.clock.now += MINUTE
            await submit(laurels, "bob", 90)
            act = await laurels.reviews.accept(ADMIN, held(laurels), review.stored.review.id, "seen the replay")
            assert act.done_at is not None
            for window in ("daily", "all"):
                assert (await top(laurels, window))[0] == ("ada", 500, at)
            again = await laurels.reviews.accept(ADMIN, held(laurels), review.stored.review.id, None)
            assert again.id == act.id
            assert await submit(laurels, "ada", 500, event_id="big", metadata={"map": "ice"}) is RecordOutcome.DUPLICATE
            with pytest.raises(Conflict) as caught:
                await laurels.reviews.reject(ADMIN, held(laurels), review.stored.review.id, None)
            assert caught.value.code == "review_decided"
            (decided,) = await listed(laurels, ReviewState.ACCEPTED)
            assert (decided.stored.decided_by, decided.stored.reason) == ("moderator", "seen the replay")
            assert await listed(laurels, ReviewState.PENDING) == []
            assert await differences(laurels) == []

    asyncio.run(run())


def test_rejected_score_never_counts(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, HIGH)
            await submit(laurels, "eve", 999, event_id="cheat")
            (review,) = await listed(laurels, ReviewState.PENDING)
            number = review.stored.review.id
            first = await laurels.reviews.reject(ADMIN, held(laurels), number, "impossible")
            assert (await laurels.reviews.reject(ADMIN, held(laurels), number, None)).id == first.id
            with pytest.raises(Conflict):
                await laurels.reviews.accept(ADMIN, held(laurels), number, None)
            assert await submit(laurels, "eve", 999, event_id="cheat") is RecordOutcome.DUPLICATE
            assert await top(laurels) == []
            assert [each.state for each in await listed(laurels)] == [ReviewState.REJECTED]
            assert await differences(laurels) == []

    asyncio.run(run())


def test_fast_rises_are_reviewed_also_within_a_batch(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, ReviewRule("fast", rise=Rise(100, 60)), rule=Rule.INCREMENT)
            for _ in range(3):
                assert await submit(laurels, "ada", 60) is RecordOutcome.ACCEPTED
                stage.clock.now += MINUTE
            sent = [Submission("ada", 60), Submission("bob", 90), Submission("ada", 60), Submission("bob", 10)]
            answers = await laurels.submissions.submit_many(held(laurels), sent)
            accepted, waits = RecordOutcome.ACCEPTED, RecordOutcome.IN_REVIEW
            assert [getattr(each, "outcome", None) for each in answers] == [accepted, accepted, waits, accepted]
            assert [entry[:2] for entry in await top(laurels)] == [("ada", 240), ("bob", 100)]
            (review,) = await listed(laurels)
            await laurels.reviews.accept(ADMIN, held(laurels), review.stored.review.id, None)
            assert [entry[:2] for entry in await top(laurels)] == [("ada", 300), ("bob", 100)]
            assert await differences(laurels) == []

    asyncio.run(run())


def test_score_of_a_period_that_is_final_counts_with_a_refreeze(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, HIGH)
            await submit(laurels, "ada", 50)
            await submit(laurels, "bob", 500)
            period = held(laurels).current_period("daily", stage.clock.now)
            assert period is not None
            stage.clock.now += 2 * 24 * 60 * MINUTE
            await laurels.jobs.run_due()
            (review,) = await listed(laurels)
            await laurels.reviews.accept(ADMIN, held(laurels), review.stored.review.id, None)
            assert [entry[0] for entry in await top(laurels)] == ["bob", "ada"]

            async def final() -> list[str]:
                shown = await laurels.reads.top(held(laurels), Selection(window="daily", period=period.name), 0, 10)
                return [entry.user_id for entry in shown.value.entries]

            assert await final() == ["ada"]
            await laurels.seasons.refreeze(ADMIN, held(laurels), period.name, None, None)
            await laurels.jobs.run_due()
            assert await final() == ["bob", "ada"]
            assert await differences(laurels) == []

    asyncio.run(run())


def test_scores_and_decisions_that_race_count_once(stage: Stage) -> None:
    rng = random.Random(11)

    async def run() -> None:
        async with stage.running() as laurels:
            board = await create(laurels, HIGH, rule=Rule.INCREMENT)
            sent = [Submission(f"u{number % 3}", 100 + number, event_id=f"e{number}") for number in range(40)] * 2
            rng.shuffle(sent)
            batches = [sent[start : start + 8] for start in range(0, len(sent), 8)]
            await asyncio.gather(*(laurels.submissions.submit_many(board, batch) for batch in batches))
            reviews = await listed(laurels)
            assert len(reviews) == 40
            assert await top(laurels) == []
            ids = [review.stored.review.id for review in reviews]

            async def decide(number: int, *, accept: bool) -> None:
                try:
                    decision = laurels.reviews.accept if accept else laurels.reviews.reject
                    await decision(ADMIN, held(laurels), number, None)
                except Conflict as error:
                    assert error.code == "review_decided"  # noqa: PT017 - both ends are allowed

            chosen = [(number, rng.random() < 0.7) for number in ids * 2]
            await asyncio.gather(*(decide(number, accept=accept) for number, accept in chosen))
            accepted = await listed(laurels, ReviewState.ACCEPTED)
            rejected = await listed(laurels, ReviewState.REJECTED)
            assert len(accepted) + len(rejected) == 40
            totals: dict[str, float] = {}
            for review in accepted:
                assert review.held is not None
                user = review.stored.review.user_id or ""
                totals[user] = totals.get(user, 0) + review.held.score
            assert {user: score for user, score, _ in await top(laurels)} == totals
            assert await differences(laurels) == []

    asyncio.run(run())


def test_rejection_that_lost_its_server_is_finished(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, HIGH)
            await submit(laurels, "eve", 999)
            (review,) = await listed(laurels)
            people = laurels.ledger.profiles
            finish = people.finish_action

            async def dying(*_arguments: Any, **_options: Any) -> Any:
                raise ConnectionError

            people.finish_action = dying  # type: ignore[method-assign]
            with pytest.raises(ConnectionError):
                await laurels.reviews.reject(ADMIN, held(laurels), review.stored.review.id, None)
            people.finish_action = finish  # type: ignore[method-assign]
            stage.clock.now += 5 * MINUTE
            await laurels.jobs.run_due()
            assert [each.state for each in await listed(laurels)] == [ReviewState.REJECTED]
            await laurels.erasures.erase(ADMIN, "default", "eve", None, None)

    asyncio.run(run())


def test_score_that_waits_outlives_the_retention_time(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, HIGH, keep_events_days=1)
            await submit(laurels, "ada", 50)
            await submit(laurels, "ada", 500)
            (review,) = await listed(laurels)
            stage.clock.now += 5 * 24 * 60 * MINUTE
            await laurels.jobs.run_due()
            assert await laurels.ledger.count_events(held(laurels).id) == 0
            await laurels.reviews.accept(ADMIN, held(laurels), review.stored.review.id, None)
            assert [entry[:2] for entry in await top(laurels)] == [("ada", 500)]
            assert await differences(laurels) == []

    asyncio.run(run())


def test_score_that_waits_uses_an_attempt(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, HIGH, rule=Rule.INCREMENT, windows=(Window("daily", attempts=2), ALL_TIME))
            assert await submit(laurels, "ada", 500) is RecordOutcome.IN_REVIEW
            assert await submit(laurels, "ada", 5) is RecordOutcome.ACCEPTED
            for score in (6, 600):
                with pytest.raises(Conflict) as caught:
                    await submit(laurels, "ada", score)
                assert caught.value.code == "attempts_used"
            (review,) = await listed(laurels)
            await laurels.reviews.accept(ADMIN, held(laurels), review.stored.review.id, None)
            assert [entry[:2] for entry in await top(laurels)] == [("ada", 505)]

    asyncio.run(run())


def test_score_that_waits_counts_for_the_quota_of_the_day(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, HIGH)
            for _ in range(3):
                await submit(laurels, "ada", 500)
            # The number of users comes from the index, which may be repairing itself.
            assert laurels.usage._events_of("default") == 3  # noqa: SLF001 - the other numbers don't matter here

    asyncio.run(run())
