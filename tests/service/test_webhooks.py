"""Webhooks: messages are signed, stored before they are sent, and retried until they are delivered."""

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
from laurels.service.publish.webhooks import sign
from laurels.service.write.submissions import Submission
from support.services import Stage

DAY = 86_400 * SECOND_US


class Receiver:
    """A web server that answers with chosen statuses."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        # Ids of messages that are always refused.
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


def test_messages_are_signed_and_retried_until_delivered(stage: Stage) -> None:
    async def run() -> None:
        receiver = Receiver()
        async with receiver.listening(), stage.running() as laurels:
            webhook, _ = await laurels.webhooks.put("default", receiver.url + "/hook")
            await board_with_prizes(laurels, 230)
            # Redirects are not followed, and only a 2xx status counts as delivered.
            receiver.answers = [500, 302, 429, 204, 503]
            stage.clock.now += 2 * DAY
            await laurels.jobs.run_due()
            assert len(receiver.calls) >= 4
            failed = [status for _, _, status in receiver.calls if status >= 300]
            assert sorted(failed) == [302, 429, 500, 503]
            assert await laurels.ledger.outbox.waiting() == 4
            # Messages are not retried before their time.
            await laurels.jobs.run_due()
            assert await laurels.ledger.outbox.waiting() == 4
            # Retries fail as well, and the pauses grow.
            receiver.answers = [500] * 4
            stage.clock.now += 7 * SECOND_US
            await laurels.jobs.run_due()
            stage.clock.now += 7 * SECOND_US
            calls = len(receiver.calls)
            await laurels.jobs.run_due()
            assert len(receiver.calls) == calls
            stage.clock.now += 7 * SECOND_US
            await laurels.jobs.run_due()
            assert await laurels.ledger.outbox.waiting() == 0
            check(receiver, webhook.secret)
            # Delivered messages are not sent again.
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


def test_messages_are_sent_only_after_the_freeze_and_with_a_webhook(stage: Stage) -> None:
    async def run() -> None:
        receiver = Receiver()
        async with receiver.listening(), stage.running() as laurels:
            await board_with_prizes(laurels, 10)
            stage.clock.now += DAY
            await laurels.jobs.run_due()
            assert await laurels.ledger.outbox.waiting() == 0
            await laurels.webhooks.put("default", receiver.url)
            board = laurels.boards.all()[-1]
            await laurels.submissions.submit_many(board, [Submission("ada", 1)])
            seasons = laurels.ledger.periods
            finish = seasons.finish_freeze

            async def late(*arguments: Any) -> bool:
                # Places and grants are written, but no message is due yet.
                assert await seasons.last_place(arguments[1].id) == arguments[2]
                assert await laurels.ledger.outbox.due(stage.clock.now + DAY, 10) == []
                return await finish(*arguments)

            seasons.finish_freeze = late  # type: ignore[method-assign,assignment]
            stage.clock.now += DAY
            await laurels.jobs.run_due()
            assert [message["type"] for message in receiver.taken].count("rewards.granted") == 1
            # Delivered messages are deleted after a while.
            stage.clock.now += 40 * DAY
            assert await laurels.webhooks.forget() >= 2
            assert await laurels.webhooks.forget() == 0

    asyncio.run(run())


def test_both_secrets_sign_during_the_overlap_of_a_rotation(stage: Stage) -> None:
    async def run() -> None:
        receiver = Receiver()
        async with receiver.listening(), stage.running() as laurels:
            old, _ = await laurels.webhooks.put("default", receiver.url + "/hook")
            new = await laurels.webhooks.rotate("default", 2 * 86_400)
            assert (new.url, new.secret != old.secret) == (old.url, True)
            await board_with_prizes(laurels, 3)
            stage.clock.now += DAY
            await laurels.jobs.run_due()
            overlapping = len(receiver.calls)
            stage.clock.now += 2 * DAY
            await laurels.jobs.run_due()
            assert 0 < overlapping < len(receiver.calls)
            for number, (headers, body, _) in enumerate(receiver.calls):
                secrets = [new.secret, old.secret] if number < overlapping else [new.secret]
                signed = [sign(each, headers["webhook-id"], headers["webhook-timestamp"], body) for each in secrets]
                assert headers["webhook-signature"].split(" ") == signed

    asyncio.run(run())


def test_messages_of_a_removed_webhook_are_dropped(stage: Stage) -> None:
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
            assert await laurels.ledger.outbox.waiting() == 2
            await laurels.webhooks.delete("default")
            assert await laurels.ledger.outbox.waiting() == 0

    asyncio.run(run())


def test_unreachable_receiver_does_not_delay_the_freeze(stage: Stage) -> None:
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


def test_refused_message_does_not_delay_other_messages(stage: Stage) -> None:
    """Each message has its own retry schedule, so one that is always refused does not delay the others."""

    async def run() -> None:
        receiver = Receiver()
        receiver.refused = {"m-default-0"}
        async with receiver.listening(), stage.running() as laurels:
            await laurels.webhooks.put("default", receiver.url)
            outbox = laurels.ledger.outbox
            await outbox.post(post(0))
            for number in range(1, 200):
                await outbox.post(post(number))
                await laurels.webhooks.deliver()
                assert f'{{"n":{number}}}'.encode() in {body for _, body, status in receiver.calls if status < 300}
                stage.clock.now += 60 * SECOND_US
            tries = [status for headers, _, status in receiver.calls if headers["webhook-id"] == "m-default-0"]
            # Within three hours: after 5 s, 10 s, and so on.
            assert 9 <= len(tries) <= 14
            assert await outbox.waiting() == 1
            receiver.refused.clear()
            stage.clock.now += 2 * 3600 * SECOND_US
            await laurels.webhooks.deliver()
            assert await outbox.waiting() == 0

    asyncio.run(run())


def test_failing_receiver_is_not_overloaded_and_does_not_delay_others(stage: Stage) -> None:
    async def run() -> None:
        down, up = Receiver(), Receiver()
        async with down.listening(), up.listening(), stage.running() as laurels:
            await laurels.access.create_pod("other", "Other")
            await laurels.webhooks.put("default", down.url)
            await laurels.webhooks.put("other", up.url)
            down.refused = {f"m-default-{number}" for number in range(500)}
            for number in range(500):
                await laurels.ledger.outbox.post(post(number))
            await laurels.ledger.outbox.post(post(0, "other"))
            for _ in range(60):
                await laurels.webhooks.deliver()
                stage.clock.now += SECOND_US
            assert len(up.taken) == 1
            # A receiver that is down for a minute: a few messages at first, then one after each pause.
            assert 10 <= len(down.calls) < 40
            down.refused.clear()
            stage.clock.now += 3600 * SECOND_US
            for _ in range(20):
                await laurels.webhooks.deliver()
                stage.clock.now += 60 * SECOND_US
            assert len(down.taken) == 500

    asyncio.run(run())
