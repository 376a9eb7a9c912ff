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

from laurels.adapters.kafka import KafkaBroker
from laurels.adapters.kafka.inbox import read_letter
from laurels.core.board import Board
from laurels.core.schemas import SchemaState, Where
from laurels.errors import Unavailable
from laurels.metrics import DEAD_LETTER_ALERT, INGEST_STOPPED
from laurels.ports import Outgoing, Undelivered
from laurels.service.laurels import Laurels
from support.kafka import need_kafka
from support.pods import ADMIN, TERMS, Arena, event_of, told_by, totals, until
from support.services import Stage


@pytest.fixture(params=["embedded", "shared"])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Arena:
    return Arena(Stage(request.param, tmp_path))


@pytest.fixture
def embedded(tmp_path: Path) -> Arena:
    return Arena(Stage("embedded", tmp_path))


async def differences(laurels: Laurels) -> list[Any]:
    return [each async for checked in laurels.verify() for each in checked.differences]


def user_of(number: int) -> str:
    return f"user-{number}"


async def has(laurels: Laurels, board: Board, expected: dict[str, float]) -> bool:
    return await totals(laurels, board) == expected


def dead(arena: Arena, shape: str) -> list[dict[str, Any]]:
    """The dead letters of a pod: what our headers say, and the value."""
    letters = arena.game.read(arena.topics.dead_letters(arena.pods[shape]))
    return [told_by(message) | {"value": message.value()} for message in letters]


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


def test_what_cannot_be_counted_is_a_dead_letter_with_its_reason(arena: Arena) -> None:
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
            # A topic of a pod that nobody made.
            arena.pods["nobody"] = "nobody"
            arena.game.make_topic(arena.topic("nobody"))
            arena.game.write(arena.topic("nobody"), [good])
            await until(lambda: has(laurels, board, {"ann": 1.0}), "the good one")

            async def all_dead() -> bool:
                return len(dead(arena, "pod-1")) == len(bad) and len(dead(arena, "nobody")) == 1

            await until(all_dead, "the dead letters")
            found = {each["value"]: each for each in dead(arena, "pod-1")}
            for value, code, field in bad:
                letter = found[value]
                assert (letter["code"], letter.get("field", "")) == (code, field), letter
                assert letter["topic"] == arena.topic("pod-1")
                assert letter["partition"].isdigit()
                assert letter["offset"].isdigit()
                assert letter["reason"]
                assert letter["trace"] == "t-1"
            assert found[bad[6][0]]["schema-version"] == "1.0"
            assert dead(arena, "nobody")[0]["code"] == "pod_not_found"

    asyncio.run(run())


def test_a_replay_after_a_schema_fix_counts_each_once(arena: Arena) -> None:
    async def run() -> None:
        async with arena.running() as laurels:
            board = await arena.make_pod(laurels, "pod-1")
            pod_id = arena.pods["pod-1"]
            terms = TERMS["pod-1"]
            typo = replace(terms, field_mappings=replace(terms.field_mappings, score="pionts"))
            await laurels.schemas.put(pod_id, "1.0", typo, SchemaState.ACTIVE)
            arena.game.write(arena.topic("pod-1"), [event_of("pod-1", f"u{n % 3}", 2, board.uuid) for n in range(30)])

            async def all_dead() -> bool:
                return len(dead(arena, "pod-1")) == 30

            await until(all_dead, "the dead letters")
            letters, more = await laurels.dead_letters.page(pod_id, None, 500)
            assert (len(letters), more) == (30, {})
            assert {(each.code, each.field, each.schema_version) for each in letters} == {
                ("schema_mismatch", "pionts", "1.0")
            }
            places = [each.place for each in letters]
            results = await laurels.dead_letters.replay(pod_id, places)
            assert all(isinstance(answer, Exception) for _, answer in results)
            await laurels.schemas.put(pod_id, "1.0", terms, SchemaState.ACTIVE)
            # Twice at once, and once more.
            await asyncio.gather(*(laurels.dead_letters.replay(pod_id, places) for _ in range(2)))
            await laurels.dead_letters.replay(pod_id, places)
            assert await totals(laurels, board) == {f"u{n}": 20.0 for n in range(3)}
            letters, _ = await laurels.dead_letters.page(pod_id, None, 500)
            assert all(each.replay is not None for each in letters)
            assert await differences(laurels) == []

    asyncio.run(run())


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


def test_dead_letters_are_given_page_by_page(embedded: Arena) -> None:
    async def run() -> None:
        async with embedded.running() as laurels:
            await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            embedded.game.write(embedded.topic("pod-1"), [f"bad {n}".encode() for n in range(57)])

            async def all_dead() -> bool:
                return len(dead(embedded, "pod-1")) == 57

            await until(all_dead, "the dead letters")
            seen: list[bytes | None] = []
            ends: dict[int, int] | None = None
            pages = 0
            while ends is None or ends:
                letters, ends = await laurels.dead_letters.page(pod_id, ends, 10)
                assert len(letters) <= 10
                seen += [each.letter.value for each in letters]
                pages += 1
            assert sorted(each or b"" for each in seen) == sorted(f"bad {n}".encode() for n in range(57))
            assert pages >= 6
            one = await laurels.dead_letters.find(pod_id, letters[0].place if letters else "0-0")
            assert one.code == "invalid_json"

    asyncio.run(run())


class Deaf(KafkaBroker):
    """A Kafka that takes no letters while it is deaf."""

    deaf = False

    async def send(self, letters: Any) -> list[Undelivered | None]:
        if self.deaf:
            return [Undelivered("It is deaf.") for _ in letters]
        return await super().send(letters)


def test_without_dead_letters_nothing_is_committed(embedded: Arena) -> None:
    """Consumption stops, says so, and goes on when they can be written."""

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
                return bool(INGEST_STOPPED._value.get())

            await until(stopped, "the stop")
        # It was closed meanwhile, and another one goes on: the bad one was not forgotten.
        assert broker.deaf
        async with embedded.running() as laurels:
            board = laurels.boards.to_read(ADMIN, board.uuid)

            async def buried() -> bool:
                return bool(dead(embedded, "pod-1"))

            await until(buried, "the dead letter")
            assert await totals(laurels, board) == {"ann": 1.0}
            (letter,) = dead(embedded, "pod-1")
            assert (letter["value"], letter["offset"]) == (b"bad", "0")

    asyncio.run(run())


async def _joined(laurels: Laurels) -> bool:
    return laurels._consumer is not None and laurels._consumer._running is not None


def test_a_fault_of_one_letter_keeps_nobody_else(embedded: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            record = laurels._ledger.record

            async def faulty(events: Any) -> Any:
                if any(event.user_id == "cursed" for event in events):
                    raise ValueError("A fault of ours.")
                return await record(events)

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

            async def record_or_not(events: Any) -> Any:
                nonlocal tried
                tried += 1
                if away:
                    raise Unavailable("ledger_unavailable", "Away.")
                return await record(events)

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


def test_many_dead_letters_raise_an_alert(embedded: Arena) -> None:
    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            await laurels.webhooks.put(pod_id, "http://127.0.0.1:9/nobody")
            good = [event_of("pod-1", "ann", 1, board.uuid)]
            embedded.game.write(embedded.topic("pod-1"), [*good * 30, b"bad", *good * 9])
            await until(lambda: has(laurels, board, {"ann": 39.0}), "the good ones")
            assert DEAD_LETTER_ALERT.labels(pod_id)._value.get() == 0
            embedded.game.write(embedded.topic("pod-1"), [b"bad"] * 10)

            async def alert() -> bool:
                return bool(DEAD_LETTER_ALERT.labels(pod_id)._value.get())

            await until(alert, "the alert")

            async def told() -> bool:
                waiting = await laurels._ledger.outbox.due(2**62, 10)
                return [each.kind for each in waiting] == ["dead_letters.high"]

            await until(told, "the message to the webhook")
            # It ends with the minute.
            embedded.stage.clock.now += 61_000_000
            embedded.game.write(embedded.topic("pod-1"), good)

            async def over() -> bool:
                return not await alert()

            await until(over, "the end of the alert")

    asyncio.run(run())


def test_too_large_for_the_dead_letters_is_kept_where_it_lies(embedded: Arena) -> None:
    """With our headers it would be over the broker's limit: the letter then tells where the record is."""

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
                return len(dead(embedded, "pod-1")) == 2

            await until(both, "the dead letters")
            letters, _ = await laurels.dead_letters.page(pod_id, None, 10)
            assert sorted(each.value_omitted for each in letters) == [False, True]
            large = next(each for each in letters if each.value_omitted)
            ((_, answer),) = await laurels.dead_letters.replay(pod_id, [large.place])
            assert getattr(answer, "code", None) == "record_too_large"

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


def test_dead_letters_that_were_written_are_not_written_again(embedded: Arena) -> None:
    """Also if others of the same batch can't be; and a topic that is gone is made again."""
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
            assert len(dead(embedded, "pod-1")) in {0, 20}
            broker.closed = False

            async def complete() -> bool:
                return [len(dead(embedded, shape)) for shape in ("pod-1", "pod-2")] == [20, 20]

            await until(complete, "the dead letters")
            embedded.game.remove_topic(embedded.topics.dead_letters(embedded.pods["pod-1"]))
            embedded.game.write(embedded.topic("pod-1"), [b"bad"] * 3)

            async def made_again() -> bool:
                return len(dead(embedded, "pod-1")) == 3

            await until(made_again, "the topic")

    asyncio.run(run())


async def _stopped() -> bool:
    return bool(INGEST_STOPPED._value.get())


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


def test_letters_that_others_wrote_among_the_dead_are_shown(embedded: Arena) -> None:
    async def run() -> None:
        async with embedded.running() as laurels:
            board = await embedded.make_pod(laurels, "pod-1")
            pod_id = embedded.pods["pod-1"]
            value = json.dumps(event_of("pod-1", "ann", 1, board.uuid)).encode()
            assert await laurels._broker.send([Outgoing(embedded.topics.dead_letters(pod_id), None, value)]) == [None]  # type: ignore[union-attr]
            (letter,), _ = await laurels.dead_letters.page(pod_id, None, 10)
            assert letter.reason == "Laurels did not write this letter."
            await laurels.dead_letters.replay(pod_id, [letter.place])
            assert await totals(laurels, board) == {"ann": 1.0}

    asyncio.run(run())
