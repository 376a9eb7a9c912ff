"""Group commit: batches are bounded and fair, and each event's outcome is reported."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from laurels.adapters.memory_index import MemoryIndex
from laurels.adapters.sqlite import SqliteLedger
from laurels.core.board import Board, Ranking
from laurels.errors import LaurelsError, TooMany, Unavailable
from laurels.http.routes import build_app
from laurels.ports import Applied, Event, RecordedEvent, RecordOutcome, Row
from laurels.service.laurels import Laurels
from laurels.service.read.reads import Selection
from laurels.service.write.batcher import ADDITIONAL_EVENTS, BULK_EVENTS, SHORT_QUEUE
from laurels.service.write.submissions import Accepted, Submission
from support.ledgers import FakeClock
from support.services import running
from support.waiting import until_so


class GatedLedger(SqliteLedger):
    """A SQLite ledger whose commits wait for a gate, or fail on demand."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, FakeClock())
        self.gate = asyncio.Event()
        self.gate.set()
        self.batches: list[int] = []
        # Batches that wait for the gate.
        self.waiting = 0
        self.failing = False
        self.unsure = False
        # Numbers of the batches that fail, counted from 1.
        self.failing_once: set[int] = set()

    async def record(self, events: Sequence[Event], history: str | None = None) -> list[RecordedEvent]:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        self.batches.append(len(events))
        if self.failing or len(self.batches) in self.failing_once:
            error = Unavailable("ledger_unavailable", "The disk is full.")
            error.outcome_unknown = self.unsure
            raise error
        return await super().record(events, history)


class WideLedger(GatedLedger):
    """A ledger that takes two batches at once."""

    @property
    def batches_at_once(self) -> int:
        return 2


def submissions(count: int, user: str = "ada") -> list[Submission]:
    return [Submission(user, 1) for _ in range(count)]


def default_board(laurels: Laurels) -> Board:
    (board,) = laurels.boards.all()
    return board


def test_second_batch_starts_during_the_first_only_if_many_events_wait(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = WideLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, max_batch=200) as laurels:
            board = default_board(laurels)
            ledger.gate.clear()
            first = asyncio.create_task(laurels.submissions.submit_many(board, submissions(1)))
            await until_so(lambda: ledger.waiting == 1, "the first batch waits for the gate")
            few = asyncio.create_task(laurels.submissions.submit_many(board, submissions(ADDITIONAL_EVENTS - 1)))
            await asyncio.sleep(0.05)
            assert ledger.waiting == 1
            many = asyncio.create_task(laurels.submissions.submit_many(board, submissions(1)))
            more = asyncio.create_task(laurels.submissions.submit_many(board, submissions(150)))
            await until_so(lambda: ledger.waiting == 2, "the second batch waits for the gate")
            await asyncio.sleep(0.05)
            # Two batches are being recorded, and no third one.
            assert ledger.waiting == 2
            ledger.gate.set()
            answers = [answer for task in (first, few, many, more) for answer in await task]
            assert len(answers) == 1 + ADDITIONAL_EVENTS - 1 + 1 + 150
            assert all(isinstance(answer, Accepted) for answer in answers)
            assert sum(ledger.batches) == len(answers)
            (entry,) = (await laurels.reads.top(board, Selection(), 0, 10)).value.entries
            assert entry.score == len(answers)

    asyncio.run(run())


def test_events_of_one_call_are_recorded_in_order(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = WideLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, max_batch=ADDITIONAL_EVENTS) as laurels:
            board = default_board(laurels)
            ledger.gate.clear()
            call = asyncio.create_task(laurels.submissions.submit_many(board, submissions(3 * ADDITIONAL_EVENTS)))
            await until_so(lambda: ledger.waiting == 1, "the first batch waits for the gate")
            await asyncio.sleep(0.05)
            # The ledger could take a second batch, but it belongs to the same call.
            assert ledger.waiting == 1
            ledger.gate.set()
            answers = await call
            assert [a.score for a in answers if isinstance(a, Accepted)] == [
                float((number // ADDITIONAL_EVENTS + 1) * ADDITIONAL_EVENTS) for number in range(len(answers))
            ]

    asyncio.run(run())


def test_events_arriving_during_a_commit_share_the_next_batch(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger) as laurels:
            board = default_board(laurels)
            ledger.gate.clear()
            writes = [asyncio.create_task(laurels.submissions.submit(board, each)) for each in submissions(100)]
            await until_so(lambda: ledger.waiting == 1, "a batch waits for the gate")
            ledger.gate.set()
            answers = await asyncio.gather(*writes)
            assert ledger.batches in ([100], [1, 99])
            assert {answer.score for answer in answers} <= {1.0, 100.0}
            assert all(answer.rank == 1 for answer in answers)

    asyncio.run(run())


def test_batch_never_exceeds_its_maximum_size(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, max_batch=10) as laurels:
            answers = await laurels.submissions.submit_many(default_board(laurels), submissions(35))
            assert ledger.batches == [10, 10, 10, 5]
            assert [a.score for a in answers if isinstance(a, Accepted)] == [10.0] * 10 + [20.0] * 10 + [30.0] * 10 + [
                35.0
            ] * 5

    asyncio.run(run())


def test_queue_is_bounded_per_pod_and_in_total(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, max_batch=5, max_pending=20) as laurels:
            boards = [default_board(laurels)]
            for pod in ("second", "third"):
                await laurels.access.create_pod(pod, pod)
                board = Board(id=0, uuid=pod, pod_id=pod, name=pod, created_at=0)
                boards.append(await laurels.boards.create(board, None))
            ledger.gate.clear()
            waiting = [
                asyncio.create_task(laurels.submissions.submit_many(board, submissions(10))) for board in boards[:2]
            ]
            await until_so(lambda: ledger.waiting == 1, "a batch waits for the gate")
            with pytest.raises(Unavailable) as full:
                await laurels.submissions.submit_many(boards[2], submissions(1))
            assert full.value.code == "overloaded"
            ledger.gate.set()
            await asyncio.gather(*waiting)
            ledger.gate.clear()
            waiting = [asyncio.create_task(laurels.submissions.submit_many(boards[0], submissions(10)))]
            await until_so(lambda: ledger.waiting == 1, "a batch waits for the gate")
            with pytest.raises(TooMany) as busy:
                await laurels.submissions.submit_many(boards[0], submissions(1))
            assert busy.value.code == "too_many_pending"
            other = asyncio.create_task(laurels.submissions.submit_many(boards[1], submissions(1)))
            await asyncio.sleep(0.01)
            ledger.gate.set()
            await asyncio.gather(*waiting, other)

    asyncio.run(run())


def test_failed_commit_is_reported_and_the_next_commit_succeeds(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, max_batch=2) as laurels:
            board = default_board(laurels)
            ledger.failing = True
            with pytest.raises(Unavailable, match="disk is full"):
                await laurels.submissions.submit(board, Submission("ada", 1))
            answers = await laurels.submissions.submit_many(board, submissions(3))
            assert [answer.code for answer in answers if isinstance(answer, LaurelsError)] == ["ledger_unavailable"] * 3
            ledger.failing = False
            assert (await laurels.submissions.submit(board, Submission("ada", 1))).score == 1

    asyncio.run(run())


def test_batch_returns_503_only_if_it_can_be_repeated_unchanged(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, max_batch=2) as laurels:
            transport = httpx.ASGITransport(build_app(laurels))
            headers = {"Authorization": "Bearer admin"}
            async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
                path = "/api/v1/leaderboards/default/scores"
                unnamed = [{"userId": f"u{number}", "score": 1} for number in range(4)]
                named = [item | {"eventId": item["userId"]} for item in unnamed]
                # Nothing is stored: the client can repeat the request unchanged.
                ledger.failing = True
                refused = await client.post(path, json={"scores": [*unnamed, {"userId": "bad"}]})
                assert (refused.status_code, refused.json()["code"]) == (503, "ledger_unavailable")
                assert refused.headers["Retry-After"] == "1"
                ledger.failing = False
                # A part of the batch is stored: each event has its own result.
                ledger.batches.clear()
                ledger.failing_once = {2, 4}
                partly = (await client.post(path, json={"scores": unnamed})).json()["results"]
                assert [result["status"] for result in partly] == ["accepted", "accepted", "refused", "refused"]
                assert [result["problem"]["retryable"] for result in partly[2:]] == [True, True]
                again = [item | {"eventId": result["eventId"]} for item, result in zip(unnamed, partly, strict=True)]
                # With event ids, the client can repeat the whole batch, and each event counts once.
                refused = await client.post(path, json={"scores": again})
                assert (refused.status_code, refused.json()["code"]) == (503, "ledger_unavailable")
                repeated = (await client.post(path, json={"scores": again})).json()["results"]
                assert [result["status"] for result in repeated] == ["duplicate", "duplicate", "accepted", "accepted"]
                # If an event without an id may have been stored, the answer contains the id that the server gave it.
                ledger.batches.clear()
                ledger.failing_once = {1, 3}
                ledger.unsure = True
                unsure = (await client.post(path, json={"scores": unnamed[:1]})).json()["results"]
                assert (unsure[0]["problem"]["code"], len(unsure[0]["eventId"])) == ("write_timeout", 32)
                accepted = await client.post(path, json={"scores": named[:1]})
                assert accepted.json()["results"][0]["score"] == 2
                refused = await client.post(path, json={"scores": named[:1]})
                assert (refused.status_code, refused.json()["code"]) == (503, "write_timeout")

    asyncio.run(run())


def test_write_can_be_repeated_after_a_timeout(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, write_timeout_ms=20) as laurels:
            board = default_board(laurels)
            ledger.gate.clear()
            with pytest.raises(Unavailable, match="match-1") as caught:
                await laurels.submissions.submit(board, Submission("ada", 1, event_id="match-1"))
            assert caught.value.code == "write_timeout"
            ledger.gate.set()
        async with running(tmp_path) as laurels:
            board = default_board(laurels)
            answer = await laurels.submissions.submit(board, Submission("ada", 1, event_id="match-1"))
            assert (answer.outcome, answer.score) == (RecordOutcome.DUPLICATE, 1)

    asyncio.run(run())


def test_close_finishes_pending_writes_and_refuses_new_ones(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger) as laurels:
            board = default_board(laurels)
            ledger.gate.clear()
            write = asyncio.create_task(laurels.submissions.submit(board, Submission("ada", 1)))
            await until_so(lambda: ledger.waiting == 1, "the write waits for the gate")
            closing = asyncio.create_task(laurels.batcher.close())
            # The task has started once the loop has run once.
            await asyncio.sleep(0)
            with pytest.raises(Unavailable) as caught:
                await laurels.submissions.submit(board, Submission("bob", 1))
            assert caught.value.code == "stopping"
            ledger.gate.set()
            await closing
            assert (await write).score == 1

    asyncio.run(run())


def test_index_fault_does_not_stop_later_writes(tmp_path: Path) -> None:
    """Even if the ranking can't be dropped: these requests fail, and the next ones succeed."""

    class Broken(MemoryIndex):
        broken = False

        async def apply(self, ranking: Ranking, rows: Sequence[Row], *rest: Any, **named: Any) -> Applied:
            if self.broken:
                raise ConnectionError("gone")
            return await super().apply(ranking, rows, *rest, **named)

        async def drop(self, ranking: Ranking) -> None:
            if self.broken:
                raise ConnectionError("gone")
            await super().drop(ranking)

    async def run() -> None:
        index = Broken()
        async with running(tmp_path, index=index) as laurels:
            board = default_board(laurels)
            index.broken = True
            with pytest.raises(Unavailable, match="was stored"):
                await laurels.submissions.submit(board, Submission("ada", 1, event_id="e1"))
            index.broken = False
            answer = await laurels.submissions.submit(board, Submission("ada", 1, event_id="e2"))
            assert (answer.score, answer.rank) == (2, 1)

    asyncio.run(run())


def test_writes_of_one_pod_do_not_wait_behind_the_queue_of_another(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, max_batch=100, max_pending=100_000) as laurels:
            await laurels.access.create_pod("calm", "Calm")
            busy = default_board(laurels)
            calm = await laurels.boards.create(Board(id=0, uuid="calm", pod_id="calm", name="Calm", created_at=0), None)
            ledger.gate.clear()
            tasks = [asyncio.create_task(laurels.submissions.submit_many(busy, submissions(50))) for _ in range(40)]
            await until_so(lambda: ledger.waiting == 1, "a batch waits for the gate")
            one = asyncio.create_task(laurels.submissions.submit(calm, Submission("ada", 1)))
            await asyncio.sleep(0)
            ledger.gate.set()
            await one
            # The batch that was waiting, and the next one, of twenty.
            assert len(ledger.batches) <= 4
            assert sum(task.done() for task in tasks) < 10
            await asyncio.gather(*tasks)

    asyncio.run(run())


def test_expected_wait_follows_from_the_queue_of_the_pod_and_the_pace(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, max_batch=200, max_pending=100_000) as laurels:
            batcher, board = laurels.batcher, default_board(laurels)

            def send(count: int) -> "asyncio.Task[list[Accepted | LaurelsError]]":
                return asyncio.create_task(laurels.submissions.submit_many(board, submissions(count)))

            assert batcher.queued_s("default") == 0
            for _ in range(3):
                await asyncio.gather(*(send(100) for _ in range(4)))
            assert batcher.queued_s("default") == batcher.queued_s() == 0
            ledger.gate.clear()
            few = send(SHORT_QUEUE)
            await until_so(lambda: ledger.waiting == 1, "a batch waits for the gate")
            assert batcher.queued_s("default") == 0
            many = [send(100) for _ in range(100)]
            await asyncio.sleep(0)
            expected = batcher.queued_s("default")
            assert 0 < expected < 30
            assert batcher.queued_s() == expected
            # Another pod takes turns with this one, so it does not wait for the whole queue.
            assert batcher.queued_s("other") == 0
            # Bulk takes turns with the other writes of its pod.
            bulk = send(BULK_EVENTS + 1)
            await asyncio.sleep(0)
            assert batcher.queued_s("default") == expected
            ledger.gate.set()
            await bulk
            assert sum(task.done() for task in many) < 20
            await asyncio.gather(few, *many)
            assert batcher.queued_s("default") == 0

    asyncio.run(run())


def test_lost_answer_to_a_score_for_several_boards_names_the_event_to_repeat(tmp_path: Path) -> None:
    class LosingLedger(SqliteLedger):
        async def record_all(self, events: Sequence[Event], history: str | None = None) -> list[RecordedEvent]:
            await super().record_all(events, history)
            error = Unavailable("ledger_unavailable", "PostgreSQL can't be reached.")
            error.outcome_unknown = True
            raise error

    async def run() -> None:
        ledger = LosingLedger(tmp_path / "laurels.db", FakeClock())
        async with running(tmp_path, ledger=ledger) as laurels:
            boards = [laurels.boards.all()[0]]
            with pytest.raises(Unavailable) as caught:
                await laurels.submissions.submit_to_boards(boards, Submission("ada", 5))
            assert (caught.value.code, caught.value.outcome_unknown) == ("write_timeout", True)
            (event,) = await laurels.ledger.user_events(boards[0].id, "ada", before_seq=None, limit=10)
            assert event.event_id in caught.value.message

    asyncio.run(run())


def test_scores_for_several_boards_of_one_pod_leave_room_for_another(tmp_path: Path) -> None:
    class SlowLedger(SqliteLedger):
        order: list[str] = []  # noqa: RUF012 - one test uses it

        async def record_all(self, events: Sequence[Event], history: str | None = None) -> list[RecordedEvent]:
            await asyncio.sleep(0.01)
            self.order.append(events[0].board.pod_id)
            return await super().record_all(events, history)

    async def run() -> None:
        ledger = SlowLedger(tmp_path / "laurels.db", FakeClock())
        async with running(tmp_path, ledger=ledger) as laurels:
            await laurels.access.create_pod("small", "Small")
            board = Board(id=0, uuid="small", pod_id="small", name="S", created_at=0)
            small = await laurels.boards.create(board, None)
            busy = laurels.boards.all()[0]
            calls = [laurels.submissions.submit_to_boards([busy], Submission(f"u{n}", n)) for n in range(30)]
            await asyncio.gather(*calls, laurels.submissions.submit_to_boards([small], Submission("ada", 1)))
            assert ledger.order.index("small") <= 2

    asyncio.run(run())
