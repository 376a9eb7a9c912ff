"""The index equals the ledger or reports that it is catching up: at startup, after a fault, and in `verify`."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from laurels.adapters.memory_index import MemoryIndex
from laurels.core.board import Board, Ranking
from laurels.core.order import Order, Ties
from laurels.core.scores import RankState, Rule, Standing
from laurels.errors import TooMany, Unavailable
from laurels.ports import Applied, IndexState, Position, Role, Row
from laurels.service.boards.caller import Caller
from laurels.service.index.verify import Difference, Fault
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.submissions import Accepted, Submission
from support.services import differences, running


class FaultyIndex(MemoryIndex):
    """A memory index that fails in the middle of `apply` on demand."""

    failing = False

    async def apply(self, ranking: Ranking, rows: Sequence[Row], *rest: Any, **named: Any) -> Applied:
        if self.failing:
            await super().apply(ranking, rows[: len(rows) // 2], *rest, **named)
            raise ConnectionError("the index went away")
        return await super().apply(ranking, rows, *rest, **named)


async def fill(laurels: Laurels, count: int) -> None:
    (board,) = laurels.boards.all()
    await laurels.submissions.submit_many(board, [Submission(f"u{n}", n, event_id=f"e{n}") for n in range(count)])


def test_requests_are_refused_until_the_index_is_loaded(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as laurels:
            await fill(laurels, 12_000)
        async with running(tmp_path, load=False) as laurels:
            (board,) = laurels.boards.all()
            selection = Selection()
            for work in (
                laurels.reads.top(board, selection, 0, 10),
                laurels.reads.rank(board, selection, "u1"),
                laurels.reads.distribution(board, selection, 5),
                laurels.reads.scores_of_user([board], "u1"),
                laurels.submissions.submit(board, Submission("u1", 1)),
                laurels.submissions.remove_user(None, board, "u1", None),  # type: ignore[arg-type]
                differences(laurels),
            ):
                with pytest.raises(Unavailable) as caught:
                    await work
                assert (caught.value.code, caught.value.retry_after_s) == ("starting", 1)
            assert (await laurels.dependencies())["index"] == "loading"
            steps: list[tuple[int, int]] = []
            await laurels.load(lambda done, total: steps.append((done, total)))
            # Each user has a row for this month and one for all time.
            assert steps[0] == (0, 24_000)
            assert steps[-1] == (24_000, 24_000)
            assert len(steps) > 2
            assert (await laurels.reads.top(board, selection, 0, 1)).value.total == 12_000
            assert await differences(laurels) == []

    asyncio.run(run())


def test_failed_index_reports_catching_up_until_repaired(tmp_path: Path) -> None:
    async def run() -> None:
        index = FaultyIndex()
        async with running(tmp_path, index=index) as laurels:
            (board,) = laurels.boards.all()
            await fill(laurels, 10)
            index.failing = True
            answer = await laurels.submissions.submit(board, Submission("u1", 100))
            assert (answer.score, answer.rank, answer.rank_state) == (101, None, RankState.CATCHING_UP)
            with pytest.raises(Unavailable) as caught:
                await laurels.reads.top(board, Selection(), 0, 1)
            assert caught.value.code == "catching_up"
            index.failing = False
            for _ in range(200):
                await asyncio.sleep(0.01)
                try:
                    page = (await laurels.reads.top(board, Selection(), 0, 1)).value
                    break
                except Unavailable:
                    continue
            assert [(place.user_id, place.score) for place in page.entries] == [("u1", 101)]
            assert await differences(laurels) == []

    asyncio.run(run())


def test_verify_finds_every_kind_of_difference(tmp_path: Path) -> None:
    async def run() -> list[Difference]:
        async with running(tmp_path) as laurels:
            await fill(laurels, 2500)
            assert await differences(laurels) == []
            tampered = {"u7", "u8", "u9", "u10", "u13", "u14"}
            before = await laurels.ledger.rows_of_users(1, sorted(tampered))
            with closing(sqlite3.connect(tmp_path / "laurels.db")) as ledger:
                ledger.execute("UPDATE scores SET score = 9999 WHERE user_id = 'u7'")
                ledger.execute("DELETE FROM scores WHERE user_id = 'u8'")
                ledger.execute("DELETE FROM events WHERE user_id = 'u9'")
                ledger.execute("UPDATE scores SET total = '10.5' WHERE user_id = 'u10'")
                ledger.execute("UPDATE scores SET hidden = 1 WHERE user_id = 'u13'")
                ledger.execute("UPDATE scores SET segments = 'region:eu' WHERE user_id = 'u14'")
                ledger.commit()
            # The rankings of the monthly period.
            ranking = Ranking(1, "global", Order.DESC, Ties.EARLIEST, None)
            wrong = {"u11": None, "u12": Standing(-1.0, 0)}

            async def rows() -> AsyncIterator[list[Row]]:
                yield [Row(1, "ghost", Standing(5.5, 0), 10**9)]
                for user, standing in wrong.items():
                    (held,) = await laurels.index.held(ranking, [user])
                    assert held is not None
                    yield [Row(1, user, standing, held.version)]
                async for chunk in laurels.ledger.rows(1):
                    yield [row for row in chunk if row.user_id not in {*wrong, *tampered}]
                yield before

            await laurels.index.load(ranking, rows(), await laurels.ledger.position())
            return await differences(laurels)

    found = {(each.user_id, each.fault) for each in asyncio.run(run())}
    assert {
        ("u7", Fault.ROW_DIFFERS),
        ("u8", Fault.ROW_MISSING),
        ("u9", Fault.ROW_EXTRA),
        ("u9", Fault.INDEX_EXTRA),
        ("u10", Fault.ROW_DIFFERS),
        ("u13", Fault.ROW_MISPLACED),
        ("u14", Fault.ROW_MISPLACED),
        ("ghost", Fault.INDEX_EXTRA),
        ("u11", Fault.INDEX_MISSING),
        ("u12", Fault.INDEX_DIFFERS),
    } <= found


def test_verify_finds_no_differences_while_scores_arrive(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as laurels:
            (board,) = laurels.boards.all()
            await fill(laurels, 5000)
            done = asyncio.Event()

            async def write() -> None:
                number = 0
                while not done.is_set():
                    number += 1
                    scores = [Submission(f"u{(number * 37 + n) % 5200}", n) for n in range(20)]
                    await laurels.submissions.submit_many(board, scores)

            writing = asyncio.create_task(write())
            for _ in range(5):
                assert await differences(laurels) == []
            done.set()
            await writing
            assert await differences(laurels) == []

    asyncio.run(run())


def test_second_concurrent_verify_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as laurels:
            await fill(laurels, 3000)
            first = laurels.verify()
            await anext(first)
            with pytest.raises(TooMany) as caught:
                await anext(laurels.verify())
            assert caught.value.code == "verify_running"
            await first.aclose()  # type: ignore[attr-defined]
            assert await differences(laurels) == []

    asyncio.run(run())


async def capped(laurels: Laurels, capacity: int, users: int) -> Board:
    board = Board(
        id=0, uuid="capped", pod_id="default", name="Capped", rule=Rule.LATEST, capacity=capacity, created_at=0
    )
    board = await laurels.boards.create(board, None)
    await laurels.submissions.submit_many(board, [Submission(f"u{n:03}", 1000 - n, at=1) for n in range(users)])
    return board


def test_returned_ranks_are_those_after_the_whole_batch(tmp_path: Path) -> None:
    """All users drop at once: the best of them stay ranked, and their answers say so."""

    async def run() -> None:
        async with running(tmp_path) as laurels:
            board = await capped(laurels, 5, 60)
            lower = [Submission(f"u{n:03}", -n, at=2) for n in range(60)]
            answers = await laurels.submissions.submit_many(board, lower)
            ranks = [answer.rank for answer in answers if isinstance(answer, Accepted)]
            assert ranks == [1, 2, 3, 4, 5] + [None] * 55

    asyncio.run(run())


def test_changed_capacity_takes_effect_without_a_rebuild(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as laurels:
            board = await capped(laurels, 5, 45)
            for capacity, ranked in ((3, 3), (40, 40), (None, 45), (5, 5)):
                board = await laurels.boards.change(board, {"capacity": capacity})
                page = (await laurels.reads.top(board, Selection(), 0, 100)).value
                assert (page.total, len(page.entries)) == (ranked, ranked)
            caller = Caller(Role.ADMIN, None, "test")
            for name in [entry.user_id for entry in page.entries]:
                await laurels.submissions.remove_user(caller, board, name, None)
            assert (await laurels.reads.top(board, Selection(), 0, 10)).value.total == 5
            assert await differences(laurels) == []

    asyncio.run(run())


def test_failed_index_load_is_retried_until_it_succeeds(tmp_path: Path) -> None:
    class Failing(MemoryIndex):
        failures = 0

        async def load(
            self,
            ranking: Ranking,
            rows: AsyncIterator[list[Row]],
            position: Position,
            replacing: Sequence[IndexState] | None = None,
        ) -> None:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("not now")
            await super().load(ranking, rows, position, replacing)

    async def run() -> None:
        index = Failing()
        async with running(tmp_path, index=index) as laurels:
            index.failures = 2
            board = await capped(laurels, 10, 30)
            with pytest.raises(Unavailable) as caught:
                await laurels.reads.top(board, Selection(), 0, 10)
            assert caught.value.code == "catching_up"
            for _ in range(500):
                await asyncio.sleep(0.01)
                if not laurels.repairer.is_repairing:
                    break
            assert (await laurels.reads.top(board, Selection(), 0, 100)).value.total == 10
            assert await differences(laurels) == []

    asyncio.run(run())


@pytest.mark.parametrize("capacity", [None, 5])
@pytest.mark.parametrize("ties", Ties)
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("rule", Rule)
def test_shuffled_and_repeated_events_produce_the_same_index(
    tmp_path: Path, rule: Rule, order: Order, ties: Ties, capacity: int | None
) -> None:
    rng = random.Random(7)
    events = [
        Submission(f"u{rng.randrange(60)}", rng.choice([0.1, 0.2, -0.3, 1, 5, 0]), rng.randrange(9), f"e{number}")
        for number in range(200)
    ]

    async def index_after(laurels: Laurels, name: str, sent: list[Submission]) -> list[tuple[str, float, int]]:
        definition = Board(
            id=0, uuid=name, pod_id="default", name=name, created_at=0,
            rule=rule, order=order, ties=ties, capacity=capacity,
        )  # fmt: skip
        board = await laurels.boards.create(definition, None)
        while sent:
            size = rng.randrange(1, 60)
            await laurels.submissions.submit_many(board, sent[:size])
            sent = sent[size:]
        page = (await laurels.reads.top(board, Selection(), 0, 1000)).value
        return [(place.user_id, place.score, place.achieved_at) for place in page.entries]

    async def run() -> None:
        async with running(tmp_path) as laurels:
            expected = await index_after(laurels, "first", events)
            assert len(expected) == (capacity or len({event.user_id for event in events}))
            for number in range(3):
                sent = events + rng.choices(events, k=80)
                rng.shuffle(sent)
                assert await index_after(laurels, f"again-{number}", sent) == expected

    asyncio.run(run())
