"""Who does what is done once for all servers, and what a dead or a late one leaves behind."""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.rewards import Between, Reward
from laurels.core.scores import Rule
from laurels.core.windows import ALL_TIME, Window
from laurels.ports import Role
from laurels.service.access import Caller
from laurels.service.laurels import Laurels
from laurels.service.reads import Selection
from laurels.service.submit import Submission
from support.services import Stage
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
    return [(place.user_id, place.score) for place in page.places]


def count_finishes(laurels: Laurels) -> list[bool]:
    """What each try of a server to make a period final comes to."""
    outcomes: list[bool] = []
    seasons = laurels._ledger.seasons
    finish = seasons.finish_freeze

    async def counted(*arguments: Any) -> bool:
        outcomes.append(await finish(*arguments))
        return outcomes[-1]

    seasons.finish_freeze = counted  # type: ignore[method-assign,assignment]
    return outcomes


def test_many_servers_at_once_freeze_a_period_once(stage: Stage) -> None:
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
            # With a lease that is over at once, any of them may do it.
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


def test_one_server_does_it_and_a_dead_one_can_not_keep_it(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as alive, stage.running() as dead:
            book = alive._ledger.jobs
            assert await book.take("periods", "the dead one", 600_000, stage.clock.now)
            await create(alive)
            await dead.boards.reload()
            stage.clock.now += DAY
            await alive.jobs.run_due()
            # Somebody else has it.
            assert held(alive).open_periods[0].state == "open"
            assert {run.name: run.owner for run in await alive.jobs.runs()}["periods"] == "the dead one"
            # Its lease ends.
            assert await book.take("periods", "the dead one", 1, stage.clock.now)
            await asyncio.sleep(0.1)
            await alive.jobs.run_due()
            (last,) = [run for run in await alive.jobs.runs() if run.name == "periods"]
            assert (last.owner, last.error) == (None, None)
            assert json.loads(last.result or "{}")["frozen"] == 1

    asyncio.run(run())


def test_a_lease_is_renewed_while_the_work_lasts(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running(jobs_lease_ms=3000) as busy, stage.running() as other:
            await create(busy)
            await other.boards.reload()
            seasons = busy._ledger.seasons
            finish = seasons.finish_freeze
            begun, go_on = asyncio.Event(), asyncio.Event()
            taken: list[float] = []
            take = busy._ledger.jobs.take

            async def spied(name: str, *arguments: Any) -> bool:
                if name == "periods":
                    taken.append(time.monotonic())
                return await take(name, *arguments)

            busy._ledger.jobs.take = spied  # type: ignore[method-assign,assignment]

            async def slowly(*arguments: Any) -> bool:
                begun.set()
                await go_on.wait()
                return await finish(*arguments)

            seasons.finish_freeze = slowly  # type: ignore[method-assign,assignment]
            stage.clock.now += DAY
            working = asyncio.create_task(busy.jobs.run_due())
            await begun.wait()
            # Longer than the lease that was taken first.
            await until_so(lambda: taken[-1] > taken[0] + 3.5, "renewals")
            await other.jobs.run_due()
            # The other one may not even try.
            runs = {run.name: (run.owner, run.runs) for run in await other.jobs.runs()}
            assert runs["periods"] == (busy.jobs._owner, 0)
            go_on.set()
            await working
            runs = {run.name: (run.owner, run.runs) for run in await other.jobs.runs()}
            assert runs["periods"] == (None, 1)

    asyncio.run(run())


def test_a_server_that_has_not_heard_of_the_freeze_shows_what_is_right(stage: Stage) -> None:
    """It still thinks that the period goes on, when its ranking and its rows are gone."""

    async def run() -> None:
        async with stage.running() as first, stage.running() as late:
            await create(first)
            await late.boards.reload()
            await first.submissions.submit_many(held(first), [Submission("ada", 1), Submission("bob", 2)])
            period = held(late).current_period("daily", stage.clock.now)
            assert period is not None
            # The second one hears nothing any more.
            late._registry._reloads = []
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
            # And what it writes is counted where it belongs.
            late.boards._hold(stale)
            answer = await late.submissions.submit(stale, Submission("cy", 3))
            assert period.name not in {each.period.name for each in answer.counted}
            assert await top(first) == [("cy", 3)]

    asyncio.run(run())


def test_after_a_downtime_of_days_periods_are_frozen_in_order(tmp_path: Path) -> None:
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
                # A score finds its period at once, before anybody has caught up.
                answer = await laurels.submissions.submit(held(laurels), Submission("bob", 2))
                assert (len(answer.counted), answer.late) == (2, ())
                seasons = laurels._ledger.seasons
                finish = seasons.finish_freeze

                async def noted(*arguments: Any) -> bool:
                    order.append(arguments[1].end)
                    return await finish(*arguments)

                seasons.finish_freeze = noted  # type: ignore[method-assign,assignment]
                await laurels.jobs.run_due()
                await laurels.jobs.run_due()
                pages = [await laurels.seasons.page(held(laurels), window, None, 1000) for window in ("hour", "daily")]
                # The last hour is over, and its grace time is not.
                assert [sum(period.is_final for period in page) for page in pages] == [5 * 24 - 1, 5]
                # Some may have been frozen before it was looked at.
                assert len(order) > 50
                assert order == sorted(order, key=lambda end: end or 0)
                # Of each window the present one and the next, and the hour that is in its grace time.
                assert len(held(laurels).periods) == 5

        asyncio.run(run())
