"""Group commit: bounded, fair, and honest about what happened to each event."""

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
from laurels.ports import Applied, Event, Record, Recorded, Row
from laurels.service.laurels import Laurels
from laurels.service.submit import Accepted, Submission
from support.ledgers import FakeClock
from support.services import running


class GatedLedger(SqliteLedger):
    """The real ledger behind a gate: commits wait until it is open, or fail when told so."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, FakeClock())
        self.gate = asyncio.Event()
        self.gate.set()
        self.batches: list[int] = []
        self.failing = False
        self.unsure = False
        # Only the batches with these numbers fail, once each.
        self.failing_once: set[int] = set()

    async def record(self, events: Sequence[Event], history: str | None = None) -> list[Record]:
        await self.gate.wait()
        self.batches.append(len(events))
        if self.failing or len(self.batches) in self.failing_once:
            error = Unavailable("ledger_unavailable", "The disk is full.")
            error.outcome_unknown = self.unsure
            raise error
        return await super().record(events, history)


def submissions(count: int, user: str = "ada") -> list[Submission]:
    return [Submission(user, 1) for _ in range(count)]


def default_board(laurels: Laurels) -> Board:
    (board,) = laurels.boards.all()
    return board


def test_what_arrives_during_a_commit_shares_the_next_one(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger) as laurels:
            board = default_board(laurels)
            ledger.gate.clear()
            writes = [asyncio.create_task(laurels.submissions.submit(board, each)) for each in submissions(100)]
            await asyncio.sleep(0.01)
            ledger.gate.set()
            answers = await asyncio.gather(*writes)
            assert ledger.batches in ([100], [1, 99])
            assert {answer.score for answer in answers} <= {1.0, 100.0}
            assert all(answer.rank == 1 for answer in answers)

    asyncio.run(run())


def test_a_batch_never_grows_beyond_its_limit(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, max_batch=10) as laurels:
            answers = await laurels.submissions.submit_many(default_board(laurels), submissions(35))
            assert ledger.batches == [10, 10, 10, 5]
            assert [a.score for a in answers if isinstance(a, Accepted)] == [10.0] * 10 + [20.0] * 10 + [30.0] * 10 + [
                35.0
            ] * 5

    asyncio.run(run())


def test_the_queue_is_bounded_for_a_pod_and_as_a_whole(tmp_path: Path) -> None:
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
            await asyncio.sleep(0.01)
            with pytest.raises(Unavailable) as full:
                await laurels.submissions.submit_many(boards[2], submissions(1))
            assert full.value.code == "overloaded"
            ledger.gate.set()
            await asyncio.gather(*waiting)
            ledger.gate.clear()
            waiting = [asyncio.create_task(laurels.submissions.submit_many(boards[0], submissions(10)))]
            await asyncio.sleep(0.01)
            with pytest.raises(TooMany) as busy:
                await laurels.submissions.submit_many(boards[0], submissions(1))
            assert busy.value.code == "too_many_pending"
            other = asyncio.create_task(laurels.submissions.submit_many(boards[1], submissions(1)))
            await asyncio.sleep(0.01)
            ledger.gate.set()
            await asyncio.gather(*waiting, other)

    asyncio.run(run())


def test_a_failed_commit_tells_its_senders_and_the_next_one_works(tmp_path: Path) -> None:
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


def test_a_batch_is_answered_503_only_if_it_can_be_repeated_as_it_is(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger, max_batch=2) as laurels:
            transport = httpx.ASGITransport(build_app(laurels))
            headers = {"Authorization": "Bearer admin"}
            async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
                path = "/api/v1/leaderboards/default/scores"
                unnamed = [{"userId": f"u{number}", "score": 1} for number in range(4)]
                named = [item | {"eventId": item["userId"]} for item in unnamed]
                # Nothing of it is stored.
                ledger.failing = True
                refused = await client.post(path, json={"scores": [*unnamed, {"userId": "bad"}]})
                assert (refused.status_code, refused.json()["code"]) == (503, "ledger_unavailable")
                assert refused.headers["Retry-After"] == "1"
                ledger.failing = False
                # A part of it is.
                ledger.batches.clear()
                ledger.failing_once = {2, 4}
                partly = (await client.post(path, json={"scores": unnamed})).json()["results"]
                assert [result["status"] for result in partly] == ["accepted", "accepted", "refused", "refused"]
                assert [result["problem"]["retryable"] for result in partly[2:]] == [True, True]
                again = [item | {"eventId": result["eventId"]} for item, result in zip(unnamed, partly, strict=True)]
                # With their ids, all of it may be repeated, and counts once.
                refused = await client.post(path, json={"scores": again})
                assert (refused.status_code, refused.json()["code"]) == (503, "ledger_unavailable")
                repeated = (await client.post(path, json={"scores": again})).json()["results"]
                assert [result["status"] for result in repeated] == ["duplicate", "duplicate", "accepted", "accepted"]
                # One that may be stored, and has no id, is told which it has.
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


def test_a_write_that_takes_too_long_may_be_repeated(tmp_path: Path) -> None:
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
            assert (answer.outcome, answer.score) == (Recorded.DUPLICATE, 1)

    asyncio.run(run())


def test_closing_finishes_what_was_taken_and_refuses_what_is_new(tmp_path: Path) -> None:
    async def run() -> None:
        ledger = GatedLedger(tmp_path / "laurels.db")
        async with running(tmp_path, ledger=ledger) as laurels:
            board = default_board(laurels)
            ledger.gate.clear()
            write = asyncio.create_task(laurels.submissions.submit(board, Submission("ada", 1)))
            await asyncio.sleep(0.01)
            closing = asyncio.create_task(laurels.close())
            await asyncio.sleep(0.01)
            with pytest.raises(Unavailable) as caught:
                await laurels.submissions.submit(board, Submission("bob", 1))
            assert caught.value.code == "stopping"
            ledger.gate.set()
            await closing
            assert (await write).score == 1

    asyncio.run(run())


def test_a_fault_of_the_index_does_not_stop_the_lane(tmp_path: Path) -> None:
    """Even if it can't be dropped: these senders are told, the next ones are served."""

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
