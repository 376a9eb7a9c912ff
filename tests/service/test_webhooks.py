"""What is told outside: signed, recorded before it is sent, sent again until it is taken."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.rewards import Between, Reward
from laurels.core.windows import Window
from laurels.errors import NotFound
from laurels.ports import Message
from laurels.service.laurels import Laurels
from laurels.service.submit import Submission
from support.services import Stage

DAY = 86_400 * SECOND_US


class Receiver:
    """A web server that takes what it is told to take."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        # The ids of messages that are never taken.
        self.refused: set[str] = set()
        self.calls: list[tuple[dict[str, str], bytes, int]] = []
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = [line.partition(": ") for line in head.splitlines()[1:] if line]
                headers = {name.lower(): value for name, _, value in lines}
                body = await reader.readexactly(int(headers["content-length"]))
                status = self.answers.pop(0) if self.answers else 204
                if headers["webhook-id"] in self.refused:
                    status = 500
                self.calls.append((headers, body, status))
                writer.write(f"HTTP/1.1 {status} X\r\nLocation: {self.url}/other\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Receiver"]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    @property
    def taken(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body, status in self.calls if status < 300]


@pytest.fixture(params=["embedded", "shared"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path)


async def board_with_prizes(laurels: Laurels, users: int) -> Board:
    rewards = (Reward("top", {"gems": 5}, ranks=Between(1, 150)), Reward("all", "badge", top_percent=100.0))
    board = Board(id=0, uuid="b", pod_id="default", name="B", windows=(Window("daily"),), rewards=rewards, created_at=0)
    board = await laurels.boards.create(board, None)
    await laurels.submissions.submit_many(board, [Submission(f"u{n}", -n) for n in range(users)])
    return board


def test_messages_are_signed_and_sent_until_they_are_taken(stage: Stage) -> None:
    async def run() -> None:
        receiver = Receiver()
        async with receiver.listening(), stage.running() as laurels:
            webhook, _ = await laurels.webhooks.put("default", receiver.url + "/hook")
            await board_with_prizes(laurels, 230)
            # A redirection is not followed, and what is not 2xx is not taken.
            receiver.answers = [500, 302, 429, 204, 503]
            stage.clock.now += 2 * DAY
            await laurels.jobs.run_due()
            assert len(receiver.calls) >= 4
            failed = [status for _, _, status in receiver.calls if status >= 300]
            assert sorted(failed) == [302, 429, 500, 503]
            assert await laurels._ledger.outbox.waiting() == 4
            # Not before their time.
            await laurels.jobs.run_due()
            assert await laurels._ledger.outbox.waiting() == 4
            # The first again, and then with longer and longer pauses.
            receiver.answers = [500] * 4
            stage.clock.now += 7 * SECOND_US
            await laurels.jobs.run_due()
            stage.clock.now += 7 * SECOND_US
            calls = len(receiver.calls)
            await laurels.jobs.run_due()
            assert len(receiver.calls) == calls
            stage.clock.now += 7 * SECOND_US
            await laurels.jobs.run_due()
            assert await laurels._ledger.outbox.waiting() == 0
            check(receiver, webhook.secret)
            # Nothing is sent twice.
            calls = len(receiver.calls)
            stage.clock.now += DAY // 2
            await laurels.jobs.run_due()
            assert len(receiver.calls) == calls

    def check(receiver: Receiver, secret: str) -> None:
        messages = [message["data"] for message in receiver.taken if message["type"] == "rewards.granted"]
        granted = [each for message in messages for each in message["rewards"]]
        expected = [(f"u{n}", "top", n + 1) for n in range(150)] + [(f"u{n}", "all", n + 1) for n in range(230)]
        assert sorted((each["userId"], each["reward"], each["rank"]) for each in granted) == sorted(expected)
        assert len({each["rewardId"] for each in granted}) == len(expected)
        ended = [message["data"] for message in receiver.taken if message["type"] == "period.frozen"]
        assert {("b", "daily", 230)} <= {(each["UUID"], each["window"], each["totalUsers"]) for each in ended}
        ids = set()
        for headers, body, status in receiver.calls:
            signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
            key = base64.b64decode(secret.removeprefix("whsec_"))
            digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
            assert headers["webhook-signature"] == f"v1,{digest}"
            if status < 300:
                assert headers["webhook-id"] not in ids
                ids.add(headers["webhook-id"])

    asyncio.run(run())


def test_nothing_is_told_of_before_it_is_final_or_without_a_webhook(stage: Stage) -> None:
    async def run() -> None:
        receiver = Receiver()
        async with receiver.listening(), stage.running() as laurels:
            await board_with_prizes(laurels, 10)
            stage.clock.now += DAY
            await laurels.jobs.run_due()
            assert await laurels._ledger.outbox.waiting() == 0
            await laurels.webhooks.put("default", receiver.url)
            board = laurels.boards.all()[-1]
            await laurels.submissions.submit_many(board, [Submission("ada", 1)])
            seasons = laurels._ledger.seasons
            finish = seasons.finish_freeze

            async def late(*arguments: Any) -> bool:
                # The places and what they earned are written, and nobody was told.
                assert await seasons.last_place(arguments[1].id) == arguments[2]
                assert await laurels._ledger.outbox.due(stage.clock.now + DAY, 10) == []
                return await finish(*arguments)

            seasons.finish_freeze = late  # type: ignore[method-assign,assignment]
            stage.clock.now += DAY
            await laurels.jobs.run_due()
            assert [message["type"] for message in receiver.taken].count("rewards.granted") == 1
            # What was delivered is remembered for a while, and then forgotten.
            stage.clock.now += 40 * DAY
            assert await laurels.webhooks.forget() >= 2
            assert await laurels.webhooks.forget() == 0

    asyncio.run(run())


def test_a_webhook_that_is_removed_is_told_nothing_more(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            for nothing in (laurels.webhooks.get("default"), laurels.webhooks.delete("default")):
                with pytest.raises(NotFound):
                    await nothing
            with pytest.raises(NotFound):
                await laurels.webhooks.put("nobody", "http://127.0.0.1:1/")
            first, _ = await laurels.webhooks.put("default", "http://127.0.0.1:1/")
            assert await laurels.webhooks.put("default", "http://127.0.0.1:1/") == (first, False)
            other, is_new = await laurels.webhooks.put("default", "http://127.0.0.1:1/other")
            assert (is_new, other.secret != first.secret) == (True, True)
            await board_with_prizes(laurels, 10)
            stage.clock.now += DAY
            await laurels.jobs.run_due()
            assert await laurels._ledger.outbox.waiting() == 2
            await laurels.webhooks.delete("default")
            assert await laurels._ledger.outbox.waiting() == 0

    asyncio.run(run())


def test_a_receiver_that_is_not_there_keeps_nothing_from_anybody(stage: Stage) -> None:
    async def run() -> None:
        async with stage.running() as laurels:
            await laurels.webhooks.put("default", "http://127.0.0.1:1/")
            await board_with_prizes(laurels, 10)
            stage.clock.now += DAY
            await laurels.jobs.run_due()
            runs = {run.name: json.loads(run.result or "{}") for run in await laurels.jobs.runs()}
            assert runs["periods"]["frozen"] == 1
            assert runs["webhooks"] == {"delivered": 0, "failed": 2, "waiting": 2}

    asyncio.run(run())


def post(number: int, pod_id: str = "default") -> Message:
    return Message(f"m-{pod_id}-{number}", pod_id, 0, "test", f'{{"n":{number}}}', 0)


def test_a_message_that_is_refused_holds_up_no_other(stage: Stage) -> None:
    """Each has a schedule of its own. One that is refused for days is tried again and again, alone."""

    async def run() -> None:
        receiver = Receiver()
        receiver.refused = {"m-default-0"}
        async with receiver.listening(), stage.running() as laurels:
            await laurels.webhooks.put("default", receiver.url)
            outbox = laurels._ledger.outbox
            await outbox.post(post(0))
            for number in range(1, 200):
                await outbox.post(post(number))
                await laurels.webhooks.deliver()
                assert f'{{"n":{number}}}'.encode() in {body for _, body, status in receiver.calls if status < 300}
                stage.clock.now += 60 * SECOND_US
            tries = [status for headers, _, status in receiver.calls if headers["webhook-id"] == "m-default-0"]
            # In three hours: after 5 s, 10 s, and so on.
            assert 9 <= len(tries) <= 14
            assert await outbox.waiting() == 1
            receiver.refused.clear()
            stage.clock.now += 2 * 3600 * SECOND_US
            await laurels.webhooks.deliver()
            assert await outbox.waiting() == 0

    asyncio.run(run())


def test_a_receiver_that_takes_nothing_is_not_overrun_and_keeps_nobody_else(stage: Stage) -> None:
    async def run() -> None:
        down, up = Receiver(), Receiver()
        async with down.listening(), up.listening(), stage.running() as laurels:
            await laurels.access.create_pod("other", "Other")
            await laurels.webhooks.put("default", down.url)
            await laurels.webhooks.put("other", up.url)
            down.refused = {f"m-default-{number}" for number in range(500)}
            for number in range(500):
                await laurels._ledger.outbox.post(post(number))
            await laurels._ledger.outbox.post(post(0, "other"))
            for _ in range(60):
                await laurels.webhooks.deliver()
                stage.clock.now += SECOND_US
            assert len(up.taken) == 1
            # A minute of a receiver that is down: a few at first, then one after each pause.
            assert 10 <= len(down.calls) < 40
            down.refused.clear()
            stage.clock.now += 3600 * SECOND_US
            for _ in range(20):
                await laurels.webhooks.deliver()
                stage.clock.now += 60 * SECOND_US
            assert len(down.taken) == 500

    asyncio.run(run())
