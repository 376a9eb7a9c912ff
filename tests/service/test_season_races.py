"""Races in seasons: clock skew, stale servers, concurrent changes, and a board that always fails."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from laurels.core.board import Board, Status
from laurels.core.instants import SECOND_US
from laurels.core.periods import missing_spans
from laurels.core.rewards import Between, Reward
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import Conflict, Invalid, NotFound, Unavailable
from laurels.ports import Event, Role
from laurels.service.boards import boards as boards_module
from laurels.service.boards.caller import Caller
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.services import Stage, differences
from support.waiting import until_so

HOUR = 3_600 * SECOND_US
DAY = 24 * HOUR
ADMIN = Caller(Role.ADMIN, None, "test")
DAILY = Window("daily")


@pytest.fixture(params=["embedded", "shared"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path)


@pytest.fixture
def shared(tmp_path: Path) -> Stage:
    return Stage("shared", tmp_path)


async def create(laurels: Laurels, uuid: str = "b", **fields: Any) -> Board:
    defaults: dict[str, Any] = {"windows": (DAILY, ALL_TIME), "rule": Rule.INCREMENT}
    board = Board(id=0, uuid=uuid, pod_id="default", name=uuid, created_at=0, **(defaults | fields))
    return await laurels.boards.create(board, None)


def held(laurels: Laurels, uuid: str = "b") -> Board:
    return laurels.boards.to_read(ADMIN, uuid)


async def submit(laurels: Laurels, user: str, score: float, uuid: str = "b", **fields: Any) -> Any:
    return await laurels.submissions.submit(held(laurels, uuid), Submission(user, score, **fields))


async def top(laurels: Laurels, uuid: str = "b", **selection: Any) -> list[tuple[str, float]]:
    page = (await laurels.reads.top(held(laurels, uuid), Selection(**selection), 0, 100)).value
    return [(place.user_id, place.score) for place in page.entries]


def run(stage: Stage, work: Callable[[Laurels], Any], **settings: Any) -> None:
    async def play() -> None:
        async with stage.running(**settings) as laurels:
            await work(laurels)

    asyncio.run(play())


def current(laurels: Laurels, stage: Stage, uuid: str = "b") -> str:
    period = held(laurels, uuid).current_period("daily", stage.clock.now)
    assert period is not None
    return period.name


def test_day_closed_manually_several_times_has_distinct_periods(stage: Stage) -> None:
    """Also on the last day of a board, which no other day follows."""

    async def work(laurels: Laurels) -> None:
        await create(laurels, end_at=stage.clock.now + 10 * HOUR)
        await create(laurels, "other")
        names = []
        for number in range(4):
            await submit(laurels, "ada", 10**number)
            names.append(current(laurels, stage))
            await laurels.seasons.close_now(held(laurels), names[-1])
            stage.clock.now += 10 * SECOND_US
            await laurels.jobs.run_due()
        assert len(set(names)) == 4
        for number, name in enumerate(names):
            assert await top(laurels, period=name) == [("ada", 10**number)]
        assert [name.partition(".")[2] for name in names] == ["", "2", "3", "4"]
        # Scheduled resets do not move.
        last = held(laurels).period_named(current(laurels, stage))
        assert last is not None
        assert last.end == (stage.clock.now // DAY + 1) * DAY
        with pytest.raises(Invalid):
            await laurels.seasons.extend(held(laurels), last.name, 253_402_300_799_999_999)
        await submit(laurels, "ada", 1, uuid="other")
        assert await differences(laurels) == []
        stage.clock.now += DAY
        await laurels.jobs.run_due()
        assert await top(laurels, period=names[0]) == [("ada", 1)]

    run(stage, work)


def test_failing_board_does_not_delay_other_boards(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(laurels: Laurels) -> None:
        for uuid in ("bad", "worse", "good"):
            await create(laurels, uuid)
            await submit(laurels, "ada", 1, uuid)
        day = current(laurels, stage, "good")
        real = missing_spans

        def fails(board: Board, now: int) -> Any:
            if board.uuid == "bad":
                raise OverflowError("no calendar goes that far")
            return real(board, now)

        # A fault in one board's row looks like an unavailable ledger; the job still handles the other boards.
        update = laurels.ledger.update_board

        async def refuses(wanted: Any, *rest: Any) -> Board:
            if wanted.board.uuid == "worse":
                raise Unavailable("ledger_unavailable", "UNIQUE constraint failed")
            return await update(wanted, *rest)

        laurels.ledger.update_board = refuses  # type: ignore[method-assign,assignment]
        monkeypatch.setattr(boards_module, "missing_spans", fails)
        monkeypatch.setattr("laurels.service.jobs.definitions.missing_spans", fails)
        stage.clock.now += DAY
        answers = await asyncio.gather(
            submit(laurels, "bob", 1, "bad"), submit(laurels, "bob", 1, "good"), return_exceptions=True
        )
        assert [isinstance(answer, Exception) for answer in answers] == [True, False]
        await laurels.jobs.run_due()
        assert held(laurels, "good").period_named(day) is None
        (run_,) = [each for each in await laurels.jobs.runs() if each.name == "periods"]
        assert "bad: OverflowError" in (run_.error or "")
        assert "worse: UNIQUE" in (run_.error or "")
        assert {each.name for each in await laurels.jobs.runs() if each.error is None} >= {"trim", "retention"}

    run(stage, work)


def test_close_includes_events_of_a_server_whose_clock_is_ahead(shared: Stage) -> None:
    """An event stamped by a clock three seconds ahead is later than a close two seconds ahead."""

    async def work(laurels: Laurels) -> None:
        await create(laurels)
        name = current(laurels, shared)
        event = Event(
            held(laurels), "ahead", "ada", 5.0, shared.clock.now + 3 * SECOND_US, True, shared.clock.now + 3 * SECOND_US
        )
        await laurels.ledger.record([event])
        closed = await laurels.seasons.close_now(held(laurels), name)
        assert closed.end == event.at + 1
        assert [each async for each in laurels.ledger.refold(held(laurels))] != []
        shared.clock.now += 10 * SECOND_US
        await laurels.repairer.run_pass()
        assert await top(laurels, period=name) == [("ada", 5)]

    run(shared, work)


@pytest.mark.parametrize("change", ["close", "join"])
def test_change_overtaken_by_events_takes_effect_at_a_later_instant(stage: Stage, change: str) -> None:
    """Events that arrived meanwhile are later than the chosen instant, although no clock was ahead."""

    async def work(laurels: Laurels) -> None:
        await create(laurels)
        name = current(laurels, stage)
        ledger = laurels.ledger
        update = ledger.update_board
        late = [True]

        async def slow(wanted: Any, *rest: Any) -> Board:
            if late and wanted.free_from is not None:
                late.clear()
                stage.clock.now = wanted.free_from + SECOND_US
                await submit(laurels, "ada", 1)
                if stage.kind == "shared":
                    # PostgreSQL checks against its own clock, which is the real one.
                    wanted = replace(wanted, free_from=1)
            return await update(wanted, *rest)

        ledger.update_board = slow  # type: ignore[method-assign,assignment]
        if change == "close":
            closed = await laurels.seasons.close_now(held(laurels), name)
            assert closed.end is not None
            assert closed.end > stage.clock.now
        else:
            windows = (DAILY, ALL_TIME, Window("hour", cron="0 * * * *"))
            with pytest.raises(Conflict) as caught:
                await laurels.boards.change(held(laurels), {"windows": windows})
            assert caught.value.code == "changed_meanwhile"
            await laurels.boards.change(held(laurels), {"windows": windows})
        stage.clock.now += 10 * SECOND_US
        await submit(laurels, "ada", 10)
        assert await differences(laurels) == []

    run(stage, work)


def test_extending_a_period_that_another_server_closed_is_refused(shared: Stage) -> None:
    async def play() -> None:
        async with shared.running() as first, shared.running() as late:
            await create(first)
            await late.boards.reload()
            late.registry.reloads = []
            name = current(late, shared)
            stale = held(late)
            end = stale.period_named(name).end  # type: ignore[union-attr]
            assert end is not None
            closed = await first.seasons.close_now(held(first), name)
            assert closed.end is not None
            await submit(first, "ada", 1, at=closed.end)
            # This would be valid for the stale board, but another period now ends before that.
            with pytest.raises(Invalid):
                await late.seasons.extend(stale, name, end + HOUR)
            with pytest.raises(Conflict) as caught:
                await late.seasons.extend(held(late), name, closed.end + 60 * SECOND_US)
            assert caught.value.code == "period_has_scores"
            await first.boards.reload()
            assert held(first).period_named(name).end == closed.end  # type: ignore[union-attr]
            assert await differences(first) == []

    asyncio.run(play())


def test_second_of_two_concurrent_window_additions_is_refused(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels)
        await submit(laurels, "ada", 1)
        await laurels.boards.change(board, {"windows": (*board.windows, Window("weekly"))})
        with pytest.raises(Conflict) as caught:
            await laurels.boards.change(board, {"windows": (*board.windows, Window("monthly"))})
        assert caught.value.code == "changed_meanwhile"
        assert held(laurels).window_names == ("daily", "all", "weekly")
        stage.clock.now += 5 * SECOND_US
        await submit(laurels, "ada", 1)
        assert await differences(laurels) == []

    run(stage, work)


def test_server_resuming_after_a_freeze_writes_nothing_into_it(shared: Stage) -> None:
    """It resumes when some rows are already swept, and would rank only the rest."""

    async def play() -> None:
        async with shared.running(jobs_lease_ms=1) as quick, shared.running(jobs_lease_ms=1) as slow:
            rewards = (Reward("few", 1, scores=Between(None, 5)),)
            await create(quick, rule=Rule.BEST, rewards=rewards, grace_s=0)
            await slow.boards.reload()
            slow.registry.reloads = []
            await quick.submissions.submit_many(held(quick), [Submission(f"u{n:02}", n) for n in range(30)])
            day = current(quick, shared)
            seasons = slow.ledger.periods
            last_place = seasons.last_place

            async def asleep(period_id: int) -> int:
                done = await last_place(period_id)
                await quick.boards.reload()
                period = held(quick).period_named(day)
                assert period is not None
                assert await quick.freezer.freeze(held(quick), period) == 30
                await quick.ledger.periods.sweep(period_id, 10)
                return done

            seasons.last_place = asleep  # type: ignore[method-assign]
            shared.clock.now += DAY
            await slow.jobs.run_due()
            period = await quick.seasons.period(held(quick), None, day)
            granted = await quick.seasons.rewards_of_period(held(quick), period, (0, ""), 100)
            assert sorted(each.grant.user_id for each in granted) == [f"u{n:02}" for n in range(6)]
            assert len(await top(quick, period=day)) == 30

    asyncio.run(play())


@pytest.mark.parametrize("how", ["ended", "archived"])
def test_server_unaware_of_the_end_of_a_board_refuses_scores(shared: Stage, how: str) -> None:
    async def play() -> None:
        async with shared.running() as first, shared.running() as late:
            await create(first)
            await late.boards.reload()
            late.registry.reloads = []
            await submit(first, "ada", 1)
            stale = held(late)
            await first.boards.change(held(first), {}, Status.ENDED if how == "ended" else Status.ARCHIVED)
            # The board ends just after the score of this instant.
            shared.clock.now += 1
            with pytest.raises(Conflict) as caught:
                await late.submissions.submit(stale, Submission("bob", 9))
            assert caught.value.code == f"board_{how}"
            assert await top(first) == [("ada", 1)]
            assert await differences(first) == []

    asyncio.run(play())


def test_archived_board_keeps_final_ranks_and_earned_rewards(stage: Stage) -> None:
    """Periods that had ended have final ranks and rewards; periods that were cut short have only final ranks."""

    async def work(laurels: Laurels) -> None:
        rewards = (Reward("cup", 1, ranks=Between(1, 1), windows=("daily",)),)
        await create(laurels, rewards=rewards, grace_s=600)
        await submit(laurels, "ada", 1)
        over = current(laurels, stage)
        stage.clock.now = (held(laurels).period_named(over).end or 0) + SECOND_US  # type: ignore[union-attr]
        await submit(laurels, "bob", 2)
        cut_short = current(laurels, stage)
        await laurels.boards.change(held(laurels), {}, Status.ARCHIVED)
        for _ in range(3):
            stage.clock.now += DAY
            await laurels.jobs.run_due()
        assert held(laurels).periods == ()
        assert await top(laurels) == [("bob", 2)]
        assert await top(laurels, window="all") == [("bob", 2), ("ada", 1)]
        assert (await top(laurels, period=over), await top(laurels, period=cut_short)) == ([("ada", 1)], [("bob", 2)])
        granted = [await laurels.seasons.rewards_of_user([held(laurels)], user, None, 9) for user in ("ada", "bob")]
        assert [[each.period.name for each in some] for some in granted] == [[over], []]

    run(stage, work)


def test_buffer_flush_does_not_bring_back_a_removed_user(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        board = await create(laurels, rule=Rule.BEST, capacity=3, flush_ms=60_000, windows=(ALL_TIME,))
        await submit(laurels, "cheat", 9999)
        await laurels.updater.buffers.flush()
        assert await top(laurels) == [("cheat", 9999)]
        await laurels.submissions.remove_user(ADMIN, board, "cheat", None)
        await laurels.submissions.submit_many(held(laurels), [Submission(f"u{n:02}", 100 + n) for n in range(40)])
        await submit(laurels, "cheat", 1)
        await laurels.updater.buffers.flush()
        assert await top(laurels) == [("u39", 139), ("u38", 138), ("u37", 137)]
        assert await differences(laurels) == []

    run(stage, work, repair_interval_ms=600_000)


def test_freeze_waits_when_the_grace_time_was_lengthened(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels)
        await submit(laurels, "ada", 1)
        day = current(laurels, stage)
        end = held(laurels).period_named(day).end or 0  # type: ignore[union-attr]
        stage.clock.now = end + 61 * SECOND_US
        board, period = held(laurels), held(laurels).period_named(day)
        assert period is not None
        await laurels.boards.change(board, {"grace_s": 3600})
        freezer = laurels.freezer
        assert await freezer.freeze(board, period) is None
        await submit(laurels, "ada", 1, at=end - 1)
        assert await top(laurels, period=day) == [("ada", 2)]

    run(stage, work)


def test_pruned_event_is_refused_after_retention_is_lengthened(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, keep_events_days=1, windows=(ALL_TIME,))
        event = Submission("ada", 5, at=stage.clock.now, event_id="once")
        await laurels.submissions.submit(held(laurels), event)
        stage.clock.now += 2 * DAY
        await laurels.jobs.run_due()
        for days in (30, None):
            await laurels.boards.change(held(laurels), {"keep_events_days": days})
            with pytest.raises(Invalid) as caught:
                await laurels.submissions.submit(held(laurels), event)
            assert caught.value.code == "timestamp_out_of_range"
        assert await top(laurels) == [("ada", 5)]

    run(stage, work)


def test_partly_pruned_period_is_reported_as_pruned(stage: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, keep_periods_days=5)
        await laurels.submissions.submit_many(held(laurels), [Submission(f"u{n}", n) for n in range(30)])
        day = current(laurels, stage)
        for _ in range(3):
            stage.clock.now += DAY
            await laurels.jobs.run_due()
        assert len(await top(laurels, period=day)) == 30
        period = await laurels.seasons.period(held(laurels), None, day)
        assert await laurels.ledger.periods.prune_finals(period.id, 10) == 10
        # This server has not learned of it yet.
        board, chosen, reads = held(laurels), Selection(period=day), laurels.reads
        for read in (
            reads.top(board, chosen, 0, 100),
            reads.rank(board, chosen, "u1"),
            reads.around(board, chosen, "u1", 1, 1),
            reads.ranks(board, chosen, ["u1"]),
            reads.distribution(board, chosen, 5),
        ):
            with pytest.raises(NotFound) as caught:
                await read
            assert caught.value.code == "period_pruned"
        # The next run prunes the rest.
        left = await laurels.ledger.periods.prunable_periods(board.id, 0)
        assert [each.name for each in left] == [day]

    run(stage, work)


def test_past_periods_do_not_stay_in_memory(shared: Stage) -> None:
    async def work(laurels: Laurels) -> None:
        await create(laurels, windows=(Window("hour", cron="0 * * * *"),), flush_ms=1)
        for _ in range(12):
            await submit(laurels, "ada", 1)
            stage_now = shared.clock.now
            await asyncio.sleep(0.02)
            shared.clock.now = stage_now + HOUR
            await laurels.jobs.run_due()
        live = sum(len(board.periods) for board in laurels.boards.all())
        index: Any = laurels.index
        # A read may still ask for a ranking that is being dropped.
        assert index.known_rankings <= live + 3
        await until_so(lambda: not laurels.updater.buffers.is_flushing, "the last flush")
        assert laurels.repairer.running_repairs <= live

    run(shared, work, repair_interval_ms=100)


def test_missed_minute_periods_are_not_created_after_a_week_of_downtime(stage: Stage) -> None:
    """Periods that can no longer get scores are not created afterwards."""

    async def play() -> None:
        async with stage.running() as laurels:
            await create(laurels, windows=(Window("minute", cron="* * * * *"),))
            await submit(laurels, "ada", 1)
        stage.clock.now += 7 * DAY
        async with stage.running() as laurels:
            answer = await submit(laurels, "ada", 2)
            assert len(answer.counted) == 1
            await laurels.jobs.run_due()
            periods = await laurels.seasons.page(held(laurels), None, None, 1000)
            assert len(periods) < 50
            assert await top(laurels) == [("ada", 2)]
            assert await differences(laurels) == []

    asyncio.run(play())
