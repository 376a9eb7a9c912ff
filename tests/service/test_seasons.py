"""The life of a period in embedded and shared mode: late scores, freeze, past periods, rewards, manual resets."""

from typing import Any

import pytest
from msgspec.structs import replace

from laurels.core.board import RankStyle
from laurels.core.instants import SECOND_US
from laurels.core.order import Order, Ties
from laurels.core.people import ProfileChange
from laurels.core.rewards import Between, Reward
from laurels.core.scores import RankState, Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Conflict, Invalid, NotFound
from laurels.ports import Grant, RecordOutcome, Role
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.seasons.freezer import grant_id
from laurels.service.write.submissions import Submission
from support.people import ADMIN, DAILY, HOUR, held, play, submit, until_prepared
from support.seasons import create, pass_days, top
from support.services import Stage, differences

DAY = 24 * HOUR


def test_late_scores_count_until_the_freeze_then_only_in_other_windows(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.INCREMENT, grace_s=600)
        await create(laurels, "only-daily", rule=Rule.INCREMENT, grace_s=600, windows=(DAILY,))
        before = held(laurels).current_period("daily", stage.clock.now)
        assert before is not None
        assert before.end is not None
        for uuid in ("board", "only-daily"):
            await submit(laurels, ("ada", 1), uuid=uuid, event_id="first")
        stage.clock.now = before.end + 599 * SECOND_US
        await laurels.jobs.run_due()
        for uuid in ("board", "only-daily"):
            await submit(laurels, ("ada", 10), uuid=uuid, at=before.end - 1, event_id="late")
            await submit(laurels, ("ada", 100), uuid=uuid, event_id="today")
        assert await top(laurels, period=before.name) == [(1, "ada", 11)]
        assert await top(laurels) == [(1, "ada", 100)]
        stage.clock.now = before.end + 600 * SECOND_US
        await laurels.jobs.run_due()
        # Frozen: `daily` reports the score as late, and `all` counts it.
        late = Submission("ada", 1000, at=before.end - 1, event_id="too-late")
        answer = await laurels.submissions.submit(held(laurels), late)
        assert (answer.late, [each.period.name for each in answer.counted]) == (("daily",), ["all"])
        assert answer.score == 1111
        with pytest.raises(Conflict) as caught:
            await laurels.submissions.submit(held(laurels, "only-daily"), late)
        assert caught.value.code == "period_closed"
        assert await top(laurels, period=before.name) == [(1, "ada", 11)]
        # A duplicate is recognized although its period is final; a different event with that id is a conflict.
        again = Submission("ada", 10, at=before.end - 1, event_id="late")
        answer = await laurels.submissions.submit(held(laurels, "only-daily"), again)
        assert (answer.outcome, answer.rank_state) == (RecordOutcome.DUPLICATE, RankState.PERIOD_OVER)
        other = Submission("ada", 11, at=before.end - 1, event_id="late")
        with pytest.raises(Conflict) as caught:
            await laurels.submissions.submit(held(laurels, "only-daily"), other)
        assert caught.value.code == "event_conflict"
        assert await differences(laurels) == []

    play(stage, work)


@pytest.mark.parametrize("ties", Ties)
@pytest.mark.parametrize("order", Order)
def test_final_ranks_answer_every_read_like_the_live_index(stage: Stage, order: Order, ties: Ties) -> None:
    users = [f"u{number:02}" for number in range(40)]

    async def everything(laurels: Laurels, name: str) -> list[Any]:
        board, reads = held(laurels), laurels.reads
        answers: list[Any] = []
        for style in [None, *RankStyle]:
            chosen = Selection(period=name, style=style)
            answers += [
                await reads.top(board, chosen, 0, 1000),
                await reads.top(board, chosen, 7, 5),
                await reads.top(board, chosen, 100, 5),
                await reads.around(board, chosen, "u00", 3, 3),
                await reads.around(board, chosen, "u39", 3, 3),
                await reads.rank(board, chosen, "u17"),
                await reads.ranks(board, chosen, ["u20", "nobody", "u03", "u04"]),
            ]
            for missing in (reads.rank(board, chosen, "nobody"), reads.around(board, chosen, "nobody", 1, 1)):
                with pytest.raises(NotFound) as caught:
                    await missing
                assert caught.value.code == "user_not_found"
        answers += [await reads.distribution(board, Selection(period=name), buckets) for buckets in (1, 2, 7, 50)]
        assert {answer.period.name for answer in answers} == {name}
        return [(answer.value, answer.degraded) for answer in answers]

    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.BEST, order=order, ties=ties)
        for number, user in enumerate(users):
            await submit(laurels, (user, (number * 7) % 13 - 3.5), at=stage.clock.now - number % 3)
        before = held(laurels).current_period("daily", stage.clock.now)
        assert before is not None
        for style in RankStyle:
            await until_prepared(laurels, Selection(period=before.name, style=style))
        live = await everything(laurels, before.name)
        assert not any(degraded for _, degraded in live)
        await pass_days(laurels, stage, 2)
        assert held(laurels).period_named(before.name) is None
        assert await everything(laurels, before.name) == live

    play(stage, work, repair_interval_ms=50)


def test_previous_periods_are_readable_and_unknown_periods_are_refused(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.BEST)
        with pytest.raises(NotFound):
            await top(laurels, period="previous")
        for day in range(3):
            await submit(laurels, ("ada", day))
            await pass_days(laurels, stage, 1)
        assert await top(laurels, period="previous") == [(1, "ada", 2)]
        assert await top(laurels, window="daily", period="previous") == [(1, "ada", 2)]
        with pytest.raises(NotFound):
            await top(laurels, window="all", period="previous")
        with pytest.raises(NotFound):
            await top(laurels, period="daily-1999-01-01")
        with pytest.raises(Invalid):
            await top(laurels, window="weekly")
        names = [period.name for period in await laurels.seasons.page(held(laurels), "daily", None, 100)]
        assert names == sorted(names, reverse=True)
        with pytest.raises(NotFound):
            await top(laurels, window="all", period=names[-1])
        first, second = names[-1], names[-2]
        assert (await top(laurels, period=first), await top(laurels, period=second)) == (
            [(1, "ada", 0)],
            [(1, "ada", 1)],
        )
        results = await laurels.seasons.results([held(laurels)], "ada", None, 100)
        assert [(result.period.name, result.final.score) for _, result in results] == [
            (names[-3], 2),
            (second, 1),
            (first, 0),
        ]
        # The same results, page by page.
        (one,) = await laurels.seasons.results([held(laurels)], "ada", None, 1)
        last = (one[1].period.frozen_at or 0, one[1].period.id)
        (two,) = await laurels.seasons.results([held(laurels)], "ada", last, 1)
        assert (one[1].final.score, two[1].final.score) == (2, 1)

    play(stage, work)


def test_ended_tournament_shows_its_final_ranks_and_rewards(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        end = stage.clock.now + 10 * HOUR
        rewards = (Reward("cup", "gold", ranks=Between(1, 1)),)
        await create(laurels, rule=Rule.BEST, end_at=end, rewards=rewards, windows=(ALL_TIME, DAILY))
        await submit(laurels, ("ada", 5), ("bob", 7))
        stage.clock.now = end + 30 * SECOND_US
        await submit(laurels, ("ada", 9), at=end - 1)
        with pytest.raises(Conflict) as caught:
            await submit(laurels, ("ada", 99))
        assert caught.value.code == "board_ended"
        with pytest.raises(Invalid):
            await submit(laurels, ("ada", 99), at=end)
        stage.clock.now = end + 60 * SECOND_US
        await laurels.jobs.run_due()
        with pytest.raises(Conflict) as caught:
            await submit(laurels, ("ada", 99), at=end - 1)
        assert caught.value.code == "board_ended"
        await pass_days(laurels, stage, 3)
        assert await top(laurels) == [(1, "ada", 9), (2, "bob", 7)]
        assert await top(laurels, window="daily") == [(1, "ada", 9), (2, "bob", 7)]
        assert held(laurels).periods == ()
        granted = await laurels.seasons.rewards_of_user([held(laurels)], "ada", None, 10)
        assert [(each.period.name, each.grant.reward) for each in granted][-1] == ("all", "cup")
        assert (await laurels.reads.counts([held(laurels)])).value == [2]

    play(stage, work)


def test_rewards_by_rank_percent_and_score_are_granted_and_claimed_once(stage: Stage) -> None:
    rewards = (
        Reward("podium", {"gems": 100}, ranks=Between(1, 3)),
        Reward("tenth", [1, "two", None], top_percent=10.0),
        Reward("veteran", "badge", scores=Between(50, None)),
        Reward("monthly-only", "x", windows=("all",), ranks=Between(1, 1)),
    )

    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.BEST, ties=Ties.SHARED, rewards=rewards)
        # 20 users with the scores 100, 90, 90, 90, 80 …: three users share rank 2, and no user has rank 3.
        scores = [100, 90, 90, 90, 80, *range(60, 45, -1)]
        await submit(laurels, *((f"u{number:02}", float(score)) for number, score in enumerate(scores)))
        before = held(laurels).current_period("daily", stage.clock.now)
        assert before is not None
        assert await laurels.seasons.rewards_of_period(held(laurels), before, (0, ""), 100) == []
        # Changes for the next season do not affect this one, which still accepts late scores.
        stage.clock.now = before.end or 0
        await laurels.boards.change(held(laurels), {"rewards": rewards[:1], "capacity": 1})
        await laurels.boards.change(held(laurels), {"rewards": ()})
        await pass_days(laurels, stage, 2)
        period = await laurels.seasons.period(held(laurels), None, before.name)
        granted = await laurels.seasons.rewards_of_period(held(laurels), period, (0, ""), 1000)
        by_reward: dict[str, list[str]] = {}
        for each in granted:
            by_reward.setdefault(each.grant.reward, []).append(each.grant.user_id)
        assert by_reward["podium"] == ["u00", "u01", "u02", "u03"]
        # 10 % of 20 users are 2; each user who shares rank 2 has only one user ahead.
        assert by_reward["tenth"] == ["u00", "u01", "u02", "u03"]
        assert by_reward["veteran"] == [f"u{number:02}" for number, score in enumerate(scores) if score >= 50]
        assert "monthly-only" not in by_reward
        (mine,) = [g for g in granted if g.grant.user_id == "u00" and g.grant.reward == "podium"]
        reward_id = f"{mine.grant.period_id}.1.podium"
        first, was_first = await laurels.seasons.claim(ADMIN, reward_id)
        stage.clock.now += HOUR
        second, was_second = await laurels.seasons.claim(ADMIN, reward_id)
        assert (was_first, was_second) == (True, False)
        assert first == second
        assert first.grant.claimed_at is not None
        stranger = Caller(Role.SERVER, "another", "key")
        for caller, wanted in (
            (stranger, reward_id),
            (ADMIN, "1.1.nothing"),
            (ADMIN, "nonsense"),
            (ADMIN, "9" * 30 + ".1.x"),
        ):
            with pytest.raises(NotFound) as caught:
                await laurels.seasons.claim(caller, wanted)
            assert caught.value.code == "reward_not_found"
        # The same rewards, page by page.
        paged: list[Any] = []
        after: tuple[int, str] = (0, "")
        while page := await laurels.seasons.rewards_of_period(held(laurels), period, after, 7):
            paged += page
            after = (page[-1].grant.place, page[-1].grant.reward)
        assert [each.grant.reward for each in paged] == [each.grant.reward for each in granted]
        of_user = await laurels.seasons.rewards_of_user([held(laurels)], "u00", None, 2)
        rest = await laurels.seasons.rewards_of_user(
            [held(laurels)], "u00", (period.frozen_at or 0, period.id, of_user[-1].grant.reward), 5
        )
        assert [each.grant.reward for each in [*of_user, *rest]] == ["podium", "tenth", "veteran"]

    play(stage, work)


@pytest.mark.parametrize(
    ("ties", "winners"), [(Ties.EARLIEST, ["u00", "u01"]), (Ties.LATEST, ["u18", "u19"]), (Ties.SHARED, None)]
)
def test_top_percent_follows_the_tie_policy(stage: Stage, ties: Ties, winners: list[str] | None) -> None:
    """Ten percent of 20 users with equal scores are two, unless all of them share the first rank."""

    async def work(laurels: Laurels) -> None:
        rewards = (Reward("tenth", 1, top_percent=10.0), Reward("two", 1, ranks=Between(1, 2)))
        await create(laurels, rule=Rule.BEST, ties=ties, rewards=rewards)
        users = [f"u{number:02}" for number in range(20)]
        for user in users:
            stage.clock.now += 1000
            await submit(laurels, (user, 7.0))
        period = held(laurels).current_period("daily", stage.clock.now)
        assert period is not None
        await pass_days(laurels, stage, 2)
        frozen = await laurels.seasons.period(held(laurels), None, period.name)
        granted = await laurels.seasons.rewards_of_period(held(laurels), frozen, (0, ""), 100)
        for name in ("tenth", "two"):
            earned = sorted(each.grant.user_id for each in granted if each.grant.reward == name)
            assert earned == (users if winners is None else winners)

    play(stage, work)


def test_board_changes_after_the_close_do_not_affect_the_freeze(stage: Stage) -> None:
    """A freeze that a crash interrupted continues under the same terms."""

    async def work(laurels: Laurels) -> None:
        board = await create(laurels, rule=Rule.BEST, capacity=2, rewards=(Reward("old", 1, ranks=Between(1, 9)),))
        await submit(laurels, ("ada", 1), ("bob", 2), ("cy", 3))
        before = board.current_period("daily", stage.clock.now)
        assert before is not None
        stage.clock.now += 2 * DAY
        seasons = laurels.ledger.periods
        finish = seasons.finish_freeze

        async def stopped(*_: Any) -> bool:
            raise Conflict("changed_meanwhile", "the power went")

        seasons.finish_freeze = stopped  # type: ignore[method-assign,assignment]
        await laurels.jobs.run_due()
        runs = {run.name: run for run in await laurels.jobs.runs()}
        assert runs["periods"].error == "board: the power went"
        # The period shows its live ranks until it is final.
        assert await top(laurels, period=before.name) == [(1, "cy", 3), (2, "bob", 2)]
        with pytest.raises(Conflict):
            await laurels.seasons.close_now(held(laurels), before.name)
        await laurels.boards.change(
            held(laurels), {"capacity": None, "rewards": (Reward("new", 2, ranks=Between(1, 9)),)}
        )
        seasons.finish_freeze = finish  # type: ignore[method-assign]
        await laurels.jobs.run_due()
        assert await top(laurels, period=before.name) == [(1, "cy", 3), (2, "bob", 2)]
        granted = await laurels.seasons.rewards_of_user([held(laurels)], "cy", None, 10)
        assert [each.grant.reward for each in granted] == ["old"]

    play(stage, work)


def test_next_period_starts_where_a_manually_closed_period_ends(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.INCREMENT)
        now = stage.clock.now
        period = held(laurels).current_period("daily", now)
        assert period is not None
        await submit(laurels, ("ada", 1))
        # A score from a clock that is ahead: it must stay in the period in which it was counted.
        await submit(laurels, ("ada", 10), at=now + 200 * SECOND_US)
        closed = await laurels.seasons.close_now(held(laurels), period.name)
        assert closed.end == now + 200 * SECOND_US + 1
        await submit(laurels, ("ada", 100), at=closed.end - 1)
        await submit(laurels, ("ada", 1000), at=closed.end)
        stage.clock.now = closed.end + 5 * SECOND_US
        assert await top(laurels) == [(1, "ada", 1000)]
        assert await top(laurels, period="previous") == [(1, "ada", 111)]
        assert await differences(laurels) == []
        with pytest.raises(Conflict) as caught:
            await laurels.seasons.close_now(held(laurels), period.name)
        assert caught.value.code == "period_not_open"
        with pytest.raises(Conflict):
            await laurels.seasons.close_now(held(laurels), "all")
        await pass_days(laurels, stage, 2)
        assert await top(laurels, period=period.name) == [(1, "ada", 111)]
        assert await differences(laurels) == []

    play(stage, work)


def test_period_can_be_extended_until_the_next_one_has_scores(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.INCREMENT)
        period = held(laurels).current_period("daily", stage.clock.now)
        assert period is not None
        assert period.end is not None
        for end in (period.end, period.end - 1, period.end + DAY):
            with pytest.raises(Invalid) as wrong:
                await laurels.seasons.extend(held(laurels), period.name, end)
            assert wrong.value.field == "endTime"
        longer = await laurels.seasons.extend(held(laurels), period.name, period.end + HOUR)
        assert longer.end == period.end + HOUR
        stage.clock.now = period.end + HOUR - 60 * SECOND_US
        await laurels.jobs.run_due()
        await submit(laurels, ("ada", 1))
        await submit(laurels, ("ada", 10), at=longer.end + SECOND_US)
        assert await top(laurels) == [(1, "ada", 1)]
        # The next period already has a score.
        with pytest.raises(Conflict) as caught:
            await laurels.seasons.extend(held(laurels), period.name, period.end + 2 * HOUR)
        assert caught.value.code == "period_has_scores"
        stage.clock.now = longer.end
        assert await top(laurels) == [(1, "ada", 10)]
        assert await differences(laurels) == []

    play(stage, work)


def test_window_added_to_a_running_board_counts_new_scores(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.INCREMENT)
        await submit(laurels, ("ada", 1))
        await submit(laurels, ("ada", 10), at=stage.clock.now + 100 * SECOND_US)
        windows = (DAILY, ALL_TIME, Window("hour", "Asia/Kathmandu", cron="0 * * * *"))
        await laurels.boards.change(held(laurels), {"windows": windows})
        stage.clock.now += 101 * SECOND_US
        await submit(laurels, ("ada", 100))
        assert await top(laurels, window="hour") == [(1, "ada", 100)]
        assert await top(laurels) == [(1, "ada", 111)]
        assert await differences(laurels) == []
        await pass_days(laurels, stage, 1)
        assert await differences(laurels) == []
        names = [period.name for period in await laurels.seasons.page(held(laurels), "hour", None, 100)]
        assert len(names) > 20

    play(stage, work)


def test_removed_user_stays_in_final_ranks(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.INCREMENT)
        await submit(laurels, ("ada", 1), ("bob", 2))
        await pass_days(laurels, stage, 2)
        await submit(laurels, ("ada", 4))
        await laurels.submissions.remove_user(ADMIN, held(laurels), "ada", None)
        assert await top(laurels, window="all") == [(1, "bob", 2)]
        names = [period.name for period in await laurels.seasons.page(held(laurels), "daily", None, 100)]
        assert await top(laurels, period=names[-1]) == [(1, "bob", 2), (2, "ada", 1)]
        assert await differences(laurels) == []

    play(stage, work)


def test_window_has_its_own_capacity_also_in_final_ranks(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        windows = (replace(DAILY, capacity=2), Window("weekly"), replace(ALL_TIME, capacity=4))
        await create(laurels, capacity=3, windows=windows, rule=Rule.BEST)
        users = [(f"u{number}", number) for number in range(6)]
        for user, score in users:
            answer = await laurels.submissions.submit(held(laurels), Submission(user, score))
        assert {each.period.window: each.rank for each in answer.counted} == {"daily": 1, "weekly": 1, "all": 1}
        low = await laurels.submissions.submit(held(laurels), Submission("u2", 2.5))
        assert {each.period.window: each.rank for each in low.counted} == {"daily": None, "weekly": None, "all": 4}
        sizes = {"daily": 2, "weekly": 3, "all": 4}
        for window, size in sizes.items():
            assert len(await top(laurels, window=window)) == size
        assert await differences(laurels) == []
        day = next(period.name for period in held(laurels).periods if period.window == "daily")
        await pass_days(laurels, stage, 2)
        assert [user for _, user, _ in await top(laurels, period=day)] == ["u5", "u4"]
        # A score is placed among the final ranks with the capacity that they have.
        for new, rank in ((4.5, 2), (3.5, None)):
            place = (await laurels.score_reads.place(held(laurels), Selection(period=day), new, 0, 0)).value
            assert (place.rank, place.ranked_users) == (rank, 2)
        # Only the capacity of a window can be changed, and what has ended keeps it.
        changed = (replace(DAILY, capacity=1), Window("weekly", capacity=5), ALL_TIME)
        await laurels.boards.change(held(laurels), {"windows": changed})
        assert len(await top(laurels, period=day)) == 2
        assert len(await top(laurels, window="weekly")) == 5
        assert len(await top(laurels, window="all")) == 3

    play(stage, work)


def test_best_of_each_region_earn_a_reward(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        rewards = (
            Reward("world", 1, ranks=Between(1, 1)),
            Reward("region", 2, ranks=Between(1, 2), segment="region"),
        )
        segments = ("global", "region", "circle")
        await create(laurels, capacity=2, segments=segments, rule=Rule.BEST, rewards=rewards)
        # The regions of eight users, best first. The capacity applies to each region, too.
        regions = ["eu", "eu", "eu", "us", None, "us", "kr", "us"]
        changes = [
            ProfileChange(f"u{number}", region=region, circles=("all",)) for number, region in enumerate(regions)
        ]
        await laurels.profiles.change("default", changes)
        await submit(laurels, *((f"u{number}", 100 - number) for number in range(len(regions))))
        day = next(period.name for period in held(laurels).periods if period.window == "daily")
        await pass_days(laurels, stage, 2)

        async def grants() -> list[Grant]:
            period = await laurels.seasons.period(held(laurels), None, day)
            found = await laurels.seasons.rewards_of_period(held(laurels), period, (0, ""), 100)
            return [each.grant for each in found]

        async def granted() -> list[tuple[str, str, int, str]]:
            return [(each.reward, each.user_id, each.rank, each.segment) for each in await grants()]

        expected = [
            ("region", "u0", 1, "region:eu"),
            ("world", "u0", 1, "global"),
            ("region", "u1", 2, "region:eu"),
            ("region", "u3", 1, "region:us"),
            ("region", "u5", 2, "region:us"),
            ("region", "u6", 1, "region:kr"),
        ]
        assert await granted() == expected
        # A corrected result keeps what was claimed.
        us = next(each for each in await grants() if each.user_id == "u3")
        claimed = await laurels.seasons.claim(ADMIN, grant_id(us))
        assert claimed
        await laurels.submissions.remove_user(ADMIN, held(laurels), "u0", None)
        await laurels.seasons.refreeze(ADMIN, held(laurels), day, None, None)
        await laurels.jobs.run_due()
        assert [each[:3] for each in await granted()] == [
            ("region", "u1", 1),
            ("world", "u1", 1),
            ("region", "u2", 2),
            ("region", "u3", 1),
            ("region", "u5", 2),
            ("region", "u6", 1),
        ]
        assert [each.user_id for each in await grants() if each.claimed_at is not None] == ["u3"]

    play(stage, work)
