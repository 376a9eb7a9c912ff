"""Retention: what is deleted, and what must not change when it is."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.rewards import Between, Reward
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Conflict, Invalid, NotFound
from laurels.ports import RecordOutcome, Role
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.moderation.moderation import EventFilter
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.services import Stage, differences

HOUR = 3_600 * SECOND_US
DAY = 24 * HOUR
ADMIN = Caller(Role.ADMIN, None, "test")


@pytest.fixture(params=["embedded", "shared"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path)


async def create(laurels: Laurels, uuid: str, **fields: Any) -> Board:
    board = Board(id=0, uuid=uuid, pod_id="default", name=uuid, created_at=0, **fields)
    return await laurels.boards.create(board, None)


def held(laurels: Laurels, uuid: str) -> Board:
    return laurels.boards.to_read(ADMIN, uuid)


async def everybody(laurels: Laurels, uuid: str) -> list[tuple[Any, ...]]:
    page = (await laurels.reads.top(held(laurels, uuid), Selection(window="all"), 0, 1000)).value
    return [(place.rank, place.user_id, place.score, place.achieved_at) for place in page.entries]


async def last_run(laurels: Laurels, job: str) -> Any:
    return next(json.loads(run.result or "null") for run in await laurels.jobs.runs() if run.name == job)


@pytest.mark.parametrize("rule", Rule)
def test_pruning_events_does_not_change_scores(stage: Stage, rule: Rule) -> None:
    """After each run every score equals that of a board that keeps all events."""
    rng = random.Random(f"{rule}")

    async def run() -> None:
        async with stage.running() as laurels:
            windows = (Window("monthly"), ALL_TIME)
            await create(laurels, "keeps", rule=rule, windows=windows)
            await create(laurels, "prunes", rule=rule, windows=windows, keep_events_days=3)
            removed = 0
            for day in range(12):
                for number in range(40):
                    # 0.1 + 0.2 is not 0.3 in floating point: sums that replace pruned events must be exact.
                    submission = Submission(
                        f"u{rng.randrange(9)}", rng.choice([0.1, 0.2, 0.3, -0.6, 7]), event_id=f"e{day}-{number}"
                    )
                    for uuid in ("keeps", "prunes"):
                        await laurels.submissions.submit(held(laurels, uuid), submission)
                if day == 7:
                    for uuid in ("keeps", "prunes"):
                        await laurels.submissions.remove_user(ADMIN, held(laurels, uuid), "u3", None)
                stage.clock.now += DAY
                await laurels.jobs.run_due()
                removed += (await last_run(laurels, "retention"))["events"]
                assert await everybody(laurels, "prunes") == await everybody(laurels, "keeps")
                assert await differences(laurels) == []
            ledger = laurels.ledger
            left = await ledger.board_events(held(laurels, "prunes").id, after_seq=0, limit=1000, voided=True)
            assert removed + len(left) == 12 * 40
            assert len(left) <= 4 * 40
            assert await ledger.count_events(held(laurels, "keeps").id) > 400

    asyncio.run(run())


def test_duplicate_is_recognized_during_retention_and_refused_after_it(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, "prunes", rule=Rule.INCREMENT, keep_events_days=3)
            board = held(laurels, "prunes")
            at = stage.clock.now
            event = Submission("ada", 5, at=at, event_id="once")
            await laurels.submissions.submit(board, event)
            stage.clock.now += 3 * DAY
            await laurels.jobs.run_due()
            again = await laurels.submissions.submit(held(laurels, "prunes"), event)
            assert (again.outcome, again.score) == (RecordOutcome.DUPLICATE, 5)
            stage.clock.now += HOUR * 2
            await laurels.jobs.run_due()
            assert (await last_run(laurels, "retention"))["events"] == 1
            with pytest.raises(Invalid) as caught:
                await laurels.submissions.submit(held(laurels, "prunes"), event)
            assert (caught.value.code, caught.value.field) == ("timestamp_out_of_range", "timestamp")
            assert await everybody(laurels, "prunes") == [(1, "ada", 5, at)]
            assert await differences(laurels) == []

    asyncio.run(run())


def test_old_events_are_pruned_when_retention_is_enabled_later(stage: Stage) -> None:
    """Its old events lie before those that retention has already processed for other boards."""

    async def run() -> None:
        async with stage.running() as laurels:
            for uuid in ("first", "second"):
                await create(laurels, uuid, rule=Rule.INCREMENT)
                for number in range(30):
                    await laurels.submissions.submit(held(laurels, uuid), Submission(f"u{number % 4}", number))
            await laurels.boards.change(held(laurels, "second"), {"keep_events_days": 1})
            stage.clock.now += 2 * DAY
            await laurels.jobs.run_due()
            assert (await last_run(laurels, "retention"))["events"] == 30
            await laurels.boards.change(held(laurels, "first"), {"keep_events_days": 1})
            stage.clock.now += 2 * HOUR
            await laurels.jobs.run_due()
            assert (await last_run(laurels, "retention"))["events"] == 30
            assert await everybody(laurels, "first") == await everybody(laurels, "second")
            assert await differences(laurels) == []

    asyncio.run(run())


def test_removed_user_with_pruned_events_starts_from_zero(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await create(laurels, "prunes", rule=Rule.INCREMENT, keep_events_days=1)
            await laurels.submissions.submit(held(laurels, "prunes"), Submission("ada", 5))
            stage.clock.now += 2 * DAY
            await laurels.jobs.run_due()
            await laurels.submissions.remove_user(ADMIN, held(laurels, "prunes"), "ada", None)
            assert await differences(laurels) == []
            await laurels.submissions.submit(held(laurels, "prunes"), Submission("ada", 1))
            assert [place[2] for place in await everybody(laurels, "prunes")] == [1]
            assert await differences(laurels) == []

    asyncio.run(run())


def test_withdrawn_reward_stays_withdrawn_after_its_ranks_are_pruned(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            rewards = (Reward("cup", "gold", ranks=Between(1, 1)),)
            await create(laurels, "b", windows=(Window("daily"),), rewards=rewards, keep_periods_days=5)
            for user, score in (("cheat", 9), ("ada", 5)):
                submission = Submission(user, score, metadata={"source": user})
                await laurels.submissions.submit(held(laurels, "b"), submission)
            stage.clock.now += 2 * DAY
            await laurels.jobs.run_due()
            name = (await laurels.seasons.page(held(laurels, "b"), None, None, 100))[-1].name
            (old,) = await laurels.seasons.rewards_of_user([held(laurels, "b")], "cheat", None, 10)
            await laurels.moderation.void(ADMIN, held(laurels, "b"), EventFilter(match={"source": "cheat"}), None, None)
            stage.clock.now += DAY
            await laurels.seasons.refreeze(ADMIN, held(laurels, "b"), name, None, None)
            await laurels.jobs.run_due()
            (new,) = await laurels.seasons.rewards_of_user([held(laurels, "b")], "ada", None, 10)
            first_edition = Selection(period=f"{name}@1")
            gone = []
            for _ in range(8):
                stage.clock.now += DAY
                await laurels.jobs.run_due()
                try:
                    await laurels.reads.top(held(laurels, "b"), first_edition, 0, 1)
                except NotFound as error:
                    gone.append(error.code)
                # Also after the old ranks are pruned and before the new ones are.
                assert await laurels.seasons.rewards_of_user([held(laurels, "b")], "cheat", None, 10) == []
                assert await laurels.seasons.rewards_of_user([held(laurels, "b")], "ada", None, 10) != []
                with pytest.raises(Conflict) as caught:
                    await laurels.seasons.claim(ADMIN, f"{old.grant.period_id}.1.cup")
                assert caught.value.code == "reward_withdrawn"
            assert 2 < len(gone) < 8
            assert set(gone) == {"period_pruned"}
            with pytest.raises(NotFound):
                await laurels.reads.top(held(laurels, "b"), Selection(period=name), 0, 1)
            assert (await laurels.seasons.claim(ADMIN, f"{new.grant.period_id}.1.cup"))[1]

    asyncio.run(run())


def test_final_ranks_are_pruned_and_rewards_are_kept(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            rewards = (Reward("cup", "gold", ranks=Between(1, 1)),)
            await create(laurels, "b", windows=(Window("daily"),), rewards=rewards, keep_periods_days=5)
            await laurels.submissions.submit(held(laurels, "b"), Submission("ada", 5))
            for _ in range(4):
                stage.clock.now += DAY
                await laurels.jobs.run_due()
            first = (await laurels.seasons.page(held(laurels, "b"), None, None, 100))[-1]
            selection = Selection(period=first.name)
            assert (await laurels.reads.top(held(laurels, "b"), selection, 0, 1)).value.total == 1
            told = []
            for _ in range(4):
                stage.clock.now += DAY
                await laurels.jobs.run_due()
                told.append((await last_run(laurels, "retention"))["finalRanks"])
            assert sum(told) == 1
            with pytest.raises(NotFound) as caught:
                await laurels.reads.top(held(laurels, "b"), selection, 0, 1)
            assert caught.value.code == "period_pruned"
            assert await laurels.seasons.results([held(laurels, "b")], "ada", None, 10) == []
            (granted,) = await laurels.seasons.rewards_of_user([held(laurels, "b")], "ada", None, 10)
            assert (granted.period.name, granted.grant.reward) == (first.name, "cup")

    asyncio.run(run())


def test_event_sequence_numbers_are_not_reused_after_pruning(stage: Stage) -> None:
    """Even after all events were pruned: other services know events by it, and a closed period by its last one."""

    async def run() -> None:
        async with stage.running() as laurels:
            await create(
                laurels, "prunes", rule=Rule.INCREMENT, windows=(Window("daily"), ALL_TIME), keep_events_days=1
            )
            streams = laurels.ledger.streams
            await streams.begin_publishing()
            seen: set[int] = set()
            for day in range(5):
                for number in range(10):
                    submission = Submission("ada", 1, event_id=f"e{day}-{number}")
                    await laurels.submissions.submit(held(laurels, "prunes"), submission)
                events = await laurels.ledger.board_events(
                    held(laurels, "prunes").id, after_seq=0, limit=1000, voided=True
                )
                numbers = {event.seq for event in events}
                assert len(numbers) == 10
                assert not numbers & seen
                assert min(numbers) > max(seen, default=0)
                seen |= numbers
                stage.clock.now += 2 * DAY
                await laurels.jobs.run_due()
                # Every run prunes the events of its round.
                assert (await last_run(laurels, "retention"))["events"] == 10
            assert await laurels.ledger.count_events() == 0

    asyncio.run(run())


@pytest.mark.parametrize("rule", Rule)
def test_metadata_of_scores_that_count_outlive_their_events(stage: Stage, rule: Rule) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            windows = (Window("daily"), ALL_TIME)
            for uuid, days in (("keeps", None), ("prunes", 1)):
                await create(laurels, uuid, rule=rule, windows=windows, keep_events_days=days)
            first = held(laurels, "keeps").current_period("daily", stage.clock.now)
            assert first is not None

            async def shown(uuid: str, **selection: Any) -> dict[str, str]:
                board = held(laurels, uuid)
                page = (await laurels.reads.top(board, Selection(**selection), 0, 100)).value
                return await laurels.reads.metadata(board, page.entries)

            for day in range(6):
                for number, user in enumerate(("ada", "bob", "eve", "kim")):
                    metadata = {"car": f"{user}{day}"} if (day + number) % 3 else None
                    score = 10 - day if user == "ada" else day
                    sent = Submission(user, score, event_id=f"{user}{day}", metadata=metadata)
                    for uuid in ("keeps", "prunes"):
                        await laurels.submissions.submit(held(laurels, uuid), sent)
                    stage.clock.now += SECOND_US
                stage.clock.now += DAY
                await laurels.jobs.run_due()
                for selection in ({"window": "all"}, {"window": "daily", "period": first.name}):
                    assert await shown("prunes", **selection) == await shown("keeps", **selection)
            assert await laurels.ledger.count_events(held(laurels, "prunes").id) < 12
            board = held(laurels, "prunes")
            page = (await laurels.reads.top(board, Selection(window="daily", period=first.name), 0, 100)).value
            moments = [(entry.user_id, entry.achieved_at, None) for entry in page.entries]
            kept = await laurels.ledger.metadata_kept(board.id, moments)
            assert "bob" in kept
            await laurels.erasures.erase(ADMIN, "default", "bob", None, None)
            assert await laurels.ledger.metadata_kept(board.id, moments) == {
                user: metadata for user, metadata in kept.items() if user != "bob"
            }

    asyncio.run(run())
