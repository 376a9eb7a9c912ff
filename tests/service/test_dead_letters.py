"""Dead letters: records from Kafka that could not be counted, their reasons, topics and replays."""

import asyncio
import json
from functools import partial
from typing import Any

from msgspec.structs import replace
from prometheus_client import REGISTRY

from laurels.adapters.kafka import KafkaBroker
from laurels.core.schemas import SchemaState
from laurels.ports import OutgoingRecord, Undelivered
from laurels.service.laurels import Laurels
from support.kafka import need_kafka
from support.pods import ADMIN, TERMS, Arena, dead, event_of, has, totals, until
from support.services import differences


def test_invalid_record_becomes_a_dead_letter_with_its_reason(arena: Arena) -> None:
    async def run() -> None:
        async with arena.running() as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            other = await arena.make_pod(laurels, "pod-2")
            good = event_of("pod-1", "ann", 1, board.uuid)
            ahead = "2999-01-01T00:00:00Z"
            bad: list[tuple[bytes, str, str]] = [
                (b"\x00\xffnot json", "invalid_json", ""),
                (b"[1, 2]", "not_an_object", ""),
                (json.dumps(good | {"x": "y" * 70_000}).encode(), "record_too_large", ""),
                (json.dumps(good | {"x": "y" * 5_000}).encode(), "metadata_too_large", "metadata"),
                (json.dumps(good | {"leaderboardUuid": "nowhere"}).encode(), "board_not_found", "UUID"),
                (json.dumps(good | {"leaderboardUuid": other.uuid}).encode(), "wrong_pod", "UUID"),
                (json.dumps({**good, "points": None}).encode(), "schema_mismatch", "points"),
                (json.dumps(good | {"points": "many"}).encode(), "invalid_score", "points"),
                (json.dumps(good | {"gameTime": "soon"}).encode(), "invalid_timestamp", "gameTime"),
                (
                    json.dumps(good | {"gameTime": ahead}).encode(),
                    "timestamp_out_of_range",
                    "timestamp",
                ),
                (json.dumps(good | {"playerId": "a\u0000b"}).encode(), "wrong_format", "playerId"),
            ]
            arena.game.write(arena.topic("pod-1"), [value for value, _, _ in bad], headers=[("trace", b"t-1")])
            arena.game.write(arena.topic("pod-1"), [good])
            # A topic of a pod that does not exist.
            arena.pods["nobody"] = "nobody"
            arena.game.make_topic(arena.topic("nobody"))
            arena.game.write(arena.topic("nobody"), [good])
            await until(lambda: has(laurels, board, {"ann": 1.0}), "the valid record")

            async def all_dead() -> bool:
                return len(await dead(arena, "pod-1")) == len(bad) and len(await dead(arena, "nobody")) == 1

            await until(all_dead, "the dead letters")
            found = {each["value"]: each for each in await dead(arena, "pod-1")}
            for value, code, field in bad:
                letter = found[value]
                assert (letter["code"], letter.get("field", "")) == (code, field), letter
                assert letter["topic"] == arena.topic("pod-1")
                assert letter["partition"].isdigit()
                assert letter["offset"].isdigit()
                assert letter["reason"]
                assert letter["trace"] == "t-1"
            assert found[bad[6][0]]["schema-version"] == "1.0"
            assert (await dead(arena, "nobody"))[0]["code"] == "pod_not_found"

    asyncio.run(run())


def test_replay_after_a_schema_fix_counts_each_record_once(arena: Arena) -> None:
    async def run() -> None:
        async with arena.running() as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            pod_id = arena.pods["pod-1"]
            terms = TERMS["pod-1"]
            typo = replace(terms, field_mappings=replace(terms.field_mappings, score="pionts"))
            await laurels.schemas.put(pod_id, "1.0", typo, SchemaState.ACTIVE)
            arena.game.write(arena.topic("pod-1"), [event_of("pod-1", f"u{n % 3}", 2, board.uuid) for n in range(30)])

            async def all_dead() -> bool:
                return len(await dead(arena, "pod-1")) == 30

            await until(all_dead, "the dead letters")
            letters, more = await laurels.dead_letters.page(pod_id, None, 500)
            assert (len(letters), more) == (30, {})
            assert {(each.code, each.field, each.schema_version) for each in letters} == {
                ("schema_mismatch", "pionts", "1.0")
            }
            places = [each.letter_id for each in letters]
            results = await laurels.dead_letters.replay(pod_id, places)
            assert all(isinstance(answer, Exception) for _, answer in results)
            # A discarded one can still be replayed.
            assert await laurels.dead_letters.discard(pod_id, places[:2], "test data") == 2
            assert await laurels.dead_letters.discard(pod_id, places[:3], "again") == 1
            letters, _ = await laurels.dead_letters.page(pod_id, None, 500)
            noted = [(each.replay.outcome, each.replay.reason) for each in letters[:4] if each.replay]
            assert noted == [("discarded", "test data"), ("discarded", "test data"), ("discarded", "again")]
            await laurels.schemas.put(pod_id, "1.0", terms, SchemaState.ACTIVE)
            # Replay twice concurrently, and once more.
            await asyncio.gather(*(laurels.dead_letters.replay(pod_id, places) for _ in range(2)))
            await laurels.dead_letters.replay(pod_id, places)
            assert await totals(laurels, board) == {f"u{n}": 20.0 for n in range(3)}
            letters, _ = await laurels.dead_letters.page(pod_id, None, 500)
            assert all(each.replay is not None for each in letters)
            assert {(each.replay.outcome, each.replay.reason) for each in letters if each.replay} <= {
                ("accepted", None),
                ("duplicate", None),
            }
            assert await laurels.dead_letters.discard(pod_id, places, "too late") == 0
            assert await differences(laurels) == []

    asyncio.run(run())


def test_dead_letters_are_returned_in_pages(embedded: Arena) -> None:
    async def run() -> None:
        async with embedded.running() as laurels:
            await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            embedded.game.write(embedded.topic("pod-1"), [f"bad {n}".encode() for n in range(57)])

            async def all_dead() -> bool:
                return len(await dead(embedded, "pod-1")) == 57

            await until(all_dead, "the dead letters")
            seen: list[bytes | None] = []
            ends: dict[int, int] | None = None
            pages = 0
            while ends is None or ends:
                letters, ends = await laurels.dead_letters.page(pod_id, ends, 10)
                assert len(letters) <= 10
                seen += [each.record.value for each in letters]
                pages += 1
            assert sorted(each or b"" for each in seen) == sorted(f"bad {n}".encode() for n in range(57))
            assert pages >= 6
            one = await laurels.dead_letters.find(pod_id, letters[0].letter_id if letters else "0-0")
            assert one.code == "invalid_json"

    asyncio.run(run())


class Deaf(KafkaBroker):
    """A broker that delivers nothing while `deaf` is set."""

    deaf = False

    async def send(self, letters: Any) -> list[Undelivered | None]:
        if self.deaf:
            return [Undelivered("It is deaf.") for _ in letters]
        return await super().send(letters)


def test_no_offset_is_committed_while_dead_letters_cannot_be_written(embedded: Arena) -> None:
    """Consumption stops, reports it in a metric, and continues when dead letters can be written."""

    async def run() -> None:
        broker = Deaf(embedded.kafka.servers, {"session.timeout.ms": "6000"})
        broker.deaf = True
        async with embedded.running(broker=broker) as laurels:
            board = await embedded.make_pod(laurels, "pod-1", topic=False)
            embedded.game.make_topic(embedded.topic("pod-1"), 1)
            await until(lambda: _joined(laurels), "the consumer")
            embedded.game.write(embedded.topic("pod-1"), [b"bad"])
            embedded.game.write(embedded.topic("pod-1"), [event_of("pod-1", "ann", 1, board.uuid)])

            async def stopped() -> bool:
                return bool(REGISTRY.get_sample_value("laurels_ingest_stopped"))

            await until(stopped, "the stop")
        # The next consumer reads the bad record again, because its offset was not committed.
        assert broker.deaf
        async with embedded.running() as laurels:
            board = laurels.boards.to_read(ADMIN, board.uuid)

            async def buried() -> bool:
                return bool(await dead(embedded, "pod-1"))

            await until(buried, "the dead letter")
            assert await totals(laurels, board) == {"ann": 1.0}
            (letter,) = await dead(embedded, "pod-1")
            assert (letter["value"], letter["offset"]) == (b"bad", "0")

    asyncio.run(run())


async def _joined(laurels: Laurels) -> bool:
    return laurels.consumer is not None and laurels.consumer.is_running


def test_many_dead_letters_raise_an_alert(embedded: Arena) -> None:
    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            await laurels.webhooks.put(pod_id, "http://127.0.0.1:9/nobody")
            good = [event_of("pod-1", "ann", 1, board.uuid)]
            embedded.game.write(embedded.topic("pod-1"), [*good * 30, b"bad", *good * 9])
            await until(lambda: has(laurels, board, {"ann": 39.0}), "the valid records")
            assert not _is_alerted(pod_id)
            embedded.game.write(embedded.topic("pod-1"), [b"bad"] * 10)

            async def alert() -> bool:
                return _is_alerted(pod_id)

            await until(alert, "the alert")

            async def told() -> bool:
                waiting = await laurels.ledger.outbox.due(2**62, 10)
                return [each.kind for each in waiting] == ["dead_letters.high"]

            await until(told, "the message to the webhook")
            # The alert ends with the minute.
            embedded.stage.clock.now += 61_000_000
            embedded.game.write(embedded.topic("pod-1"), good)

            async def over() -> bool:
                return not await alert()

            await until(over, "the end of the alert")

    asyncio.run(run())


def test_record_of_an_unknown_pod_tells_the_operator_once(embedded: Arena) -> None:
    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            await laurels.webhooks.put("default", "http://127.0.0.1:9/operator")
            stranger = f"stranger-{embedded.mark}"
            embedded.pods[stranger] = stranger
            embedded.game.make_topic(embedded.topic(stranger))
            before = _metric("laurels_unknown_pod_records_total")
            for _ in range(3):
                embedded.game.write(embedded.topic(stranger), [event_of("pod-1", "ann", 1, board.uuid)])

            async def told() -> bool:
                all_counted = _metric("laurels_unknown_pod_records_total") == before + 3
                return all_counted and bool(await laurels.ledger.outbox.due(2**62, 10))

            await until(told, "all records, and the message")
            messages = await laurels.ledger.outbox.due(2**62, 10)
            assert [(each.pod_id, each.kind) for each in messages] == [("default", "pod.unknown")]
            assert json.loads(messages[0].body)["data"]["podId"] == stranger

    asyncio.run(run())


def _metric(name: str) -> float:
    return REGISTRY.get_sample_value(name) or 0.0


def test_dead_letter_of_an_oversized_record_omits_its_value(embedded: Arena) -> None:
    """With our headers the record exceeds the broker's limit, so the dead letter only says where the record is."""

    async def run() -> None:
        class Narrow(KafkaBroker):
            async def send(self, letters: Any) -> list[Undelivered | None]:
                small = [each for each in letters if len(each.value or b"") < 1000]
                sent = iter(await super().send(small))
                return [next(sent) if each in small else Undelivered("Too large.", too_large=True) for each in letters]

        async with embedded.running(broker=Narrow(embedded.kafka.servers, {})) as laurels:
            await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            embedded.game.write(embedded.topic("pod-1"), [b"x" * 2000, b"small"])

            async def both() -> bool:
                return len(await dead(embedded, "pod-1")) == 2

            await until(both, "the dead letters")
            letters, _ = await laurels.dead_letters.page(pod_id, None, 10)
            assert sorted(each.value_omitted for each in letters) == [False, True]
            large = next(each for each in letters if each.value_omitted)
            ((_, answer),) = await laurels.dead_letters.replay(pod_id, [large.letter_id])
            assert getattr(answer, "code", None) == "record_too_large"

    asyncio.run(run())


def test_written_dead_letters_are_not_written_again(embedded: Arena) -> None:
    """Even if others of the same batch can't be written. A deleted topic is created again."""
    need_kafka()

    class Narrow(KafkaBroker):
        closed = True

        async def send(self, letters: Any) -> list[Undelivered | None]:
            fine = [each for each in letters if not (self.closed and "pod-2" in each.topic)]
            sent = iter(await super().send(fine))
            return [next(sent) if each in fine else Undelivered("Not now.") for each in letters]

    async def run() -> None:
        broker = Narrow(embedded.kafka.servers, {})
        async with embedded.running(broker=broker) as laurels:
            for shape in ("pod-1", "pod-2"):
                await embedded.make_pod(laurels, shape)
            for shape in ("pod-1", "pod-2"):
                embedded.game.write(embedded.topic(shape), [b"bad"] * 20)
            await until(partial(_stopped), "the stop")
            await asyncio.sleep(1)
            assert len(await dead(embedded, "pod-1")) <= 20
            broker.closed = False

            async def complete() -> bool:
                return [len(await dead(embedded, shape)) for shape in ("pod-1", "pod-2")] == [20, 20]

            await until(complete, "the dead letters")
            embedded.game.remove_topic(embedded.topics.dead_letters(embedded.pods["pod-1"]))
            embedded.game.write(embedded.topic("pod-1"), [b"bad"] * 3)

            async def made_again() -> bool:
                return len(await dead(embedded, "pod-1")) == 3

            await until(made_again, "the topic")

    asyncio.run(run())


async def _stopped() -> bool:
    return bool(REGISTRY.get_sample_value("laurels_ingest_stopped"))


def test_foreign_records_in_the_dead_letter_topic_are_listed(embedded: Arena) -> None:
    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            value = json.dumps(event_of("pod-1", "ann", 1, board.uuid)).encode()
            alien = OutgoingRecord(embedded.topics.dead_letters(pod_id), None, value)
            assert await laurels.broker.send([alien]) == [None]  # type: ignore[union-attr]
            (letter,), _ = await laurels.dead_letters.page(pod_id, None, 10)
            assert letter.reason == "Laurels did not write this record."
            await laurels.dead_letters.replay(pod_id, [letter.letter_id])
            assert await totals(laurels, board) == {"ann": 1.0}

    asyncio.run(run())


def _is_alerted(pod_id: str) -> bool:
    return bool(REGISTRY.get_sample_value("laurels_dead_letter_alert", {"pod": pod_id}))
