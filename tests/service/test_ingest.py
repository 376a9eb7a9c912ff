"""Ingestion from a real Kafka, from the record to the rank."""

import asyncio
import json
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from msgspec.structs import replace

from laurels.adapters.kafka.consumer import read_record
from laurels.core.board import Board
from laurels.core.schemas import FieldSource, SchemaState
from laurels.core.scores import Rule
from laurels.errors import LaurelsError, Unavailable
from laurels.ports import KafkaRecord
from laurels.service.laurels import Laurels
from support.kafka import LibrdkafkaBroker, need_kafka
from support.pods import ADMIN, TERMS, Arena, dead, event_of, has, totals, until
from support.services import Stage, differences


def user_of(number: int) -> str:
    return f"user-{number}"


def test_pods_with_different_schemas_are_ingested_including_a_new_pod(arena: Arena) -> None:
    async def run() -> None:
        async with arena.running() as laurels:
            boards = {shape: await arena.make_pod(laurels, shape) for shape in TERMS}
            expected: dict[str, dict[str, float]] = {
                shape: dict.fromkeys(map(user_of, range(7)), 0.0) for shape in TERMS
            }
            for shape, board in boards.items():
                events = [(user_of(n % 7), float(n % 11)) for n in range(200)]
                for user, score in events:
                    expected[shape][user] += score
                arena.game.write(arena.topic(shape), [event_of(shape, user, n, board.uuid) for user, n in events])
            for shape, board in boards.items():
                await until(partial(has, laurels, board, expected[shape]), f"the ranks of {shape}")
            # The consumer notices the topic of a pod that is created later.
            late = await arena.make_pod(laurels, "pod-4")
            await laurels.schemas.put(arena.pods["pod-4"], "7", TERMS["pod-3"], SchemaState.ACTIVE)
            arena.game.write(arena.topic("pod-4"), [event_of("pod-3", "ann", 5, late.uuid)] * 3)
            await until(lambda: has(laurels, late, {"ann": 15.0}), "the ranks of the fourth pod")
            assert await differences(laurels) == []
            # Fields without a mapping become metadata.
            (event, *_) = await laurels.reads.history(laurels.boards.to_read(ADMIN, late.uuid), "ann", None, 1)
            assert json.loads(event.metadata or "") == {"user": {"guild": "owls"}}

    asyncio.run(run())


def test_records_of_two_schema_versions_are_counted_side_by_side(arena: Arena) -> None:
    async def run() -> None:
        async with arena.running() as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            old = [event_of("pod-1", "ann", 1, board.uuid) for _ in range(20)]
            new = [
                {"v": "2.0", "who": "bob", "total": {"points": 2}, "board": board.uuid, "id": f"e{n}"}
                for n in range(20)
            ]
            arena.game.write(arena.topic("pod-1"), old[:10])
            await until(lambda: has(laurels, board, {"ann": 10.0}), "the first events")
            mappings = msgspec.structs.replace(
                TERMS["pod-1"].field_mappings, user_id="who", score="total.points", uuid="board", timestamp=None
            )
            terms = replace(
                TERMS["pod-1"],
                field_mappings=mappings,
                version_from=FieldSource(field="v"),
                event_id_from=FieldSource(field="id"),
            )
            await laurels.schemas.put(arena.pods["pod-1"], "2.0", terms, SchemaState.ACTIVE)
            both = [each for pair in zip(old[10:], new[:10], strict=True) for each in pair]
            arena.game.write(arena.topic("pod-1"), both)
            await until(lambda: has(laurels, board, {"ann": 20.0, "bob": 20.0}), "both")
            # The producer repeats events, which are recognized by their ids.
            arena.game.write(arena.topic("pod-1"), new)
            await until(lambda: has(laurels, board, {"ann": 20.0, "bob": 40.0}), "each once")
            # Records of a retired schema version are refused.
            await laurels.schemas.set_state(arena.pods["pod-1"], "1.0", SchemaState.RETIRED)
            arena.game.write(arena.topic("pod-1"), [old[0]])

            async def is_dead() -> bool:
                return [each["code"] for each in await dead(arena, "pod-1")] == ["schema_mismatch"]

            await until(is_dead, "the dead letter")
            assert (await dead(arena, "pod-1"))[0]["field"] == "v"

    asyncio.run(run())


def test_schema_change_on_one_server_reaches_the_consumer(tmp_path: Path) -> None:
    arena = Arena(Stage("shared", tmp_path))

    async def run() -> None:
        async with arena.running() as consumer, arena.stage.running() as other:
            board = await arena.make_pod(other, "pod-1")
            pod_id = arena.pods["pod-1"]
            await until(lambda: _knows(consumer, pod_id, "1.0", SchemaState.ACTIVE), "the schema")
            await other.schemas.set_state(pod_id, "1.0", SchemaState.DEPRECATED)
            await until(lambda: _knows(consumer, pod_id, "1.0", SchemaState.DEPRECATED), "its state")
            # The consumer reloads before it reports a new board or schema as unknown.
            await other.schemas.put(pod_id, "1.1", TERMS["pod-1"], SchemaState.ACTIVE)
            arena.game.write(arena.topic("pod-1"), [event_of("pod-1", "ann", 1, board.uuid)])
            await until(lambda: has(consumer, board, {"ann": 1.0}), "the score")
            assert await dead(arena, "pod-1") == []

    asyncio.run(run())


async def _knows(laurels: Laurels, pod_id: str, version: str, state: SchemaState) -> bool:
    return laurels.schemas.find(pod_id, version).state is state


ODD: list[Any] = [
    None,
    True,
    -1,
    1e308,
    2**70,
    "",
    "x" * 300,
    [],
    {},
    [[[]]],
    {"a": {"b": None}},
    "\u0000",
    "\U0001f600",
]
WHOLE = [b"null", b"[]", b'""', b"0", b"{}", b'{"a":1}{"b":2}', b"\xef\xbb\xbf{}", b" " * 100, b"", None]


def garbled(rng: random.Random, event: dict[str, Any]) -> bytes | None:
    """Return the event, a damaged copy of it, or arbitrary bytes."""
    value = json.dumps(event).encode()
    spot = rng.randrange(len(value))
    return rng.choice(
        [
            value,
            rng.randbytes(rng.randrange(200)),
            value[:spot],
            value[:spot] + rng.randbytes(rng.randrange(1, 4)) + value[spot + 1 :],
            json.dumps(event | {rng.choice(sorted(event)): rng.choice(ODD)}).encode(),
            json.dumps(event | {"deep": json.loads("[" * 40 + "]" * 40)}).encode(),
            rng.choice(WHOLE),
        ]
    )


def test_every_record_is_either_counted_or_a_dead_letter(arena: Arena) -> None:
    seed = random.randrange(2**32)
    print(f"\nseed {seed}")
    rng = random.Random(seed)

    async def run() -> None:
        async with arena.running(batch=200) as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            records = [garbled(rng, event_of("pod-1", user_of(rng.randrange(9)), 1, board.uuid)) for _ in range(1500)]
            headers = [(rng.choice(["h", "laurels-code", ""]), rng.randbytes(3))]
            arena.game.write(arena.topic("pod-1"), records, headers=headers)

            async def all_ended() -> bool:
                ends = arena.game.committed(f"laurels-{arena.mark}", arena.topic("pod-1"))
                return all(end in {where, 0} for where, end in ends.values())

            await until(all_ended, "the end of every partition")
            buried = Counter(each["value"] for each in await dead(arena, "pod-1"))
            written = Counter(records)
            assert buried <= written
            counted = await laurels.ledger.count_events(board.id)
            assert counted + buried.total() == len(records)
            # Every counted record was a valid event.
            assert all(json.loads(value or b"")["playerId"] for value in written - buried)
            assert await differences(laurels) == []

    asyncio.run(run())


def test_record_that_causes_an_internal_error_does_not_block_others(
    embedded: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            record = laurels.ledger.record

            async def faulty(events: Any, *rest: Any) -> Any:
                if any(event.user_id == "cursed" for event in events):
                    raise ValueError("A fault of ours.")
                return await record(events, *rest)

            monkeypatch.setattr(laurels.ledger, "record", faulty)
            users = ["ann", "cursed", "bob", "cursed", "ann"]
            embedded.game.write(embedded.topic("pod-1"), [event_of("pod-1", user, 1, board.uuid) for user in users])
            await until(lambda: has(laurels, board, {"ann": 2.0, "bob": 1.0}), "the other events")

            async def buried() -> bool:
                return [each["code"] for each in await dead(embedded, "pod-1")] == ["internal"] * 2

            await until(buried, "the dead letters")

    asyncio.run(run())


def test_no_record_is_lost_while_the_ledger_is_unavailable(embedded: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with embedded.running(batch=10) as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            record = laurels.ledger.record
            away = True
            tried = 0

            async def record_or_not(events: Any, *rest: Any) -> Any:
                nonlocal tried
                tried += 1
                if away:
                    raise Unavailable("ledger_unavailable", "Away.")
                return await record(events, *rest)

            monkeypatch.setattr(laurels.ledger, "record", record_or_not)
            embedded.game.write(embedded.topic("pod-1"), [event_of("pod-1", "ann", 1, board.uuid)] * 100)

            async def tried_often() -> bool:
                return tried >= 6

            await until(tried_often, "some attempts")
            assert await totals(laurels, board) == {}
            away = False
            await until(lambda: has(laurels, board, {"ann": 100.0}), "all events")
            assert await dead(embedded, "pod-1") == []

    asyncio.run(run())


def test_extreme_records_do_not_stop_consumption(embedded: Arena) -> None:
    """Times outside the calendar, headers and keys of the maximum size, and a topic name that no pod can have."""
    need_kafka()

    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            topic = embedded.topic("pod-1")
            raw = Producer({"bootstrap.servers": embedded.kafka.servers, "message.max.bytes": 2_000_000})
            raw.produce(topic, b"bad", timestamp=-(10**15))
            raw.produce(topic, json.dumps(event_of("pod-1", "ann", 1, board.uuid)), timestamp=-(10**15))
            raw.produce(topic, b"bad", headers=[("large", b"x" * 1_048_200)])
            raw.produce(topic, b"bad", key=b"k" * 1_048_200)
            long = f"{embedded.topics.prefix}pod-{'x' * 215}-score-updates"
            embedded.game.make_topic(long)
            raw.produce(long, b"bad")
            assert raw.flush(20) == 0
            embedded.game.write(topic, [event_of("pod-1", "ann", 1, board.uuid)])
            await until(lambda: has(laurels, board, {"ann": 2.0}), "the valid records")

            async def buried() -> bool:
                return len(await dead(embedded, "pod-1")) == 3

            await until(buried, "the dead letters")
            letters, _ = await laurels.dead_letters.page(embedded.pods["pod-1"], None, 10)
            assert {each.value_omitted for each in letters} == {False, True}

    asyncio.run(run())


def test_record_with_unreadable_headers_is_refused(embedded: Arena) -> None:
    class Odd:
        """A message with header names that are not UTF-8: librdkafka's client can't return them."""

        def __getattr__(self, name: str) -> Any:
            values = {"topic": "t", "partition": 0, "offset": 1, "key": None, "value": b"{}", "timestamp": (1, 5)}
            if name == "headers":
                raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
            return lambda: values[name]

    async def run() -> None:
        async with embedded.running() as laurels:
            await embedded.make_pod(laurels, "pod-1")
            letter = read_record(Odd())  # type: ignore[arg-type]
            answer, _ = laurels.schemas.read(embedded.pods["pod-1"], letter)
            assert getattr(answer, "code", None) == "invalid_headers"

    asyncio.run(run())


def test_dead_letter_without_its_original_headers_is_not_replayed(
    embedded: Arena,
) -> None:
    """Without its headers it would be read with another schema and count another score."""

    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            letter = KafkaRecord(
                embedded.topic("pod-1"), 0, 7, None, json_event(board.uuid), (), 5_000_000, damaged=True
            )
            (outcome,) = await laurels.intake.count([(pod_id, letter)])
            assert outcome.error is not None
            assert outcome.error.code == "invalid_headers"
            assert await laurels.dead_letters.send_to_dead_letters([outcome]) == ([], "")
            (dead_letter,), _ = await laurels.dead_letters.page(pod_id, None, 10)
            assert dead_letter.record.damaged
            ((_, answer),) = await laurels.dead_letters.replay(pod_id, [dead_letter.letter_id])
            assert getattr(answer, "code", None) == "invalid_headers"
            assert await totals(laurels, board) == {}

    def json_event(uuid: str) -> bytes:
        return msgspec.json.encode(event_of("pod-1", "ann", 1, uuid))

    asyncio.run(run())


def test_dead_letters_that_fit_individually_keep_their_values(embedded: Arena) -> None:
    """The size limit of the dead-letter topic is smaller than the client's batches."""
    if isinstance(embedded.kafka, LibrdkafkaBroker):
        pytest.skip("librdkafka's broker has no topic limits")

    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            embedded.game.make_topic(embedded.topics.dead_letters(pod_id), 1, **{"max.message.bytes": "6000"})
            bad = [b"not json " + bytes([65 + number]) * 2000 for number in range(20)]
            embedded.game.write(embedded.topic("pod-1"), bad, partition=0)
            embedded.game.write(embedded.topic("pod-1"), [event_of("pod-1", "ann", 1, board.uuid)], partition=0)
            await until(lambda: has(laurels, board, {"ann": 1.0}), "the valid record")

            async def buried() -> bool:
                return len(await dead(embedded, "pod-1")) >= 20

            await until(buried, "the dead letters")
            letters, _ = await laurels.dead_letters.page(pod_id, None, 100)
            assert sorted(each.record.value or b"" for each in letters) == sorted(bad)
            assert not any(each.value_omitted for each in letters)

    asyncio.run(run())


def test_record_creates_its_board_from_a_template_of_the_pod(arena: Arena) -> None:
    async def run() -> None:
        async with arena.running() as laurels:
            await arena.make_pod(laurels, "pod-1")
            pod_id = arena.pods["pod-1"]
            definition = Board(id=0, uuid="", pod_id="", name="Match {UUID}", created_at=0, rule=Rule.INCREMENT)
            await laurels.templates.put(pod_id, "match", f"match-{arena.mark}-", definition)
            uuid = f"match-{arena.mark}-7"
            records = [event_of("pod-1", "ann", 2, uuid), event_of("pod-1", "bob", 3, uuid)]
            arena.game.write(arena.topic("pod-1"), [*records, event_of("pod-1", "ann", 1, f"other-{arena.mark}")])

            async def counted() -> bool:
                try:
                    board = laurels.boards.of_pod(pod_id, uuid)
                except LaurelsError:
                    return False
                return await has(laurels, board, {"ann": 2.0, "bob": 3.0}) and len(await dead(arena, "pod-1")) == 1

            await until(counted, "the board and its scores")
            assert laurels.boards.of_pod(pod_id, uuid).name == f"Match {uuid}"
            assert (await dead(arena, "pod-1"))[0]["code"] == "board_not_found"

    asyncio.run(run())
