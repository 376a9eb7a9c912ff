"""Split boards: writes without ranks, moderation, seasons, and a change of the number of shards under load."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from laurels.adapters.redis import RedisIndex
from laurels.core.board import Board, Ranking, RankStyle
from laurels.core.order import Ties
from laurels.core.scores import RankState, Rule
from laurels.core.windows import ALL_TIME
from laurels.errors import Conflict, LaurelsError
from laurels.ports import IndexHealth, RanksWanted, Role, Row
from laurels.service.boards.caller import Caller
from laurels.service.index import repairer, resharder
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Accepted, Submission
from support.services import Stage, differences
from support.waiting import until_async

SECOND_US = 1_000_000
USERS = [f"user-{number}" for number in range(40)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage("shared", tmp_path)


async def create(laurels: Laurels, **fields: Any) -> Board:
    defaults: dict[str, Any] = {"rule": Rule.INCREMENT, "shards": 3, "windows": (ALL_TIME,)}
    board = Board(id=0, uuid="split", pod_id="default", name="Split", created_at=0, **(defaults | fields))
    return await laurels.boards.create(board, None)


async def top(laurels: Laurels, limit: int = 1000) -> dict[str, float]:
    board = laurels.boards.of_pod("default", "split")
    shown = await laurels.reads.top(board, Selection(), 0, limit)
    return {entry.user_id: entry.score for entry in shown.value.entries}


async def step(stage: Stage, *services: Laurels) -> None:
    """Let time pass, and run the jobs that are due then."""
    stage.clock.now += 6 * SECOND_US
    for laurels in services:
        await laurels.registry.refresh()
        await laurels.jobs.run_due()


async def reshard(stage: Stage, services: list[Laurels], shards: int) -> None:
    """Change the number of shards, and wait until no ranking with the old number is left."""
    first = services[0]
    board = first.boards.of_pod("default", "split")
    await first.boards.change(board, {"shards": shards})

    async def is_done() -> bool:
        await step(stage, *services)
        boards = [laurels.boards.of_pod("default", "split") for laurels in services]
        return all((each.shards, each.reshard) == (shards, None) for each in boards)

    await until_async(is_done, f"{shards} shards")


async def layouts(laurels: Laurels, board: Board) -> set[int]:
    """Return the numbers of parts with which the index holds rankings of the board's periods."""
    periods = {period.id for period in board.periods}
    return {parts async for some in laurels.index.built() for period, parts in some if period in periods}


@pytest.fixture(autouse=True)
def drop_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resharder, "DROP_AFTER_US", 50_000)


def test_split_board_ranks_on_write_only_if_asked(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            board = await create(laurels, ties=Ties.SHARED)
            await laurels.submissions.submit_many(board, [Submission(user, 10) for user in USERS])
            quiet = await laurels.submissions.submit(board, Submission("user-3", 5), RanksWanted.NONE)
            assert (quiet.rank, quiet.previous_rank, quiet.rank_state) == (None, None, RankState.NOT_REQUESTED)
            asked = await laurels.submissions.submit(board, Submission("user-4", 5))
            # Two users are ahead with 15 points, and the others share the third rank.
            assert (asked.rank, asked.previous_rank, asked.rank_state) == (1, 2, RankState.RANKED)
            many = await laurels.submissions.submit_many(board, [Submission("user-5", 7), Submission("user-6", -1)])
            assert [each.rank for each in many if isinstance(each, Accepted)] == [1, len(USERS)]

    asyncio.run(run())


def test_writes_in_one_batch_get_the_ranks_that_each_asked_for(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            board = await create(laurels)
            loud, quiet = await asyncio.gather(
                laurels.submissions.submit(board, Submission("a", 2)),
                laurels.submissions.submit(board, Submission("b", 1), RanksWanted.NONE),
            )
            assert (loud.rank, loud.rank_state) == (1, RankState.RANKED)
            assert (quiet.rank, quiet.rank_state) == (None, RankState.NOT_REQUESTED)

    asyncio.run(run())


def test_moderation_and_seasons_work_on_split_boards(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            board = await create(laurels, rule=Rule.BEST, capacity=20, flush_ms=20)
            await laurels.submissions.submit_many(
                board, [Submission(user, number) for number, user in enumerate(USERS)]
            )
            await laurels.updater.buffers.flush()
            assert list(await top(laurels)) == USERS[:-21:-1]
            outside = (await laurels.reads.rank(board, Selection(), "user-0")).value
            assert (outside.is_ranked, outside.better, outside.ranked_users) == (False, len(USERS) - 1, 20)
            admin = Caller(Role.ADMIN, None, "admin")
            await laurels.submissions.remove_user(admin, board, USERS[-1], None)
            assert next(iter(await top(laurels))) == USERS[-2]
            assert await differences(laurels) == []
            await laurels.boards.change(laurels.boards.by_id(board.id), {"end_at": stage.clock.now + SECOND_US})
            stage.clock.now += 120 * SECOND_US
            await laurels.jobs.run_due()
            results = await laurels.reads.top(laurels.boards.by_id(board.id), Selection(), 0, 3)
            assert [entry.user_id for entry in results.value.entries] == USERS[-2:-5:-1]
            stage.clock.now += 120 * SECOND_US
            await laurels.jobs.run_due()
            # The final ranks have replaced all parts.
            assert await layouts(laurels, board) == set()

    asyncio.run(run())


def test_board_grows_and_shrinks_while_it_is_written_and_read(stage: Stage) -> None:
    seed = random.randrange(10**6)
    print(f"seed: {seed}")
    rng = random.Random(seed)

    async def run() -> None:
        async with stage.running() as first, stage.running() as second:
            services = [first, second]
            await create(first, shards=1)
            await second.registry.refresh()
            totals = dict.fromkeys(USERS, 0)
            stopped = asyncio.Event()

            async def write(laurels: Laurels) -> None:
                while not stopped.is_set():
                    user, points = rng.choice(USERS), rng.randrange(1, 9)
                    board = laurels.boards.of_pod("default", "split")
                    await laurels.submissions.submit(board, Submission(user, points), RanksWanted.NONE)
                    totals[user] += points

            async def read(laurels: Laurels) -> None:
                while not stopped.is_set():
                    acknowledged = dict(totals)
                    shown = await top(laurels)
                    # What was acknowledged before is there, whichever parts the service reads.
                    assert all(shown.get(user, 0) >= score for user, score in acknowledged.items())
                    await asyncio.sleep(0.01)

            async with workers(*(write(each) for each in services * 2), *(read(each) for each in services)) as tasks:
                for shards in (4, 16, 1, 2):
                    await reshard(stage, services, shards)
                stopped.set()
                await asyncio.gather(*tasks)
            board = first.boards.of_pod("default", "split")
            expected = {user: score for user, score in totals.items() if score}
            for laurels in services:
                assert await top(laurels) == expected
                assert await differences(laurels) == []
            assert await layouts(first, board) == {2}

    asyncio.run(run())


def test_new_periods_moves_and_erasures_reach_both_rankings(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            board = await create(laurels, segments=("global", "region"), windows=(ALL_TIME,))
            admin = Caller(Role.ADMIN, None, "admin")
            await laurels.submissions.submit_many(
                board, [Submission(user, 1, region="eu" if number % 2 else "us") for number, user in enumerate(USERS)]
            )
            board = await laurels.boards.change(board, {"shards": 5})
            assert board.reshard is not None

            async def is_built() -> bool:
                progress = await laurels.resharder.progress(laurels.boards.by_id(board.id))
                return progress is not None and progress.ready == progress.parts == 5

            await until_async(is_built, "the new parts")
            await laurels.submissions.submit(board, Submission("user-1", 5, region="us"))
            await laurels.submissions.remove_user(admin, board, "user-2", None)
            await reshard(stage, [laurels], 5)
            board = laurels.boards.by_id(board.id)
            us = await laurels.reads.top(board, Selection(segment="region:us"), 0, 100)
            assert us.value.entries[0].user_id == "user-1"
            assert us.value.total == len(USERS) // 2
            assert await differences(laurels) == []

    asyncio.run(run())


def test_change_of_shards_can_be_repeated_and_cancelled_and_refuses_another_one(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            board = await create(laurels)
            board = await laurels.boards.change(board, {"shards": 8})
            again = await laurels.boards.change(board, {"shards": 8})
            assert again.reshard == board.reshard
            with pytest.raises(Conflict) as caught:
                await laurels.boards.change(board, {"shards": 4})
            assert caught.value.code == "reshard_running"
            cancelled = await laurels.boards.change(board, {"shards": 3})
            assert cancelled.reshard is not None
            assert cancelled.reshard.switched_at is not None
            stage.clock.now += 20 * SECOND_US
            await laurels.jobs.run_due()
            # Writes no longer reach the other rankings, which are dropped next: nothing else may begin meanwhile.
            for shards in (3, 8):
                with pytest.raises(Conflict, match="being dropped"):
                    await laurels.boards.change(laurels.boards.by_id(board.id), {"shards": shards})
            stage.clock.now += 20 * SECOND_US
            await laurels.jobs.run_due()
            board = laurels.boards.by_id(board.id)
            assert (board.shards, board.reshard) == (3, None)
            assert await layouts(laurels, board) == {3}

    asyncio.run(run())


def test_lost_part_is_repaired_alone_and_reads_never_leave_it_out(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running(repair_interval_ms=100) as laurels:
            board = await create(laurels)
            await laurels.submissions.submit_many(
                board, [Submission(user, number) for number, user in enumerate(USERS)]
            )
            ranking = board.ranking(board.periods[0].id)
            (before,) = await laurels.index.states([ranking])
            assert isinstance(laurels.index, RedisIndex)
            await laurels.index.scripts.run(ranking, 1, "drop")

            async def is_whole() -> bool:
                shown = await laurels.reads.top(board, Selection(), 0, 100)
                # From the ledger, until the part is there again.
                assert len(shown.value.entries) == len(USERS)
                return not shown.degraded

            await until_async(is_whole, "a complete ranking")
            (after,) = await laurels.index.states([ranking])
            assert {state.health for state in after} == {IndexHealth.READY}
            changed = [old.part for old, new in zip(before, after, strict=True) if old.generation != new.generation]
            assert changed == [1]
            page = await laurels.index.top(ranking, 0, 3, RankStyle.ORDINAL)
            assert [entry.user_id for entry in page.entries] == USERS[:-4:-1]

    asyncio.run(run())


def test_rank_of_a_write_is_the_one_among_the_other_users(stage: Stage) -> None:
    """The user's own later writes, on any server, do not count as users who are ahead."""

    async def run() -> None:
        async with stage.running() as first, stage.running() as second:
            board = await create(first, shards=16)
            await second.registry.refresh()
            await first.submissions.submit_many(board, [Submission("rival", 10**9)])
            ranks: set[tuple[int | None, int | None]] = set()

            async def write(laurels: Laurels) -> None:
                for _ in range(60):
                    done = await laurels.submissions.submit(board, Submission("ada", 1))
                    if done.rank_state is RankState.RANKED:
                        ranks.add((done.previous_rank, done.rank))

            await asyncio.gather(*(write(each) for each in [first, second] * 3))
            assert ranks <= {(None, 2), (2, 2)}

    asyncio.run(run())


def test_build_of_new_parts_converges_and_keeps_nobody_waiting(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """More changes than a stale ranking would catch up arrive during the build, and the live ranking loses a part."""
    monkeypatch.setattr(repairer, "CATCH_UP_EVENTS", 20)

    async def run() -> None:
        async with stage.running(repair_interval_ms=100) as laurels:
            board = await create(laurels)
            await laurels.submissions.submit_many(board, [Submission(user, 1) for user in USERS])
            release = asyncio.Event()
            builds: list[int] = []
            load = laurels.index.load

            async def slow_load(ranking: Ranking, rows: Any, *rest: Any) -> None:
                builds.append(ranking.parts)

                async def held() -> AsyncIterator[list[Row]]:
                    async for chunk in rows:
                        yield chunk
                    if ranking.parts == 5:
                        await release.wait()

                await load(ranking, held(), *rest)

            monkeypatch.setattr(laurels.index, "load", slow_load)
            await laurels.boards.change(board, {"shards": 5})
            await until_async(_true_if(lambda: 5 in builds), "the build of the new parts")
            for _ in range(10):
                await laurels.submissions.submit_many(board, [Submission(user, 1) for user in USERS])
            # A part that reads use is lost: it is repaired although the other build takes long.
            assert isinstance(laurels.index, RedisIndex)
            ranking = board.ranking(board.periods[0].id)
            await laurels.index.scripts.run(ranking, 1, "drop")

            async def is_whole() -> bool:
                return not (await laurels.reads.top(board, Selection(), 0, 100)).degraded

            await until_async(is_whole, "the live ranking")
            assert not release.is_set()
            builds.clear()
            release.set()
            await reshard(stage, [laurels], 5)
            # Four rounds of changes later, nothing was built again, and no read was degraded.
            for _ in range(4):
                await laurels.submissions.submit_many(board, [Submission(user, 1) for user in USERS])
                assert not (await laurels.reads.top(laurels.boards.by_id(board.id), Selection(), 0, 100)).degraded
                await asyncio.sleep(0.2)
            assert builds == []
            assert await differences(laurels) == []

    asyncio.run(run())


def test_traces_of_erased_users_wait_for_builds(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting a user restarts a build, so a large board could never be built in a pod that often erases somebody."""

    async def run() -> None:
        async with stage.running(repair_interval_ms=100) as laurels:
            board = await create(laurels)
            await laurels.submissions.submit_many(board, [Submission(user, 1) for user in USERS])
            begun, release = asyncio.Event(), asyncio.Event()
            rows_of = laurels.ledger.rows

            async def slow_rows(period_id: int) -> AsyncIterator[list[Row]]:
                async for chunk in rows_of(period_id):
                    yield chunk
                begun.set()
                await release.wait()

            monkeypatch.setattr(laurels.ledger, "rows", slow_rows)
            await laurels.boards.change(board, {"shards": 5})
            await begun.wait()
            await laurels.erasures.erase(Caller(Role.ADMIN, None, "admin"), "default", USERS[0], None, None)
            stage.clock.now += 240 * SECOND_US
            assert await laurels.erasures.sweep() == 0
            release.set()
            await reshard(stage, [laurels], 5)
            assert await laurels.erasures.sweep() + len(await laurels.ledger.profiles.unswept_erasures(0)) <= 1
            assert not await laurels.erasures.is_unswept()
            assert USERS[0] not in await top(laurels)
            assert await differences(laurels) == []

    asyncio.run(run())


def _true_if(holds: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        return holds()

    return ready


def test_embedded_board_takes_any_number_of_shards_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with Stage("embedded", tmp_path).running() as laurels:
            board = await create(laurels, shards=16)
            ranked = await laurels.submissions.submit(board, Submission("a", 2))
            assert ranked.rank == 1
            board = await laurels.boards.change(board, {"shards": 4})
            assert (board.shards, board.reshard) == (4, None)
            assert await top(laurels) == {"a": 2}

    asyncio.run(run())


@contextlib.asynccontextmanager
async def workers(*works: Any) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield tasks
        for task in tasks:
            if task.done() and (error := task.exception()) is not None:
                raise error
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, LaurelsError):
                await task
