"""Scores out of a real Kafka: from the record to the rank."""

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

from laurels.adapters.kafka.inbox import read_letter
from laurels.core.schemas import SchemaState, Where
from laurels.errors import Unavailable
from laurels.ports import Letter
from laurels.service.laurels import Laurels
from support.kafka import LibrdkafkaBroker, need_kafka
from support.pods import ADMIN, TERMS, Arena, dead, event_of, has, totals, until
from support.services import Stage, differences


def user_of(number: int) -> str:
    return f"user-{number}"


def test_three_pods_with_three_schemas_and_a_fourth_while_it_runs(arena: Arena) -> None:
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
            # A pod that comes later: its topic is noticed.
            late = await arena.make_pod(laurels, "pod-4")
            await laurels.schemas.put(arena.pods["pod-4"], "7", TERMS["pod-3"], SchemaState.ACTIVE)
            arena.game.write(arena.topic("pod-4"), [event_of("pod-3", "ann", 5, late.uuid)] * 3)
            await until(lambda: has(laurels, late, {"ann": 15.0}), "the ranks of the fourth")
            assert await differences(laurels) == []
            # What no mapping takes is metadata.
            (event, *_) = await laurels.reads.history(laurels.boards.to_read(ADMIN, late.uuid), "ann", None, 1)
            assert json.loads(event.metadata or "") == {"user": {"guild": "owls"}}

    asyncio.run(run())


def test_a_schema_changes_with_both_versions_in_flight(arena: Arena) -> None:
    async def run() -> None:
        async with arena.running() as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            old = [event_of("pod-1", "ann", 1, board.uuid) for _ in range(20)]
            new = [
                {"v": "2.0", "who": "bob", "total": {"points": 2}, "board": board.uuid, "id": f"e{n}"}
                for n in range(20)
            ]
            arena.game.write(arena.topic("pod-1"), old[:10])
            await until(lambda: has(laurels, board, {"ann": 10.0}), "the first ones")
            mappings = msgspec.structs.replace(
                TERMS["pod-1"].field_mappings, user_id="who", score="total.points", uuid="board", timestamp=None
            )
            terms = replace(
                TERMS["pod-1"], field_mappings=mappings, version_from=Where(field="v"), event_id_from=Where(field="id")
            )
            await laurels.schemas.put(arena.pods["pod-1"], "2.0", terms, SchemaState.ACTIVE)
            both = [each for pair in zip(old[10:], new[:10], strict=True) for each in pair]
            arena.game.write(arena.topic("pod-1"), both)
            await until(lambda: has(laurels, board, {"ann": 20.0, "bob": 20.0}), "both")
            # The producer repeats itself: its ids are known.
            arena.game.write(arena.topic("pod-1"), new)
            await until(lambda: has(laurels, board, {"ann": 20.0, "bob": 40.0}), "each once")
            # Nobody may write the old one any more.
            await laurels.schemas.set_state(arena.pods["pod-1"], "1.0", SchemaState.RETIRED)
            arena.game.write(arena.topic("pod-1"), [old[0]])

            async def is_dead() -> bool:
                return [each["code"] for each in dead(arena, "pod-1")] == ["schema_mismatch"]

            await until(is_dead, "the dead letter")
            assert dead(arena, "pod-1")[0]["field"] == "v"

    asyncio.run(run())


def test_a_schema_that_one_server_changes_is_known_to_the_others(tmp_path: Path) -> None:
    arena = Arena(Stage("shared", tmp_path))

    async def run() -> None:
        async with arena.running() as consumer, arena.stage.running() as other:
            board = await arena.make_pod(other, "pod-1")
            pod_id = arena.pods["pod-1"]
            await until(lambda: _knows(consumer, pod_id, "1.0", SchemaState.ACTIVE), "the schema")
            await other.schemas.set_state(pod_id, "1.0", SchemaState.DEPRECATED)
            await until(lambda: _knows(consumer, pod_id, "1.0", SchemaState.DEPRECATED), "its state")
            # What was made a moment ago is looked for before anything is called unknown.
            await other.schemas.put(pod_id, "1.1", TERMS["pod-1"], SchemaState.ACTIVE)
            arena.game.write(arena.topic("pod-1"), [event_of("pod-1", "ann", 1, board.uuid)])
            await until(lambda: has(consumer, board, {"ann": 1.0}), "the score")
            assert dead(arena, "pod-1") == []

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
    """An event, or something that was one, or anything at all."""
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


def test_any_bytes_are_counted_or_dead_and_nothing_is_stuck(arena: Arena) -> None:
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
            buried = Counter(each["value"] for each in dead(arena, "pod-1"))
            written = Counter(records)
            assert buried <= written
            counted = await laurels._ledger.count_events(board.id)
            assert counted + buried.total() == len(records)
            # Who is counted was an event; whatever was an event is counted.
            assert all(json.loads(value or b"")["playerId"] for value in written - buried)
            assert await differences(laurels) == []

    asyncio.run(run())


def test_a_fault_of_one_letter_keeps_nobody_else(embedded: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            record = laurels._ledger.record

            async def faulty(events: Any, *rest: Any) -> Any:
                if any(event.user_id == "cursed" for event in events):
                    raise ValueError("A fault of ours.")
                return await record(events, *rest)

            monkeypatch.setattr(laurels._ledger, "record", faulty)
            users = ["ann", "cursed", "bob", "cursed", "ann"]
            embedded.game.write(embedded.topic("pod-1"), [event_of("pod-1", user, 1, board.uuid) for user in users])
            await until(lambda: has(laurels, board, {"ann": 2.0, "bob": 1.0}), "the others")

            async def buried() -> bool:
                return [each["code"] for each in dead(embedded, "pod-1")] == ["internal"] * 2

            await until(buried, "the faulty ones")

    asyncio.run(run())


def test_while_the_ledger_is_away_nothing_is_spooled_or_lost(embedded: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with embedded.running(batch=10) as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            record = laurels._ledger.record
            away = True
            tried = 0

            async def record_or_not(events: Any, *rest: Any) -> Any:
                nonlocal tried
                tried += 1
                if away:
                    raise Unavailable("ledger_unavailable", "Away.")
                return await record(events, *rest)

            monkeypatch.setattr(laurels._ledger, "record", record_or_not)
            embedded.game.write(embedded.topic("pod-1"), [event_of("pod-1", "ann", 1, board.uuid)] * 100)

            async def tried_often() -> bool:
                return tried >= 6

            await until(tried_often, "some tries")
            assert await totals(laurels, board) == {}
            away = False
            await until(lambda: has(laurels, board, {"ann": 100.0}), "all of them")
            assert dead(embedded, "pod-1") == []

    asyncio.run(run())


def test_odd_records_stop_nobody(embedded: Arena) -> None:
    """Times that no calendar has, headers as large as a record may be, and topics that no pod could have."""
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
            await until(lambda: has(laurels, board, {"ann": 2.0}), "the good ones")

            async def buried() -> bool:
                return len(dead(embedded, "pod-1")) == 3

            await until(buried, "the bad ones")
            letters, _ = await laurels.dead_letters.page(embedded.pods["pod-1"], None, 10)
            assert {each.value_omitted for each in letters} == {False, True}

    asyncio.run(run())


def test_a_record_whose_headers_cannot_be_read_is_dead(embedded: Arena) -> None:
    class Odd:
        """librdkafka's client can't give headers whose names are no UTF-8."""

        def __getattr__(self, name: str) -> Any:
            values = {"topic": "t", "partition": 0, "offset": 1, "key": None, "value": b"{}", "timestamp": (1, 5)}
            if name == "headers":
                raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
            return lambda: values[name]

    async def run() -> None:
        async with embedded.running() as laurels:
            await embedded.make_pod(laurels, "pod-1")
            letter = read_letter(Odd())  # type: ignore[arg-type]
            answer, _ = laurels.schemas.read(embedded.pods["pod-1"], letter)
            assert getattr(answer, "code", None) == "invalid_headers"

    asyncio.run(run())


def test_a_dead_letter_that_lost_its_headers_is_not_replayed_without_them(
    embedded: Arena,
) -> None:
    """Without them it would be read with another schema, and count another score."""

    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            letter = Letter(embedded.topic("pod-1"), 0, 7, None, json_event(board.uuid), (), 5_000_000, damaged=True)
            (outcome,) = await laurels.dead_letters._intake.count([(pod_id, letter)])
            assert outcome.error is not None
            assert outcome.error.code == "invalid_headers"
            assert await laurels.dead_letters.bury([outcome]) == ([], "")
            (dead_letter,), _ = await laurels.dead_letters.page(pod_id, None, 10)
            assert dead_letter.letter.damaged
            ((_, answer),) = await laurels.dead_letters.replay(pod_id, [dead_letter.place])
            assert getattr(answer, "code", None) == "invalid_headers"
            assert await totals(laurels, board) == {}

    def json_event(uuid: str) -> bytes:
        return msgspec.json.encode(event_of("pod-1", "ann", 1, uuid))

    asyncio.run(run())


def test_dead_letters_that_fit_alone_keep_their_values(embedded: Arena) -> None:
    """The topic for them takes less at once than the client sends together."""
    if isinstance(embedded.kafka, LibrdkafkaBroker):
        pytest.skip("librdkafka's broker has no limits of topics")

    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            embedded.game.make_topic(embedded.topics.dead_letters(pod_id), 1, **{"max.message.bytes": "6000"})
            bad = [b"not json " + bytes([65 + number]) * 2000 for number in range(20)]
            embedded.game.write(embedded.topic("pod-1"), bad, partition=0)
            embedded.game.write(embedded.topic("pod-1"), [event_of("pod-1", "ann", 1, board.uuid)], partition=0)
            await until(lambda: has(laurels, board, {"ann": 1.0}), "the good one")

            async def buried() -> bool:
                return len(dead(embedded, "pod-1")) >= 20

            await until(buried, "the bad ones")
            letters, _ = await laurels.dead_letters.page(pod_id, None, 100)
            assert sorted(each.letter.value or b"" for each in letters) == sorted(bad)
            assert not any(each.value_omitted for each in letters)

    asyncio.run(run())
