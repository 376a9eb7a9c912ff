"""Ends of periods and boards: after downtime, ahead of the clock, manual and repeated; and duplicates afterwards."""

from collections.abc import Awaitable, Callable

import pytest

from laurels.core.board import Board, Status
from laurels.core.instants import SECOND_US
from laurels.core.rewards import Between, Reward
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Conflict
from laurels.ports import RecordOutcome
from laurels.service.laurels import Laurels
from laurels.service.write.submissions import Accepted, Submission
from support.people import ADMIN, DAILY, HOUR, held, play, submit
from support.seasons import create, top
from support.services import Stage, differences

DAY = 24 * HOUR


def test_long_downtime_with_long_grace_time_leaves_no_gap_between_periods(stage: Stage) -> None:
    """More periods were missed than are created at once, and all of them still accept late scores."""

    async def work(laurels: Laurels) -> None:
        often = Window("often", cron="*/5 * * * *")
        await create(laurels, rule=Rule.INCREMENT, windows=(often,), grace_s=86_400)
        await submit(laurels, ("ada", 1))
        down_at = stage.clock.now
        stage.clock.now += 18 * HOUR
        # A write is the first to notice the missing periods.
        await submit(laurels, ("ada", 2))
        await laurels.jobs.run_due()
        await submit(laurels, ("ada", 4), at=down_at + 9 * HOUR)
        periods = sorted((p for p in held(laurels).periods), key=lambda period: period.start or 0)
        assert [p.end for p in periods[:-1]] == [p.start for p in periods[1:]]
        assert len({p.name for p in periods}) == len(periods) > 216
        assert await top(laurels) == [(1, "ada", 2)]
        name = next(p.name for p in periods if p.contains(down_at + 9 * HOUR))
        assert await top(laurels, period=name) == [(1, "ada", 4)]
        # After downtime longer than the grace time, only periods that still accept scores are created.
        stage.clock.now += 30 * DAY
        await submit(laurels, ("ada", 8))
        assert await top(laurels) == [(1, "ada", 8)]
        await laurels.jobs.run_due()
        late = [p for p in held(laurels).periods if p.start is not None]
        assert min(p.start or 0 for p in late) >= stage.clock.now - DAY - 300 * SECOND_US
        assert await differences(laurels) == []

    play(stage, work)


@pytest.mark.parametrize("how", [Status.ENDED, Status.ARCHIVED])
def test_board_ends_after_its_last_accepted_score(stage: Stage, how: Status) -> None:
    """Acknowledged scores that are ahead of the clock count, even in the next period."""

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
        # Like a client that sends back all fields.
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


def test_end_time_before_accepted_scores_is_refused(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, rule=Rule.INCREMENT)
        await submit(laurels, ("ada", 1), at=stage.clock.now - HOUR)
        await submit(laurels, ("bob", 1), at=stage.clock.now + 200 * SECOND_US)
        for end in (stage.clock.now - 2 * HOUR, stage.clock.now, stage.clock.now + 100 * SECOND_US):
            with pytest.raises(Conflict) as caught:
                await laurels.boards.change(held(laurels), {"end_at": end})
            assert (caught.value.code, caught.value.field) == ("end_before_scores", "endTime")
            # Also together with other changes.
            for status, fields in ((Status.ENDED, {}), (None, {"windows": (DAILY, ALL_TIME, Window("weekly"))})):
                with pytest.raises(Conflict) as caught:
                    await laurels.boards.change(held(laurels), {"end_at": end, **fields}, status)
                assert (caught.value.code, caught.value.field) == ("end_before_scores", "endTime")
        later = await laurels.boards.change(held(laurels), {"end_at": stage.clock.now + HOUR})
        assert later.end_at == stage.clock.now + HOUR

    play(stage, work)


def test_period_can_be_closed_extended_and_closed_again(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        # The name contains dots and ends like that of a numbered period.
        season = Window("season.1.5", cron="0 0 1 1 *")
        await create(laurels, rule=Rule.INCREMENT, windows=(season,))
        first = held(laurels).current_period(season.name, stage.clock.now)
        assert first is not None
        assert first.end is not None
        # The period ends after its last score, so there is time to extend it.
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


def test_duplicate_is_recognized_after_its_board_changed_or_ended(stage: Stage) -> None:
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
                assert answer.outcome is RecordOutcome.DUPLICATE, each
            with pytest.raises(Conflict) as caught:
                await laurels.submissions.submit(board, other)
            assert caught.value.code == "event_conflict"
            # In a batch, duplicates are recognized, and the other events are refused as before.
            results = await laurels.submissions.submit_many(board, [first, new, timed])
            assert [isinstance(each, Accepted) for each in (results[0], results[2])] == [True, True]
            if board.status_at(stage.clock.now) is not Status.ACTIVE:
                assert isinstance(results[1], Conflict)
                for only in ([new], [Submission("ada", 1)]):
                    with pytest.raises(Conflict) as caught:
                        await laurels.submissions.submit_many(board, only)
                    assert caught.value.code in {"board_ended", "board_archived"}
            new = Submission("ada", 1, event_id=f"new-{stage.clock.now}")
        assert await laurels.ledger.count_events(held(laurels).id) == 4

    play(stage, work)
