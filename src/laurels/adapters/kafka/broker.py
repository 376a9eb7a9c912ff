"""The Broker: letters out by one producer, letters in by inboxes, and dead letters read where they lie."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from laurels.adapters.kafka.inbox import KafkaInbox, read_letter
from laurels.errors import Invalid, Unavailable
from laurels.ports import Inbox, Letter, Outgoing, Undelivered

log = structlog.get_logger()

T = TypeVar("T")

CALL_TIMEOUT_S = 5
PING_TIMEOUT_S = 2
MAKE_TIMEOUT_S = 5
POLL_S = 0.1
TELL_EVERY_S = 60.0
SEND_TIMEOUT_MS = 10_000
READ_TIMEOUT_S = 10
READ_AT_ONCE = 500
# So soon the topic of a new pod is noticed.
METADATA_MS = 1000
# So soon the partitions of one that died go to others, unless it is set otherwise.
SESSION_MS = 15_000
QUEUED_KBYTES = 16 * 1024


class KafkaBroker:
    """`config`: what is passed through to librdkafka. Nothing connects before it is needed."""

    def __init__(self, servers: str, config: dict[str, str]) -> None:
        self._servers = servers
        self._told_at: dict[str, float] = {}
        self._common: dict[str, Any] = {
            "bootstrap.servers": servers,
            "client.id": "laurels",
            "error_cb": self._tell_error,
            # What matters comes as errors, which we log as all else.
            "log_level": 0,
            **config,
        }
        self._producer: Producer | None = None
        self._asker: AdminClient | None = None
        self._made: set[str] = set()
        self._making = threading.Lock()
        self._closing = False
        # Dead letters need not wait for what is published.
        self._senders = ThreadPoolExecutor(2, "laurels-kafka-send")
        self._readers = ThreadPoolExecutor(2, "laurels-kafka-read")
        self._pinger = ThreadPoolExecutor(1, "laurels-kafka-ping")
        self._check_config()

    def open_inbox(self, pattern: str, group: str) -> Inbox:
        config = (
            {"session.timeout.ms": SESSION_MS}
            | self._common
            | {
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                "metadata.max.age.ms": 3 * METADATA_MS,
                "queued.max.messages.kbytes": QUEUED_KBYTES,
            }
        )
        return KafkaInbox(config, pattern, self._ask_topic_ids)

    async def send(self, letters: Sequence[Outgoing]) -> list[Undelivered | None]:
        return await self._call(self._senders, lambda: self._send(letters))

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        return await self._call(self._readers, lambda: self._bounds(topic))

    async def read(self, topic: str, partition: int, start: int, end: int) -> list[Letter]:
        return await self._call(self._readers, lambda: self._read(topic, partition, start, end))

    async def ping(self) -> None:
        await self._call(self._pinger, self._ping)

    async def close(self) -> None:
        """What was not sent by now is sent again by whoever goes on."""
        self._closing = True
        for executor in (self._senders, self._readers, self._pinger):
            executor.shutdown(wait=False, cancel_futures=True)

    # In threads

    async def _call(self, executor: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, work)
        except KafkaException as error:
            reason = error.args[0].str()
            raise Unavailable("kafka_unavailable", f"Kafka ({self._servers}): {reason}.") from error

    def _check_config(self) -> None:
        """That a name or value is not known shows when a client is made."""
        try:
            Consumer(self._common | {"group.id": "laurels"}).close()
        except KafkaException as error:
            raise Invalid(
                "wrong_format",
                f"librdkafka does not take its settings (LAURELS_KAFKA_CONFIG): {error.args[0].str()}",
                field="LAURELS_KAFKA_CONFIG",
            ) from error

    def _tell_error(self, error: KafkaError) -> None:
        """Librdkafka tries again by itself, many times a second; whoever waits is told by a timeout."""
        now = time.monotonic()
        kind = str(error.code())
        if now > self._told_at.get(kind, -TELL_EVERY_S) + TELL_EVERY_S:
            self._told_at[kind] = now
            log.warning("kafka", servers=self._servers, reason=error.str())

    def _open_producer(self) -> Producer:
        if self._producer is None:
            config = self._common | {
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": SEND_TIMEOUT_MS,
                "linger.ms": 5,
                # The broker knows its own limit.
                "message.max.bytes": 100_000_000,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
            }
            self._producer = Producer(config)
        return self._producer

    def _send(self, letters: Sequence[Outgoing]) -> list[Undelivered | None]:
        with self._making:
            producer = self._open_producer()
        self._make_topics({letter.topic for letter in letters})
        answers = self._produce_apart(producer, letters)
        for letter, answer in zip(letters, answers, strict=True):
            if answer is not None:
                # It may be gone, or was never made.
                self._made.discard(letter.topic)
                if answer.fatal:
                    self._producer = None
        return answers

    def _produce_apart(self, producer: Producer, letters: Sequence[Outgoing]) -> list[Undelivered | None]:
        """Send letters. What is refused as too large is sent again in halves: alone, most of it fits."""
        answers = self._produce(producer, letters)
        large = [number for number, answer in enumerate(answers) if answer is not None and answer.too_large]
        middle = (len(large) + 1) // 2
        for half in (large[:middle], large[middle:]) if len(letters) > 1 else ():
            if half:
                again = self._produce_apart(producer, [letters[number] for number in half])
                for number, answer in zip(half, again, strict=True):
                    answers[number] = answer
        return answers

    def _produce(self, producer: Producer, letters: Sequence[Outgoing]) -> list[Undelivered | None]:
        """Send letters and wait for them; not for those that others send by the same producer."""
        sending = _Sending(len(letters))
        for number, letter in enumerate(letters):
            try:
                _produce(producer, letter, sending.note(number))
            except KafkaException as error:
                sending.end(number, _undelivered(error.args[0]))
        give_up_at = time.monotonic() + SEND_TIMEOUT_MS / 1000 + 1
        while sending.left and time.monotonic() < give_up_at and not self._closing:
            producer.poll(POLL_S)
        return sending.answers

    def _make_topics(self, topics: set[str]) -> None:
        """With the partitions and replicas that the brokers have as their default. Where we may not make topics, or
        somebody was quicker, they may be there all the same when they are written to.
        """
        missing = topics - self._made
        if not missing:
            return
        admin = AdminClient(self._common)
        there = set(admin.list_topics(timeout=CALL_TIMEOUT_S).topics)
        self._made |= missing & there
        wanted = [NewTopic(topic, num_partitions=-1, replication_factor=-1) for topic in sorted(missing - there)]
        if wanted:
            for topic, made in admin.create_topics(wanted, request_timeout=MAKE_TIMEOUT_S).items():
                try:
                    made.result(MAKE_TIMEOUT_S)
                    self._made.add(topic)
                    log.info("topic_made", topic=topic)
                except (KafkaException, TimeoutError) as error:
                    log.warning("topic_not_made", topic=topic, reason=str(error))

    def _ping(self) -> None:
        self._admin().list_topics(timeout=PING_TIMEOUT_S)

    def _ask_topic_ids(self, topics: Collection[str]) -> dict[str, "Future[str]"]:
        """Brokers before 2.8 give topics no ids."""
        asked = self._admin().describe_topics(TopicCollection(sorted(topics)), request_timeout=PING_TIMEOUT_S)
        return {topic: _topic_id(described) for topic, described in asked.items()}

    def _admin(self) -> AdminClient:
        if self._asker is None:
            self._asker = AdminClient(self._common)
        return self._asker

    def _reader(self) -> Consumer:
        # It is in no group: its name is never used.
        return Consumer(self._common | {"group.id": "laurels-reader", "enable.auto.commit": False})

    def _bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        consumer = self._reader()
        try:
            found = consumer.list_topics(topic, timeout=CALL_TIMEOUT_S).topics[topic]
            if found.error is not None:
                if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return {}
                raise KafkaException(found.error)
            bounds = {}
            for partition in found.partitions:
                asked = TopicPartition(topic, partition)
                bounds[partition] = consumer.get_watermark_offsets(asked, timeout=CALL_TIMEOUT_S)
            return bounds
        finally:
            consumer.close()

    def _read(self, topic: str, partition: int, start: int, end: int) -> list[Letter]:
        consumer = self._reader()
        letters: list[Letter] = []
        give_up_at = time.monotonic() + READ_TIMEOUT_S
        try:
            consumer.assign([TopicPartition(topic, partition, start)])
            while start < end:
                for message in consumer.consume(min(READ_AT_ONCE, end - start), 0.2):
                    error = message.error()
                    if error is not None:
                        raise KafkaException(error)
                    letter = read_letter(message)
                    start = letter.offset + 1
                    if letter.offset < end:
                        letters.append(letter)
                (position,) = consumer.position([TopicPartition(topic, partition)])
                # Offsets that hold nothing, such as those of transactions, are passed over.
                start = max(start, position.offset)
                if time.monotonic() > give_up_at:
                    raise Unavailable("kafka_unavailable", f"{topic} could not be read within {READ_TIMEOUT_S} s.")
            return letters
        finally:
            consumer.close()


def _produce(producer: Producer, letter: Outgoing, note: Callable[[KafkaError | None, Message], None]) -> None:
    while True:
        try:
            producer.produce(letter.topic, letter.value, letter.key, on_delivery=note, headers=list(letter.headers))
        except BufferError:
            # The queue of the client is full: let some go first.
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def _topic_id(described: "Future[Any]") -> "Future[str]":
    told: Future[str] = Future()

    def tell(done: "Future[Any]") -> None:
        topic_id = "" if done.cancelled() or done.exception() is not None else str(done.result().topic_id)
        # All zeros: none.
        told.set_result(topic_id if topic_id.strip("A=") else "")

    described.add_done_callback(tell)
    return told


class _Sending:
    """What became of some letters. Whoever polls the producer, in whichever thread, is told of all of them."""

    def __init__(self, count: int) -> None:
        self.answers: list[Undelivered | None] = [Undelivered("It was not sent in time.")] * count
        self.left = set(range(count))

    def note(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        return lambda error, _message: self.end(number, None if error is None else _undelivered(error))

    def end(self, number: int, answer: Undelivered | None) -> None:
        self.answers[number] = answer
        self.left.discard(number)


def _undelivered(error: KafkaError) -> Undelivered:
    return Undelivered(error.str(), too_large=error.code() == KafkaError.MSG_SIZE_TOO_LARGE, fatal=error.fatal())
