"""The life of a period, on both kinds of stores: late scores, the freeze, past periods, rewards, resets by hand."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from laurels.core.board import Board, RankStyle, Status
from laurels.core.instants import SECOND_US
from laurels.core.order import Order, Ties
from laurels.core.rewards import Between, Reward
from laurels.core.scores import RankState, Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Conflict, Invalid, NotFound
from laurels.ports import Recorded, Role
from laurels.service.access import Caller
from laurels.service.laurels import Laurels
from laurels.service.reads import Selection
from laurels.service.submit import Accepted, Submission
from support.people import ADMIN, DAILY, HOUR, held, play, submit, until_prepared
from support.services import Stage, differences

DAY = 24 * HOUR


async def create(laurels: Laurels, uuid: str = "board", **fields: Any) -> Board:
    board = Board(
        id=0, uuid=uuid, pod_id="default", name=uuid, created_at=0, **({"windows": (DAILY, ALL_TIME)} | fields)
    )
    return await laurels.boards.create(board, None)


async def pass_days(laurels: Laurels, stage: Stage, days: int) -> None:
    """The jobs run once an hour."""
    for _ in range(days * 24):
        stage.clock.now += HOUR
        await laurels.jobs.run_due()


async def top(laurels: Laurels, uuid: str = "board", **selection: Any) -> list[tuple[int, str, float]]:
    page = (await laurels.reads.top(held(laurels, uuid), Selection(**selection), 0, 100)).value
    return [(place.rank, place.user_id, place.score) for place in page.places]


def test_late_scores_are_taken_until_the_freeze_and_then_only_by_other_windows(stage: Stage) -> None:
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
        # Frozen: the window refuses it and says so, and the other one counts it.
        late = Submission("ada", 1000, at=before.end - 1, event_id="too-late")
        answer = await laurels.submissions.submit(held(laurels), late)
        assert (answer.late, [each.period.name for each in answer.counted]) == (("daily",), ["all"])
        assert answer.score == 1111
        with pytest.raises(Conflict) as caught:
            await laurels.submissions.submit(held(laurels, "only-daily"), late)
        assert caught.value.code == "period_closed"
        assert await top(laurels, period=before.name) == [(1, "ada", 11)]
        # What was counted is known, though its period is final; and what is another is not the same.
        again = Submission("ada", 10, at=before.end - 1, event_id="late")
        answer = await laurels.submissions.submit(held(laurels, "only-daily"), again)
        assert (answer.outcome, answer.rank_state) == (Recorded.DUPLICATE, RankState.PERIOD_OVER)
        other = Submission("ada", 11, at=before.end - 1, event_id="late")
        with pytest.raises(Conflict) as caught:
            await laurels.submissions.submit(held(laurels, "only-daily"), other)
        assert caught.value.code == "event_conflict"
        assert await differences(laurels) == []

    play(stage, work)


@pytest.mark.parametrize("ties", Ties)
@pytest.mark.parametrize("order", Order)
def test_final_ranks_answer_everything_as_the_index_did(stage: Stage, order: Order, ties: Ties) -> None:
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


def test_previous_periods_and_what_there_is_not(stage: Stage) -> None:
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
        # In pages, too.
        (one,) = await laurels.seasons.results([held(laurels)], "ada", None, 1)
        last = (one[1].period.frozen_at or 0, one[1].period.id)
        (two,) = await laurels.seasons.results([held(laurels)], "ada", last, 1)
        assert (one[1].final.score, two[1].final.score) == (2, 1)

    play(stage, work)


def test_an_ended_tournament_shows_how_it_ended(stage: Stage) -> None:
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
        # 20 users; the scores 100, 90, 90, 90, 80 …: rank 2 is shared by three, and rank 3 is nobody's.
        scores = [100, 90, 90, 90, 80, *range(60, 45, -1)]
        await submit(laurels, *((f"u{number:02}", float(score)) for number, score in enumerate(scores)))
        before = held(laurels).current_period("daily", stage.clock.now)
        assert before is not None
        assert await laurels.seasons.rewards_of_period(held(laurels), before, (0, ""), 100) == []
        # Whoever prepares the next season while this one takes late scores changes nothing for it.
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
        # Ten percent of twenty are two; who shares the second place has only one ahead.
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
        # In pages, the same ones.
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


def test_rules_that_change_after_the_close_change_nothing(stage: Stage) -> None:
    """What a crash leaves half done is gone on with under the same terms."""

    async def work(laurels: Laurels) -> None:
        board = await create(laurels, rule=Rule.BEST, capacity=2, rewards=(Reward("old", 1, ranks=Between(1, 9)),))
        await submit(laurels, ("ada", 1), ("bob", 2), ("cy", 3))
        before = board.current_period("daily", stage.clock.now)
        assert before is not None
        stage.clock.now += 2 * DAY
        seasons = laurels._ledger.seasons
        finish = seasons.finish_freeze

        async def stopped(*_: Any) -> bool:
            raise Conflict("changed_meanwhile", "the power went")

        seasons.finish_freeze = stopped  # type: ignore[method-assign,assignment]
        await laurels.jobs.run_due()
        runs = {run.name: run for run in await laurels.jobs.runs()}
        assert runs["periods"].error == "board: the power went"
        # It shows what it has until it is final.
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


def test_a_period_closed_by_hand_and_the_next_one_that_begins_there(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.INCREMENT)
        now = stage.clock.now
        period = held(laurels).current_period("daily", now)
        assert period is not None
        await submit(laurels, ("ada", 1))
        # One from a clock that is ahead: the reset must not cut it off from where it was counted.
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


def test_a_period_that_is_extended(stage: Stage) -> None:
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
        # The next one has a score already.
        with pytest.raises(Conflict) as caught:
            await laurels.seasons.extend(held(laurels), period.name, period.end + 2 * HOUR)
        assert caught.value.code == "period_has_scores"
        stage.clock.now = longer.end
        assert await top(laurels) == [(1, "ada", 10)]
        assert await differences(laurels) == []

    play(stage, work)


def test_a_window_joins_a_running_board(stage: Stage) -> None:
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


def test_a_removed_user_stays_where_the_ranks_are_final(stage: Stage) -> None:
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


def test_a_long_downtime_and_a_longer_grace_time_leave_no_gap(stage: Stage) -> None:
    """More periods were missed than are made up for at once, and all of them still take late scores."""

    async def work(laurels: Laurels) -> None:
        often = Window("often", cron="*/5 * * * *")
        await create(laurels, rule=Rule.INCREMENT, windows=(often,), grace_s=86_400)
        await submit(laurels, ("ada", 1))
        down_at = stage.clock.now
        stage.clock.now += 18 * HOUR
        # A write is the first to notice.
        await submit(laurels, ("ada", 2))
        await laurels.jobs.run_due()
        await submit(laurels, ("ada", 4), at=down_at + 9 * HOUR)
        periods = sorted((p for p in held(laurels).periods), key=lambda period: period.start or 0)
        assert [p.end for p in periods[:-1]] == [p.start for p in periods[1:]]
        assert len({p.name for p in periods}) == len(periods) > 216
        assert await top(laurels) == [(1, "ada", 2)]
        name = next(p.name for p in periods if p.contains(down_at + 9 * HOUR))
        assert await top(laurels, period=name) == [(1, "ada", 4)]
        # After a downtime that is longer than the grace time only what can still be scored in is made.
        stage.clock.now += 30 * DAY
        await submit(laurels, ("ada", 8))
        assert await top(laurels) == [(1, "ada", 8)]
        await laurels.jobs.run_due()
        late = [p for p in held(laurels).periods if p.start is not None]
        assert min(p.start or 0 for p in late) >= stage.clock.now - DAY - 300 * SECOND_US
        assert await differences(laurels) == []

    play(stage, work)


@pytest.mark.parametrize("how", [Status.ENDED, Status.ARCHIVED])
def test_a_board_ends_after_the_last_score_that_it_took(stage: Stage, how: Status) -> None:
    """Scores may be ahead of the clock: they were acknowledged, and count, also in the next period."""

    async def work(laurels: Laurels) -> None:
        rewards = (Reward("first", "cup", ranks=Between(1, 1)),)
        await create(laurels, rule=Rule.INCREMENT, windows=(DAILY,), rewards=rewards, grace_s=0)
        today = held(laurels).current_period("daily", stage.clock.now)
        assert today is not None
        assert today.end is not None
        stage.clock.now = today.end - 60 * SECOND_US
        await laurels.jobs.run_due()
        await submit(laurels, ("ada", 1))
        ahead = today.end + 100 * SECOND_US
        await submit(laurels, ("bob", 2), at=ahead)
        # As a client does that sends all that it knows.
        ended = await laurels.boards.change(held(laurels), {"windows": held(laurels).windows}, how)
        assert ended.ended_at == ahead + 1
        stage.clock.now = ahead + 2
        for _ in range(3):
            await laurels.jobs.run_due()
        tomorrow = next(p for p in await laurels.seasons.page(held(laurels), None, None, 10) if p.start == today.end)
        assert await top(laurels, period=today.name) == [(1, "ada", 1)]
        assert await top(laurels, period=tomorrow.name) == [(1, "bob", 2)]
        for name in (today.name, tomorrow.name):
            period = await laurels.seasons.period(held(laurels), None, name)
            assert period.start is not None
            assert period.end is not None
            assert period.start < period.end
            before = await top(laurels, period=name)
            await laurels.seasons.refreeze(ADMIN, held(laurels), name, None, None)
            await laurels.jobs.run_due()
            assert await top(laurels, period=name) == before

    play(stage, work)


def test_an_end_that_leaves_out_scores_is_refused(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.INCREMENT)
        await submit(laurels, ("ada", 1), at=stage.clock.now - HOUR)
        await submit(laurels, ("bob", 1), at=stage.clock.now + 200 * SECOND_US)
        for end in (stage.clock.now - 2 * HOUR, stage.clock.now, stage.clock.now + 100 * SECOND_US):
            with pytest.raises(Conflict) as caught:
                await laurels.boards.change(held(laurels), {"end_at": end})
            assert (caught.value.code, caught.value.field) == ("period_has_scores", "endTime")
            # Whatever else is asked for with it.
            for status, fields in ((Status.ENDED, {}), (None, {"windows": (DAILY, ALL_TIME, Window("weekly"))})):
                with pytest.raises(Conflict) as caught:
                    await laurels.boards.change(held(laurels), {"end_at": end, **fields}, status)
                assert (caught.value.code, caught.value.field) == ("period_has_scores", "endTime")
        later = await laurels.boards.change(held(laurels), {"end_at": stage.clock.now + HOUR})
        assert later.end_at == stage.clock.now + HOUR

    play(stage, work)


def test_a_period_is_closed_extended_and_closed_again(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        # A name with dots, and one that ends like a counted one.
        season = Window("season.1.5", cron="0 0 1 1 *")
        await create(laurels, rule=Rule.INCREMENT, windows=(season,))
        first = held(laurels).current_period(season.name, stage.clock.now)
        assert first is not None
        assert first.end is not None
        # It ends after the last score, which leaves the time to think again.
        await submit(laurels, ("bob", 1), at=stage.clock.now + 100 * SECOND_US)
        closed = await laurels.seasons.close_now(held(laurels), first.name)
        assert closed.end == stage.clock.now + 100 * SECOND_US + 1
        extended = await laurels.seasons.extend(held(laurels), first.name, closed.end + HOUR)
        assert extended.end == closed.end + HOUR
        again = await laurels.seasons.close_now(held(laurels), first.name)
        assert again.end is not None
        assert again.end < closed.end + HOUR
        names = [period.name for period in held(laurels).periods]
        assert names[:2] == [first.name, f"{first.name}.2"]
        assert len(set(names)) == len(names)
        stage.clock.now = again.end + SECOND_US
        await laurels.jobs.run_due()
        await submit(laurels, ("ada", 1))
        second = held(laurels).current_period(season.name, stage.clock.now)
        assert second is not None
        assert (second.name, second.start, second.end) == (f"{first.name}.2", again.end, first.end)
        third = await laurels.seasons.close_now(held(laurels), second.name)
        assert third.end is not None
        stage.clock.now = third.end + SECOND_US
        await laurels.jobs.run_due()
        current = held(laurels).current_period(season.name, stage.clock.now)
        assert current is not None
        assert current.name == f"{first.name}.3"
        assert await differences(laurels) == []

    play(stage, work)


def test_a_repetition_is_known_whatever_became_of_its_board(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.INCREMENT, grace_s=0)
        first = Submission("ada", 5, event_id="e1")
        timed = Submission("ada", 7, at=stage.clock.now - 1, event_id="e2", metadata={"level": 3})
        for each in (first, timed):
            await laurels.submissions.submit(held(laurels), each)
        other = Submission("ada", 8, at=stage.clock.now - 1, event_id="e2")
        new = Submission("ada", 1, event_id="new")
        stages: list[Callable[[Board], Awaitable[Board]]] = [
            lambda board: laurels.boards.change(board, {"max_score": 1.0}),
            lambda board: laurels.boards.change(board, {"start_at": stage.clock.now}),
            lambda board: laurels.boards.change(board, {}, Status.ENDED),
            lambda board: laurels.boards.change(board, {}, Status.ARCHIVED),
        ]
        for change in stages:
            await change(held(laurels))
            stage.clock.now += 300 * SECOND_US
            await laurels.jobs.run_due()
            board = held(laurels)
            for each in (first, timed):
                answer = await laurels.submissions.submit(board, each)
                assert answer.outcome is Recorded.DUPLICATE, each
            with pytest.raises(Conflict) as caught:
                await laurels.submissions.submit(board, other)
            assert caught.value.code == "event_conflict"
            # In a batch each for itself, and the rest is refused as before.
            results = await laurels.submissions.submit_many(board, [first, new, timed])
            assert [isinstance(each, Accepted) for each in (results[0], results[2])] == [True, True]
            if board.status_at(stage.clock.now) is not Status.ACTIVE:
                assert isinstance(results[1], Conflict)
                for only in ([new], [Submission("ada", 1)]):
                    with pytest.raises(Conflict) as caught:
                        await laurels.submissions.submit_many(board, only)
                    assert caught.value.code in {"board_ended", "board_archived"}
            new = Submission("ada", 1, event_id=f"new-{stage.clock.now}")
        assert await laurels._ledger.count_events(held(laurels).id) == 4

    play(stage, work)
