"""What other services are told through Kafka."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from laurels.adapters.kafka import KafkaBroker
from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.rewards import Between, Reward
from laurels.core.windows import ALL_TIME, Window
from laurels.ports import Undelivered
from laurels.service.laurels import Laurels
from laurels.service.submit import Submission
from support.kafka import need_kafka
from support.pods import ADMIN, Arena, event_of, until
from support.services import Stage
from support.waiting import until_async, until_so

DAY = 86_400 * SECOND_US


def test_a_pod_that_can_not_be_told_holds_up_nobody(arena: Arena) -> None:
    """It hears of all of it later, also from a server that was started since."""
    need_kafka()

    class Narrow(KafkaBroker):
        closed = True

        async def send(self, letters: Any) -> list[Undelivered | None]:
            fine = [each for each in letters if not (self.closed and arena.pods["pod-2"] in each.topic)]
            sent = iter(await super().send(fine))
            return [next(sent) if each in fine else Undelivered("Not allowed.") for each in letters]

    def heard(shape: str) -> set[str]:
        topic = arena.topics.score_changes(arena.pods[shape])
        return {body["data"]["eventId"] for _, body in told(arena, topic)}

    async def submit(laurels: Laurels, board: Board, first: int) -> set[str]:
        events = {f"e{number}" for number in range(first, first + 20)}
        for event_id in sorted(events):
            held = laurels.boards.to_read(ADMIN, board.uuid)
            await laurels.submissions.submit(held, Submission("ann", 1, event_id=event_id))
        return events

    async def run() -> None:
        async with arena.running(broker=Narrow(arena.kafka.servers, {})) as laurels:
            windows = (Window("daily", "UTC"), ALL_TIME)
            boards = {shape: await arena.make_pod(laurels, shape, windows=windows) for shape in ("pod-2", "pod-1")}
            for board in boards.values():
                await submit(laurels, board, 0)
            await until_so(lambda: len(heard("pod-1")) == 20, "those of the other pod")

            async def is_said() -> bool:
                (last,) = [run for run in await laurels.jobs.runs() if run.name == "publish"]
                return "-score-changes: Not allowed." in (last.error or "")

            await until_async(is_said, "the reason")
            assert set(await laurels._ledger.streams.owed()) == {arena.pods["pod-2"]}
            day = laurels.boards.to_read(ADMIN, boards["pod-1"].uuid).current_period("daily", arena.stage.clock.now)
            assert day is not None
            assert day.end is not None
            arena.stage.clock.now = day.end + 120 * SECOND_US
            ended, _ = await end_of_season(arena, laurels)
            assert [key for key, _ in ended] == [boards["pod-1"].uuid]
        broker = Narrow(arena.kafka.servers, {})
        async with arena.running(broker=broker) as laurels:
            for board in boards.values():
                await submit(laurels, board, 20)
            await until_so(lambda: len(heard("pod-1")) == 40, "those of the other pod")
            assert heard("pod-2") == set()
            broker.closed = False
            await until_so(lambda: len(heard("pod-2")) == 40, "what it is owed")

            async def is_even() -> bool:
                ends = told(arena, arena.topics.period_ends(arena.pods["pod-2"]))
                return bool(ends) and await laurels._ledger.streams.owed() == {}

            await until_async(is_even, "the end of the period")
            await submit(laurels, laurels.boards.to_read(ADMIN, boards["pod-2"].uuid), 40)
            await until_so(lambda: len(heard("pod-2")) == 60, "what comes then")

    asyncio.run(run())


def told(arena: Arena, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Keys and bodies, by id."""
    found = [
        ((message.key() or b"").decode(), json.loads(message.value() or b"")) for message in arena.game.read(topic)
    ]
    return sorted(found, key=lambda each: str(each[1]["id"]))


def test_each_accepted_score_is_published(arena: Arena) -> None:
    async def run() -> None:
        async with arena.running() as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            topic = arena.topics.score_changes(arena.pods["pod-1"])
            # By Kafka, and by the same call that HTTP makes.
            arena.game.write(arena.topic("pod-1"), [event_of("pod-1", "ann", 2, board.uuid)] * 3 + [b"bad"])
            for number in range(20):
                await laurels.submissions.submit(board, Submission("bob", 5, event_id=f"e{number}", metadata={"n": 1}))
            # One that was there before is not told again.
            await laurels.submissions.submit(board, Submission("bob", 5, event_id="e0", metadata={"n": 1}))

            async def complete() -> bool:
                return len({body["id"] for _, body in told(arena, topic)}) == 23

            await until(complete, "the score changes")
            bodies = {body["data"]["eventId"]: (key, body) for key, body in told(arena, topic)}
            assert len(bodies) == 23
            key, body = bodies["e7"]
            assert (key, body["type"]) == ("bob", "score.changed")
            data = body["data"]
            assert (data["UUID"], data["userId"], data["submitted"]) == (board.uuid, "bob", 5.0)
            assert (data["podId"], data["metadata"]) == (arena.pods["pod-1"], {"n": 1})
            (period,) = data["periods"]
            assert (period["window"], period["period"]) == ("all", "all")
            last = max((body for _, body in told(arena, topic)), key=lambda each: each["data"]["periods"][0]["version"])
            assert last["data"]["periods"][0]["score"] in {6.0, 100.0}

    asyncio.run(run())


def test_what_was_before_is_not_told_and_nothing_is_left_out_after_a_stop(arena: Arena) -> None:
    async def run() -> None:
        async with arena.stage.running() as without:
            board = await arena.make_pod(without, "pod-1")
            await without.submissions.submit(board, Submission("ann", 1, event_id="before"))
        async with arena.running() as laurels:
            await laurels.submissions.submit(
                laurels.boards.to_read(ADMIN, board.uuid), Submission("ann", 1, event_id="a")
            )
        async with arena.stage.running() as without:
            # Nobody tells Kafka meanwhile.
            board = without.boards.to_read(ADMIN, board.uuid)
            await without.submissions.submit(board, Submission("ann", 1, event_id="b"))
        topic = arena.topics.score_changes(arena.pods["pod-1"])
        async with arena.running():

            async def complete() -> bool:
                return {body["data"]["eventId"] for _, body in told(arena, topic)} >= {"a", "b"}

            await until(complete, "the score changes")
            assert {body["data"]["eventId"] for _, body in told(arena, topic)} == {"a", "b"}

    asyncio.run(run())


async def end_of_season(arena: Arena, laurels: Laurels) -> tuple[list[Any], list[Any]]:
    """What is told of a day that ends, once it is."""
    pod_id = arena.pods["pod-1"]
    ends = arena.topics.period_ends(pod_id)

    async def complete() -> bool:
        await laurels.jobs.run_due()
        return bool(told(arena, ends))

    await until(complete, "the end of the period")
    return told(arena, ends), told(arena, arena.topics.rewards(pod_id))


def test_period_ends_and_rewards_are_published(arena: Arena) -> None:
    async def run() -> None:
        async with arena.running() as laurels:
            rewards = (Reward("gold", {"coins": 100}, ranks=Between(1, 2)),)
            windows = (Window("daily", "UTC"), ALL_TIME)
            board = await arena.make_pod(laurels, "pod-1", windows=windows, rewards=rewards)
            for number in range(5):
                await laurels.submissions.submit(board, Submission(f"u{number}", number))
            name = laurels.boards.to_read(ADMIN, board.uuid).current_period("daily", arena.stage.clock.now)
            assert name is not None
            assert name.end is not None
            arena.stage.clock.now = name.end + 120 * SECOND_US
            ended, granted = await end_of_season(arena, laurels)
            (key, body), *more = ended
            assert more == []
            assert (key, body["type"]) == (board.uuid, "period.frozen")
            assert (body["data"]["period"], body["data"]["totalUsers"]) == (name.name, 5)
            assert [
                (key, body["data"]["userId"], body["data"]["rank"], body["data"]["prize"]) for key, body in granted
            ] == [
                ("u4", "u4", 1, {"coins": 100}),
                ("u3", "u3", 2, {"coins": 100}),
            ]
            assert await laurels._ledger.streams.unpublished_periods(0, 10) == []

    asyncio.run(run())


def test_while_kafka_is_away_nothing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least once: what was sent and not noted is sent again, with the same id."""
    arena = Arena(Stage("embedded", tmp_path))

    async def run() -> None:
        async with arena.running() as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            topic = arena.topics.score_changes(arena.pods["pod-1"])
            broker: Any = laurels._broker
            send, calls = broker.send, 0

            async def sometimes(letters: Any) -> list[Undelivered | None]:
                nonlocal calls
                calls += 1
                answers: list[Undelivered | None] = await send(letters)
                if calls <= 2 and len(answers) > 1:
                    # The last one did not get there, or so it seems.
                    return [*answers[:-1], Undelivered("Who knows.")]
                return answers

            monkeypatch.setattr(broker, "send", sometimes)
            await asyncio.gather(
                *(laurels.submissions.submit(board, Submission("ann", 1, event_id=f"e{n}")) for n in range(30))
            )

            async def complete() -> bool:
                return len({body["id"] for _, body in told(arena, topic)}) == 30 and calls > 1

            await until(complete, "all of them")

    asyncio.run(run())
