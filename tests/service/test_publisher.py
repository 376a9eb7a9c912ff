"""Messages that Laurels publishes to Kafka."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from laurels.core.instants import SECOND_US
from laurels.core.rewards import Between, Reward
from laurels.core.windows import ALL_TIME, Window
from laurels.ports import Undelivered
from laurels.service.laurels import Laurels
from laurels.service.publish import publisher
from laurels.service.write.submissions import Submission
from support.kafka import LibrdkafkaBroker
from support.pods import ADMIN, Arena, event_of, until
from support.services import Stage

DAY = 86_400 * SECOND_US


async def told(arena: Arena, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the keys and bodies of a topic's messages, sorted by id."""
    messages = await asyncio.to_thread(arena.game.read, topic)
    found = [((message.key() or b"").decode(), json.loads(message.value() or b"")) for message in messages]
    return sorted(found, key=lambda each: str(each[1]["id"]))


def test_each_accepted_score_is_published(arena: Arena) -> None:
    async def run() -> None:
        async with arena.running() as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            topic = arena.topics.score_changes(arena.pods["pod-1"])
            # Submit through Kafka, and through the call that HTTP uses.
            arena.game.write(arena.topic("pod-1"), [event_of("pod-1", "ann", 2, board.uuid)] * 3 + [b"bad"])
            for number in range(20):
                await laurels.submissions.submit(board, Submission("bob", 5, event_id=f"e{number}", metadata={"n": 1}))
            # A duplicate is not published again.
            await laurels.submissions.submit(board, Submission("bob", 5, event_id="e0", metadata={"n": 1}))

            async def complete() -> bool:
                return len({body["id"] for _, body in await told(arena, topic)}) == 23

            await until(complete, "the score changes")
            bodies = {body["data"]["eventId"]: (key, body) for key, body in await told(arena, topic)}
            assert len(bodies) == 23
            key, body = bodies["e7"]
            assert (key, body["type"]) == ("bob", "score.changed")
            data = body["data"]
            assert (data["UUID"], data["userId"], data["submitted"]) == (board.uuid, "bob", 5.0)
            assert (data["podId"], data["metadata"]) == (arena.pods["pod-1"], {"n": 1})
            (period,) = data["periods"]
            assert (period["window"], period["period"]) == ("all", "all")
            last = max(
                (body for _, body in await told(arena, topic)), key=lambda each: each["data"]["periods"][0]["version"]
            )
            assert last["data"]["periods"][0]["score"] in {6.0, 100.0}

    asyncio.run(run())


def test_publishing_starts_at_the_first_run_and_omits_nothing_after_a_stop(arena: Arena) -> None:
    async def run() -> None:
        async with arena.stage.running() as without:
            board = await arena.make_pod(without, "pod-1")
            await without.submissions.submit(board, Submission("ann", 1, event_id="before"))
        async with arena.running() as laurels:
            await laurels.submissions.submit(
                laurels.boards.to_read(ADMIN, board.uuid), Submission("ann", 1, event_id="a")
            )
        async with arena.stage.running() as without:
            # This server does not publish.
            board = without.boards.to_read(ADMIN, board.uuid)
            await without.submissions.submit(board, Submission("ann", 1, event_id="b"))
        topic = arena.topics.score_changes(arena.pods["pod-1"])
        async with arena.running():

            async def complete() -> bool:
                return {body["data"]["eventId"] for _, body in await told(arena, topic)} >= {"a", "b"}

            await until(complete, "the score changes")
            assert {body["data"]["eventId"] for _, body in await told(arena, topic)} == {"a", "b"}

    asyncio.run(run())


async def end_of_season(arena: Arena, laurels: Laurels) -> tuple[list[Any], list[Any]]:
    """Wait until the end of a period is published; return the period ends and the rewards."""
    pod_id = arena.pods["pod-1"]
    ends = arena.topics.period_ends(pod_id)

    async def complete() -> bool:
        await laurels.jobs.run_due()
        return bool(await told(arena, ends))

    await until(complete, "the end of the period")
    return await told(arena, ends), await told(arena, arena.topics.rewards(pod_id))


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
            assert await laurels.ledger.streams.unpublished_periods(10) == []

    asyncio.run(run())


def test_message_with_uncertain_delivery_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least once: a message whose delivery is in doubt is sent again, with the same id."""
    arena = Arena(Stage("embedded", tmp_path))

    async def run() -> None:
        async with arena.running() as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            topic = arena.topics.score_changes(arena.pods["pod-1"])
            broker: Any = laurels.broker
            send, calls = broker.send, 0

            async def sometimes(letters: Any) -> list[Undelivered | None]:
                nonlocal calls
                calls += 1
                answers: list[Undelivered | None] = await send(letters)
                if calls <= 2 and len(answers) > 1:
                    # Report the last message as undelivered, although it was sent.
                    return [*answers[:-1], Undelivered("Who knows.")]
                return answers

            monkeypatch.setattr(broker, "send", sometimes)
            await asyncio.gather(
                *(laurels.submissions.submit(board, Submission("ann", 1, event_id=f"e{n}")) for n in range(30))
            )

            async def complete() -> bool:
                return len({body["id"] for _, body in await told(arena, topic)}) == 30 and calls > 1

            await until(complete, "all events")

    asyncio.run(run())


def test_pod_with_unwritable_topic_does_not_delay_other_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "LAST_WAIT_S", 0.5)
    arena = Arena(Stage("embedded", tmp_path))

    async def run() -> None:
        async with arena.running() as laurels:
            bad = await arena.make_pod(laurels, "pod-1")
            good = await arena.make_pod(laurels, "pod-2")
            topics = {shape: arena.topics.score_changes(arena.pods[shape]) for shape in ("pod-1", "pod-2")}
            broker: Any = laurels.broker
            send, closed = broker.send, True

            async def refuses(letters: Any) -> list[Undelivered | None]:
                """Refuse the messages of one topic, and send the others."""
                written: list[Undelivered | None] = await send([each for each in letters if not shut(each.topic)])
                answers = iter(written)
                return [Undelivered("Not now.") if shut(each.topic) else next(answers) for each in letters]

            def shut(topic: str) -> bool:
                return closed and topic == topics["pod-1"]

            monkeypatch.setattr(broker, "send", refuses)
            for number in range(30):
                for board in (bad, good):
                    await laurels.submissions.submit(board, Submission("ann", 1, event_id=f"e{number}"))

            async def ids(shape: str) -> set[str]:
                return {body["data"]["eventId"] for _, body in await told(arena, topics[shape])}

            async def is_told(shape: str, *behind: str) -> bool:
                """Return True if all events of a pod are published and exactly these pods are behind."""
                cursors = await laurels.ledger.streams.begin_publishing()
                return len(await ids(shape)) == 30 and list(cursors.behind) == list(behind)

            await until(lambda: is_told("pod-2", arena.pods["pod-1"]), "the score changes of the other pod")
            closed = False
            await until(lambda: is_told("pod-1"), "the score changes of the first pod")
            # Delivered messages are not sent again.
            assert len(await told(arena, topics["pod-2"])) == 30

    asyncio.run(run())


def test_message_too_large_for_its_topic_is_sent_without_metadata(tmp_path: Path) -> None:
    arena = Arena(Stage("embedded", tmp_path))
    if isinstance(arena.kafka, LibrdkafkaBroker):
        pytest.skip("librdkafka's broker has no topic limits")

    async def run() -> None:
        async with arena.running() as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            topic = arena.topics.score_changes(arena.pods["pod-1"])
            arena.game.make_topic(topic, 1, **{"max.message.bytes": "2000"})
            for number in range(20):
                metadata = {"text": "x" * (3000 if number == 7 else 700)}
                await laurels.submissions.submit(board, Submission("ann", 1, event_id=f"e{number}", metadata=metadata))

            async def complete() -> bool:
                return len(await told(arena, topic)) == 20

            await until(complete, "all events")
            omitted = [
                body["data"]["eventId"] for _, body in await told(arena, topic) if "metadataOmitted" in body["data"]
            ]
            assert omitted == ["e7"]

    asyncio.run(run())


def test_deleted_board_does_not_stop_the_others(arena: Arena) -> None:
    async def run() -> None:
        async with arena.stage.running() as without:
            gone = await arena.make_pod(without, "pod-1")
            stays = await arena.make_pod(without, "pod-2")
            await without.ledger.streams.begin_publishing()
            for board in (gone, stays):
                held = without.boards.to_read(ADMIN, board.uuid)
                await without.submissions.submit(held, Submission("ann", 1, event_id="e"))
            await without.deletions.delete(without.boards.to_read(ADMIN, gone.uuid), gone.uuid)
        async with arena.running() as laurels:
            topic = arena.topics.score_changes(arena.pods["pod-2"])

            async def published() -> bool:
                return len(await told(arena, topic)) == 1

            await until(published, "the score of the other board")
            assert laurels.publisher is not None

    asyncio.run(run())
