"""Periodic jobs run on one server at a time, also after a server has died or missed a change."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.rewards import Between, Reward
from laurels.core.scores import Rule, Standing
from laurels.core.windows import ALL_TIME, Window
from laurels.errors import TooMany, Unavailable
from laurels.ports import Role, Row
from laurels.service.boards.caller import Caller
from laurels.service.index import inspections
from laurels.service.index.verify import Checked, verify_board
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Submission
from support.services import Stage, differences
from support.waiting import until_so

DAY = 86_400 * SECOND_US
ADMIN = Caller(Role.ADMIN, None, "test")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage("shared", tmp_path)


async def create(laurels: Laurels, **fields: Any) -> Board:
    fields = {"windows": (Window("daily"), ALL_TIME), "rule": Rule.BEST} | fields
    return await laurels.boards.create(Board(id=0, uuid="b", pod_id="default", name="B", created_at=0, **fields), None)


def held(laurels: Laurels) -> Board:
    return laurels.boards.to_read(ADMIN, "b")


async def top(laurels: Laurels, **selection: Any) -> list[tuple[str, float]]:
    page = (await laurels.reads.top(held(laurels), Selection(**selection), 0, 100)).value
    return [(place.user_id, place.score) for place in page.entries]


def count_finishes(laurels: Laurels) -> list[bool]:
    """Return a list that collects the result of each attempt of the server to finish a freeze."""
    outcomes: list[bool] = []
    seasons = laurels.ledger.periods
    finish = seasons.finish_freeze

    async def counted(*arguments: Any) -> bool:
        outcomes.append(await finish(*arguments))
        return outcomes[-1]

    seasons.finish_freeze = counted  # type: ignore[method-assign,assignment]
    return outcomes


def test_concurrent_servers_freeze_a_period_once(stage: Stage) -> None:
    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(stage.running(jobs_lease_ms=1)) for _ in range(4)]
            rewards = (Reward("prize", 1, ranks=Between(1, 100)),)
            await create(servers[0], rewards=rewards)
            await asyncio.gather(*(server.boards.reload() for server in servers))
            await servers[0].submissions.submit_many(held(servers[0]), [Submission(f"u{n}", n) for n in range(50)])
            name = held(servers[0]).current_period("daily", stage.clock.now)
            assert name is not None
            finished = [count_finishes(server) for server in servers]
            # The lease expires at once, so any server may run the job.
            stage.clock.now += DAY
            await asyncio.gather(*(server.jobs.run_due() for server in servers))
            for server in servers:
                await server.boards.reload()
                assert await top(server, period=name.name) == [(f"u{n}", n) for n in range(49, -1, -1)]
                assert held(server).period_named(name.name) is None
            granted = await servers[0].seasons.rewards_of_period(
                held(servers[0]), await servers[0].seasons.period(held(servers[0]), None, name.name), (0, ""), 1000
            )
            assert len(granted) == 50
            assert sum(outcome for outcomes in finished for outcome in outcomes) == 1

    asyncio.run(run())


def test_job_lease_of_a_dead_server_expires_and_another_runs_the_job(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as alive, stage.running() as dead:
            book = alive.ledger.jobs
            assert await book.take("periods", "the dead one", 600_000, stage.clock.now)
            await create(alive)
            await dead.boards.reload()
            stage.clock.now += DAY
            await alive.jobs.run_due()
            # Another server holds the lease.
            assert held(alive).open_periods[0].state == "open"
            assert {run.name: run.owner for run in await alive.jobs.runs()}["periods"] == "the dead one"
            # The lease of the dead server expires.
            assert await book.take("periods", "the dead one", 1, stage.clock.now)
            await asyncio.sleep(0.1)
            await alive.jobs.run_due()
            (last,) = [run for run in await alive.jobs.runs() if run.name == "periods"]
            assert (last.owner, last.error) == (None, None)
            assert json.loads(last.result or "{}")["frozen"] == 1

    asyncio.run(run())


def test_lease_is_renewed_while_the_job_runs(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running(jobs_lease_ms=3000) as busy, stage.running() as other:
            await create(busy)
            await other.boards.reload()
            seasons = busy.ledger.periods
            finish = seasons.finish_freeze
            begun, go_on = asyncio.Event(), asyncio.Event()
            taken: list[float] = []
            take = busy.ledger.jobs.take

            async def spied(name: str, *arguments: Any) -> bool:
                if name == "periods":
                    taken.append(time.monotonic())
                return await take(name, *arguments)

            busy.ledger.jobs.take = spied  # type: ignore[method-assign,assignment]

            async def slowly(*arguments: Any) -> bool:
                begun.set()
                await go_on.wait()
                return await finish(*arguments)

            seasons.finish_freeze = slowly  # type: ignore[method-assign,assignment]
            stage.clock.now += DAY
            working = asyncio.create_task(busy.jobs.run_due())
            await begun.wait()
            # Wait longer than the first lease.
            await until_so(lambda: taken[-1] > taken[0] + 3.5, "renewals")
            await other.jobs.run_due()
            # The other server does not get the lease.
            runs = {run.name: (run.owner, run.runs) for run in await other.jobs.runs()}
            assert runs["periods"] == (busy.jobs.owner, 0)
            go_on.set()
            await working
            runs = {run.name: (run.owner, run.runs) for run in await other.jobs.runs()}
            assert runs["periods"] == (None, 1)

    asyncio.run(run())


def test_server_that_missed_a_freeze_returns_correct_results(stage: Stage) -> None:
    """It still treats the period as open when the ranking and the rows are gone."""

    async def run() -> None:
        async with stage.running() as first, stage.running() as late:
            await create(first)
            await late.boards.reload()
            await first.submissions.submit_many(held(first), [Submission("ada", 1), Submission("bob", 2)])
            period = held(late).current_period("daily", stage.clock.now)
            assert period is not None
            # The second server no longer learns of changes.
            late.registry.reloads = []
            stale = held(late)
            stage.clock.now += DAY
            await first.jobs.run_due()
            stage.clock.now += DAY // 2
            await first.jobs.run_due()
            assert (
                json.loads(next(r.result or "" for r in await first.jobs.runs() if r.name == "periods"))["swept"] == 1
            )
            assert held(late) is stale
            assert stale.period_named(period.name) is not None
            assert await top(late, period=period.name) == [("bob", 2), ("ada", 1)]
            # Its writes are counted in the right period.
            late.boards.hold(stale)
            answer = await late.submissions.submit(stale, Submission("cy", 3))
            assert period.name not in {each.period.name for each in answer.counted}
            assert await top(first) == [("cy", 3)]

    asyncio.run(run())


def test_periods_are_frozen_in_order_after_days_of_downtime(tmp_path: Path) -> None:
    for kind in ("embedded", "shared"):
        stage = Stage(kind, tmp_path / kind)
        (tmp_path / kind).mkdir()

        async def run(stage: Stage = stage) -> None:
            async with stage.running() as laurels:
                await create(laurels, windows=(Window("hour", cron="0 * * * *"), Window("daily")))
                await laurels.submissions.submit(held(laurels), Submission("ada", 1))
            stage.clock.now += 5 * DAY + 1
            order: list[int | None] = []
            async with stage.running() as laurels:
                # A score finds its period at once, before the jobs have caught up.
                answer = await laurels.submissions.submit(held(laurels), Submission("bob", 2))
                assert (len(answer.counted), answer.late) == (2, ())
                seasons = laurels.ledger.periods
                finish = seasons.finish_freeze

                async def noted(*arguments: Any) -> bool:
                    order.append(arguments[1].end)
                    return await finish(*arguments)

                seasons.finish_freeze = noted  # type: ignore[method-assign,assignment]
                await laurels.jobs.run_due()
                await laurels.jobs.run_due()
                pages = [await laurels.seasons.page(held(laurels), window, None, 1000) for window in ("hour", "daily")]
                # The last hour has ended, but its grace time has not.
                assert [sum(period.is_final for period in page) for page in pages] == [5 * 24 - 1, 5]
                # The jobs may have frozen some periods before `finish_freeze` was replaced.
                assert len(order) > 50
                assert order == sorted(order, key=lambda end: end or 0)
                # The current and the next period of each window, and the hour in its grace time.
                assert len(held(laurels).periods) == 5

        asyncio.run(run())


@pytest.mark.parametrize("kind", ["embedded", "shared"])
def test_daily_check_rebuilds_rankings_that_differ(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        stage = Stage(kind, tmp_path)
        # Midnight.
        stage.clock.now += -stage.clock.now % DAY
        async with stage.running(check_at="03:00") as laurels:
            board = await create(laurels, rule=Rule.INCREMENT, windows=(ALL_TIME,))
            await laurels.submissions.submit_many(held(laurels), [Submission(f"u{n}", n) for n in range(5)])
            right = await top(laurels)

            async def reports(passed_us: int) -> dict[str, Any] | None:
                """Let time pass, run what is due, and return the report of the check if it ran."""
                stage.clock.now += passed_us
                before = [each.runs for each in await laurels.jobs.runs() if each.name == "check"]
                await laurels.jobs.run_due()
                found = [each for each in await laurels.jobs.runs() if each.name == "check"]
                if [each.runs for each in found] == before:
                    return None
                assert found[0].error is None
                return dict(json.loads(found[0].result or "{}"))

            assert await reports(0) is None
            assert await reports(DAY // 8 - 1) is None
            clean = {"users": 5, "differences": 0, "rebuilt": 0, "boards": []}
            assert await reports(1) == clean
            assert await reports(DAY // 2) is None

            async def wrong() -> AsyncIterator[list[Row]]:
                (period,) = board.periods
                rows = [row async for chunk in laurels.ledger.rows(period.id) for row in chunk]
                yield [replace(row, standing=Standing(99.0, stage.clock.now)) for row in rows[:1]] + rows[1:3]

            ranking = board.ranking(board.periods[0].id)
            await laurels.index.load(ranking, wrong(), await laurels.ledger.position())
            assert await top(laurels) != right
            report = await reports(DAY // 2)
            assert report is not None
            assert (report["users"], report["rebuilt"], len(report["boards"])) == (5, 1, 1)
            assert report["boards"][0]["board"] == "b"
            assert {"u0", "u3", "u4"} <= set(report["boards"][0]["users"])
            assert report["boards"][0]["ofRows"] == 0
            assert await top(laurels) == right
            assert await reports(DAY) == clean

    asyncio.run(run())


def test_daily_check_stops_for_a_verification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with Stage("embedded", tmp_path).running(check_at="03:00") as laurels:
            await create(laurels)
            # The check pauses for ever after its first users, until it is stopped.
            pause, paused = asyncio.Event(), asyncio.Event()

            async def slowly(*arguments: Any) -> AsyncIterator[Checked]:
                async for checked in verify_board(*arguments):
                    paused.set()
                    if arguments[-1] is not None:
                        await pause.wait()
                    yield checked

            monkeypatch.setattr(inspections, "verify_board", slowly)
            await laurels.submissions.submit_many(held(laurels), [Submission("ada", 5)])
            checking = asyncio.create_task(laurels.inspections.check())
            await paused.wait()
            verifying = asyncio.create_task(differences(laurels))
            await asyncio.sleep(0.05)
            assert not verifying.done()
            pause.set()
            assert await verifying == []
            with pytest.raises(TooMany, match="meanwhile"):
                await checking
            # The next check runs as usual.
            assert (await laurels.inspections.check())["differences"] == 0

    asyncio.run(run())


def test_daily_check_reports_boards_that_it_could_not_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with Stage("embedded", tmp_path).running(check_at="03:00") as laurels:
            await create(laurels)
            await laurels.submissions.submit_many(held(laurels), [Submission("ada", 5)])
            default = laurels.boards.all()[0]

            async def failing(ledger: Any, index: Any, board_id: int, *rest: Any) -> AsyncIterator[Checked]:
                if board_id == default.id:
                    raise Unavailable("catching_up", "This ranking is gone.")
                async for checked in verify_board(ledger, index, board_id, *rest):
                    yield checked

            monkeypatch.setattr(inspections, "verify_board", failing)
            monkeypatch.setattr(inspections, "AGAIN_AFTER_S", 0.01)
            report = await laurels.inspections.check()
            assert report["unchecked"] == {"default": "This ranking is gone."}
            # The board behind it was compared, once.
            assert report["users"] == 1

            tries = 0

            async def failing_once(ledger: Any, index: Any, board_id: int, *rest: Any) -> AsyncIterator[Checked]:
                nonlocal tries
                tries += board_id == default.id
                if board_id == default.id and tries == 1:
                    raise Unavailable("catching_up", "This ranking is being loaded.")
                async for checked in verify_board(ledger, index, board_id, *rest):
                    yield checked

            monkeypatch.setattr(inspections, "verify_board", failing_once)
            assert "unchecked" not in await laurels.inspections.check()
            assert tries == 2

    asyncio.run(run())


def test_failed_daily_check_runs_again_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = True

    async def check(_self: inspections.Inspections) -> dict[str, Any]:
        if fails:
            raise Unavailable("ledger_unavailable", "The ledger is away.")
        return {"users": 0}

    monkeypatch.setattr(inspections.Inspections, "check", check)

    async def run() -> None:
        nonlocal fails
        stage = Stage("embedded", tmp_path)
        async with stage.running(check_at="03:00") as laurels:
            stage.clock.now += DAY
            runs = []
            for _ in range(8):
                await laurels.jobs.run_due()
                run = next(each for each in await laurels.jobs.runs() if each.name == "check")
                runs.append((run.runs, run.error is not None))
                fails = len(runs) < 4
                stage.clock.now += 600 * SECOND_US
            # Every 20 minutes, the first interval of ten above 15, until it succeeds; then not before the next day.
            assert runs == [*[(1, True)] * 2, *[(2, True)] * 2, *[(3, False)] * 4]

    asyncio.run(run())


def test_daily_check_compares_every_user_of_boards_with_too_many_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspections, "CHECKED_KEYS", 2)

    async def run() -> None:
        async with Stage("embedded", tmp_path).running(check_at="03:00") as laurels:
            board = await create(laurels, windows=(ALL_TIME,))
            await laurels.submissions.submit_many(held(laurels), [Submission(f"u{n}", n) for n in range(5)])
            right = await top(laurels)
            assert (await laurels.inspections.check())["differences"] == 0
            (period,) = board.periods
            rows = [row async for chunk in laurels.ledger.rows(period.id) for row in chunk]

            async def wrong() -> AsyncIterator[list[Row]]:
                yield [replace(rows[0], standing=Standing(99.0, stage_now)), *rows[1:]]

            stage_now = laurels.clock.now_us()
            await laurels.index.load(board.ranking(period.id), wrong(), await laurels.ledger.position())
            report = await laurels.inspections.check()
            assert (report["boards"][0]["users"], report["rebuilt"]) == (["u0"], 1)
            assert await top(laurels) == right

    asyncio.run(run())
