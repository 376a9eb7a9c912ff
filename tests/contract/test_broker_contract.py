"""Contract of the Broker port, on Apache Kafka and on librdkafka's mock broker."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator

import pytest

from laurels.adapters.kafka import KafkaBroker, read_client_config
from laurels.errors import Invalid, Unavailable
from laurels.ports import Broker, KafkaRecord, OutgoingRecord, RecordConsumer
from support.kafka import Game, LibrdkafkaBroker, need_kafka, shared_kafka
from support.running import free_port
from support.waiting import until

PATIENCE_S = 30


@pytest.fixture(params=["kafka", "librdkafka"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "kafka":
        need_kafka()
        yield shared_kafka().servers
    else:
        own = LibrdkafkaBroker()
        yield own.servers


def with_broker(servers: str, work: Callable[[KafkaBroker], Awaitable[None]]) -> None:
    async def run() -> None:
        broker: Broker = KafkaBroker(servers, {"session.timeout.ms": "6000"})
        try:
            await work(broker)  # type: ignore[arg-type]
        finally:
            await broker.close()

    asyncio.run(run())


async def take(inbox: RecordConsumer, count: int) -> list[KafkaRecord]:
    """Take records until there are `count`, in any number of calls."""
    found: list[KafkaRecord] = []
    end = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} records"
        found += await inbox.poll(100, 0.2)
    return found


def test_sent_records_are_consumed_and_can_be_read_by_offset(servers: str) -> None:
    prefix = uuid.uuid4().hex[:8]

    async def check(broker: KafkaBroker) -> None:
        topic = f"{prefix}-a"
        Game(servers).touch(topic)
        letters = [
            OutgoingRecord(topic, f"k{n}".encode(), f"v{n}".encode(), (("h", b"1"), ("n", None))) for n in range(50)
        ]
        assert await broker.send([*letters, OutgoingRecord(topic, None, None)]) == [None] * 51
        inbox = broker.open_consumer(f"^{prefix}-.*$", "g")
        found = await take(inbox, 51)
        assert {(each.key, each.value) for each in found} == {(each.key, each.value) for each in letters} | {
            (None, None)
        }
        assert {each.headers for each in found} == {(("h", b"1"), ("n", None)), ()}
        assert all(abs(each.at / 1e6 - time.time()) < 600 for each in found)
        assert len({each.record_id for each in found}) == 51
        bounds = await broker.bounds(topic)
        assert sum(high - low for low, high in bounds.values()) == 51
        for partition, (low, high) in bounds.items():
            own = sorted((each for each in found if each.partition == partition), key=lambda each: each.offset)
            assert await broker.read(topic, partition, low, high) == own
            assert await broker.read(topic, partition, low, low) == []
            assert await broker.read(topic, partition, low, min(high, low + 2)) == own[:2]
        assert await broker.bounds(f"{prefix}-nothing") == {}
        await inbox.close()
        await inbox.close()

    with_broker(servers, check)


def test_next_consumer_continues_from_committed_offset(servers: str) -> None:
    topic = f"{uuid.uuid4().hex[:8]}-a"

    Game(servers).touch(topic)

    async def check(broker: KafkaBroker) -> None:
        await broker.send([OutgoingRecord(topic, b"one", f"v{n}".encode()) for n in range(20)])
        first = broker.open_consumer(f"^{topic}$", "g")
        found = await take(first, 20)
        lane = (topic, found[0].partition)
        await first.commit({lane: 12})
        await first.close()
        second = broker.open_consumer(f"^{topic}$", "g")
        assert [each.offset for each in await take(second, 8)] == list(range(12, 20))
        assert await second.lag() == {topic: 0}
        await second.close()

    with_broker(servers, check)


def test_consumer_on_hold_loses_no_records(servers: str) -> None:
    topic = f"{uuid.uuid4().hex[:8]}-a"

    Game(servers).touch(topic)

    async def check(broker: KafkaBroker) -> None:
        await broker.send([OutgoingRecord(topic, b"one", f"v{n}".encode()) for n in range(40)])
        inbox = broker.open_consumer(f"^{topic}$", "g")
        found: list[KafkaRecord] = []
        while len(found) < 10:
            found += await inbox.poll(10 - len(found), 0.2)
        for _ in range(3):
            await inbox.hold()
        found += await take(inbox, 40 - len(found))
        assert [each.offset for each in found] == list(range(40))
        await inbox.close()

    with_broker(servers, check)


def test_consumer_discovers_topics_created_later(servers: str) -> None:
    prefix = uuid.uuid4().hex[:8]

    async def check(broker: KafkaBroker) -> None:
        Game(servers).touch(f"{prefix}-a")
        await broker.send([OutgoingRecord(f"{prefix}-a", None, b"1")])
        inbox = broker.open_consumer(f"^{prefix}-.*$", "g")
        await take(inbox, 1)
        Game(servers).touch(f"{prefix}-b")
        await broker.send([OutgoingRecord(f"{prefix}-b", None, b"2")])
        (late,) = await take(inbox, 1)
        assert late.value == b"2"
        await inbox.close()

    with_broker(servers, check)


def test_partitions_are_shared_between_two_group_members() -> None:
    need_kafka()
    topic = f"{uuid.uuid4().hex[:8]}-a"
    Game(shared_kafka().servers).make_topic(topic, 6)

    async def check(broker: KafkaBroker) -> None:
        inboxes = [broker.open_consumer(f"^{topic}$", "g") for _ in range(2)]
        end = time.monotonic() + PATIENCE_S
        busy: set[int] = set()
        number = 0
        while busy != {0, 1}:
            assert time.monotonic() < end, busy
            await broker.send([OutgoingRecord(topic, f"{number}-{n}".encode(), b"v") for n in range(20)])
            number += 1
            for each, inbox in enumerate(inboxes):
                if await inbox.poll(100, 0.2):
                    busy.add(each)
        await asyncio.gather(*(inbox.close() for inbox in inboxes))

    with_broker(shared_kafka().servers, check)


def test_unreachable_kafka_is_reported_as_unavailable() -> None:
    async def check(broker: KafkaBroker) -> None:
        with pytest.raises(Unavailable, match="Kafka") as raised:
            await broker.ping()
        assert raised.value.code == "kafka_unavailable"

    with_broker(f"127.0.0.1:{free_port()}", check)


def test_client_settings_are_validated_by_librdkafka() -> None:
    with pytest.raises(Invalid, match=r"no\.such\.thing"):
        KafkaBroker("127.0.0.1:1", {"no.such.thing": "1"})
    with pytest.raises(Invalid, match="sasl"):
        KafkaBroker("127.0.0.1:1", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("security.protocol", "line 1"),
        ("# fine\n\nacks=1\n", "line 3: acks can't be set here"),
        ("group.id = mine", "group.id"),
    ],
)
def test_invalid_client_settings_file_is_rejected(
    text: str, reason: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("config") / "client.properties"
    path.write_text(text, "utf-8")
    with pytest.raises(Invalid, match=reason):
        read_client_config(path)


def test_client_settings_file_is_parsed(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "client.properties"
    path.write_text("# for production\nsecurity.protocol = SASL_SSL\nsasl.password=a=b\n", "utf-8")
    assert read_client_config(path) == {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}
    assert read_client_config(None) == {}
    with pytest.raises(Invalid, match="can't be read"):
        read_client_config(path.with_name("missing"))


def test_held_partition_is_read_again_after_it_is_reassigned_back() -> None:
    need_kafka()
    servers = shared_kafka().servers
    topic = f"{uuid.uuid4().hex[:8]}-a"
    game = Game(servers)
    game.make_topic(topic, 2)

    async def check(broker: KafkaBroker) -> None:
        first = broker.open_consumer(f"^{topic}$", "g")
        for partition in range(2):
            game.write(topic, [b"1"], partition=partition)
        assert {letter.partition for letter in await take(first, 2)} == {0, 1}
        await first.hold()
        second = broker.open_consumer(f"^{topic}$", "g")
        end = time.monotonic() + PATIENCE_S
        moved: set[int] = set()
        while not moved:
            assert time.monotonic() < end, "no partition went to the second member"
            for partition in range(2):
                game.write(topic, [b"2"], partition=partition)
            await first.hold()
            moved = {letter.partition for letter in await second.poll(100, 0.2)}
        # The first consumer still reads the partition that it kept.
        while not any(letter.partition not in moved for letter in await first.poll(100, 0.2)):
            assert time.monotonic() < end
        await second.close()
        (back,) = moved
        game.write(topic, [b"last"], partition=back)
        values: list[bytes | None] = []
        while b"last" not in values:
            assert time.monotonic() < end, values
            values += [letter.value for letter in await first.poll(100, 0.2)]
        await first.close()

    with_broker(servers, check)


def test_batch_over_the_size_limit_is_sent_record_by_record() -> None:
    """The client sends records in batches, and the size limit of a topic applies to a batch."""
    need_kafka()
    topic = f"small-{uuid.uuid4().hex[:8]}"

    async def check(broker: KafkaBroker) -> None:
        Game(shared_kafka().servers).make_topic(topic, 1, **{"max.message.bytes": "4000"})
        letters = [OutgoingRecord(topic, None, bytes([65 + n]) * 1500) for n in range(20)]
        letters.insert(7, OutgoingRecord(topic, None, b"x" * 9000))
        answers = await broker.send(letters)
        assert [answer.too_large for answer in answers if answer is not None] == [True]
        assert answers[7] is not None
        ((low, high),) = (await broker.bounds(topic)).values()
        found = await broker.read(topic, 0, low, high)
        assert sorted(each.value or b"" for each in found) == sorted(bytes([65 + n]) * 1500 for n in range(20))

    with_broker(shared_kafka().servers, check)


def test_undeliverable_record_does_not_delay_other_records() -> None:
    """A record that cannot be written does not delay the acknowledgement of other records of the same client."""
    need_kafka()
    mark = uuid.uuid4().hex[:8]

    async def check(broker: KafkaBroker) -> None:
        Game(shared_kafka().servers).make_topic(f"{mark}-free", 1)
        producer = broker.open_producer()
        # This record waits for a topic that does not exist.
        producer.produce(f"{mark}-nowhere", b"x")
        for number in range(5):
            assert await broker.send([OutgoingRecord(f"{mark}-free", None, b"%d" % number)]) == [None]
            assert len(producer) == 1

    with_broker(shared_kafka().servers, check)


def test_recreated_topic_is_read_from_the_beginning() -> None:
    """Offsets of the deleted topic are not valid in the new one, even if a consumer commits them later."""
    need_kafka()
    mark = uuid.uuid4().hex[:8]
    topic = f"{mark}-a"

    async def check(broker: KafkaBroker) -> None:
        game = Game(shared_kafka().servers)
        game.make_topic(topic, 1)
        game.write(topic, [b"old %d" % n for n in range(50)])
        inbox = broker.open_consumer(f"^{mark}-.*$", "g")
        assert len(await take(inbox, 50)) == 50
        game.remove_topic(topic)
        until(lambda: not game.has_topic(topic), "deletion of the topic")
        game.make_topic(topic, 1)
        # More records than the old topic had, before a consumer reads.
        game.write(topic, [b"new %d" % n for n in range(80)])
        # A server that has not noticed the new topic commits its old offset.
        with contextlib.suppress(Unavailable):
            await inbox.commit({(topic, 0): 50})
        found: set[bytes | None] = set()
        end = time.monotonic() + PATIENCE_S
        while len({each for each in found if each and each.startswith(b"new")}) < 80:
            assert time.monotonic() < end, f"{len(found)} of 80"
            try:
                letters = await inbox.poll(100, 0.2)
            except Unavailable:
                # The ingest loop reopens its consumer in the same way.
                await inbox.close()
                inbox = broker.open_consumer(f"^{mark}-.*$", "g")
                continue
            found |= {letter.value for letter in letters}
            if letters:
                await inbox.commit({(topic, 0): letters[-1].offset + 1})
        assert game.committed("g", topic) == {0: (80, 80)}
        await inbox.close()
        # The next consumer continues from the committed offset.
        again = broker.open_consumer(f"^{mark}-.*$", "g")
        game.write(topic, [b"last"])
        (letter,) = await take(again, 1)
        assert letter.value == b"last"
        await again.close()

    with_broker(shared_kafka().servers, check)
