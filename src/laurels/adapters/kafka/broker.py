"""The Broker on librdkafka: one producer for all records, consumers for groups, and reads of dead letters by offset."""

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

from laurels.adapters.kafka.consumer import KafkaRecordConsumer, read_record
from laurels.errors import Invalid, Unavailable
from laurels.ports import KafkaRecord, OutgoingRecord, RecordConsumer, Undelivered

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
# Interval at which the topics of new pods are discovered.
METADATA_MS = 1000
# Time until the partitions of a dead consumer are reassigned. LAURELS_KAFKA_CONFIG can override it.
SESSION_MS = 15_000
QUEUED_KBYTES = 16 * 1024


class KafkaBroker:
    """Kafka. `config` is passed to librdkafka. Clients connect on first use."""

    def __init__(self, servers: str, config: dict[str, str]) -> None:
        self._servers = servers
        self._told_at: dict[str, float] = {}
        self._common: dict[str, Any] = {
            "bootstrap.servers": servers,
            "client.id": "laurels",
            "error_cb": self._tell_error,
            # Errors arrive in error_cb, which logs them, so librdkafka's own log is off.
            "log_level": 0,
            **config,
        }
        self._producer: Producer | None = None
        self._asker: AdminClient | None = None
        self._made: set[str] = set()
        self._making = threading.Lock()
        self._closing = False
        # Two threads, so that dead letters do not wait for other records.
        self._senders = ThreadPoolExecutor(2, "laurels-kafka-send")
        self._readers = ThreadPoolExecutor(2, "laurels-kafka-read")
        self._pinger = ThreadPoolExecutor(1, "laurels-kafka-ping")
        self._check_config()

    def open_consumer(self, pattern: str, group: str) -> RecordConsumer:
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
        return KafkaRecordConsumer(config, pattern, self._ask_topic_ids)

    async def send(self, records: Sequence[OutgoingRecord]) -> list[Undelivered | None]:
        return await self._call(self._senders, lambda: self._send(records))

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        return await self._call(self._readers, lambda: self._bounds(topic))

    async def read(self, topic: str, partition: int, start: int, end: int) -> list[KafkaRecord]:
        return await self._call(self._readers, lambda: self._read(topic, partition, start, end))

    async def ping(self) -> None:
        await self._call(self._pinger, self._ping)

    async def close(self) -> None:
        """Stop without waiting. The next consumer or server sends the unsent records again."""
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
        """Raise `Invalid` if librdkafka rejects a name or value, by creating a client: it checks them only then."""
        try:
            Consumer(self._common | {"group.id": "laurels"}).close()
        except KafkaException as error:
            raise Invalid(
                "wrong_format",
                f"librdkafka rejects the settings in the file LAURELS_KAFKA_CONFIG: {error.args[0].str()}",
                field="LAURELS_KAFKA_CONFIG",
            ) from error

    def _tell_error(self, error: KafkaError) -> None:
        """Log an error, at most once per TELL_EVERY_S and error code.

        librdkafka retries many times per second. Callers that wait get a timeout.
        """
        now = time.monotonic()
        kind = str(error.code())
        if now > self._told_at.get(kind, -TELL_EVERY_S) + TELL_EVERY_S:
            self._told_at[kind] = now
            log.warning("kafka", servers=self._servers, reason=error.str())

    def open_producer(self) -> Producer:
        if self._producer is None:
            config = self._common | {
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": SEND_TIMEOUT_MS,
                "linger.ms": 5,
                # The broker enforces the limit.
                "message.max.bytes": 100_000_000,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
            }
            self._producer = Producer(config)
        return self._producer

    def _send(self, records: Sequence[OutgoingRecord]) -> list[Undelivered | None]:
        with self._making:
            producer = self.open_producer()
        self._make_topics({record.topic for record in records})
        answers = self._produce_apart(producer, records)
        for record, answer in zip(records, answers, strict=True):
            if answer is not None:
                # The topic may have been deleted, or never created.
                self._made.discard(record.topic)
                if answer.fatal:
                    self._producer = None
        return answers

    def _produce_apart(self, producer: Producer, records: Sequence[OutgoingRecord]) -> list[Undelivered | None]:
        """Send records. Those refused as too large are sent again in halves, because most fit in a smaller batch."""
        answers = self._produce(producer, records)
        large = [number for number, answer in enumerate(answers) if answer is not None and answer.too_large]
        middle = (len(large) + 1) // 2
        for half in (large[:middle], large[middle:]) if len(records) > 1 else ():
            if half:
                again = self._produce_apart(producer, [records[number] for number in half])
                for number, answer in zip(half, again, strict=True):
                    answers[number] = answer
        return answers

    def _produce(self, producer: Producer, records: Sequence[OutgoingRecord]) -> list[Undelivered | None]:
        """Send records and wait for their delivery, but not for records that other threads send."""
        sending = _Sending(len(records))
        for number, record in enumerate(records):
            try:
                _produce(producer, record, sending.note(number))
            except KafkaException as error:
                sending.end(number, _undelivered(error.args[0]))
        give_up_at = time.monotonic() + SEND_TIMEOUT_MS / 1000 + 1
        while sending.left and time.monotonic() < give_up_at and not self._closing:
            producer.poll(POLL_S)
        return sending.answers

    def _make_topics(self, topics: set[str]) -> None:
        """Create missing topics, with the brokers' default number of partitions and replicas.

        A failure is only logged, because the topic may exist anyway by the time records are sent: another server may
        have created it, or an operator if Laurels lacks the permission.
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
                    log.info("topic_created", topic=topic)
                except (KafkaException, TimeoutError) as error:
                    log.warning("topic_not_created", topic=topic, reason=str(error))

    def _ping(self) -> None:
        self._admin().list_topics(timeout=PING_TIMEOUT_S)

    def _ask_topic_ids(self, topics: Collection[str]) -> dict[str, "Future[str]"]:
        """Request the ids of topics. Brokers before 2.8 have none."""
        asked = self._admin().describe_topics(TopicCollection(sorted(topics)), request_timeout=PING_TIMEOUT_S)
        return {topic: _topic_id(described) for topic, described in asked.items()}

    def _admin(self) -> AdminClient:
        if self._asker is None:
            self._asker = AdminClient(self._common)
        return self._asker

    def _reader(self) -> Consumer:
        # librdkafka requires a group id, but this consumer joins no group.
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

    def _read(self, topic: str, partition: int, start: int, end: int) -> list[KafkaRecord]:
        consumer = self._reader()
        records: list[KafkaRecord] = []
        give_up_at = time.monotonic() + READ_TIMEOUT_S
        try:
            consumer.assign([TopicPartition(topic, partition, start)])
            while start < end:
                for message in consumer.consume(min(READ_AT_ONCE, end - start), 0.2):
                    error = message.error()
                    if error is not None:
                        raise KafkaException(error)
                    record = read_record(message)
                    start = record.offset + 1
                    if record.offset < end:
                        records.append(record)
                (position,) = consumer.position([TopicPartition(topic, partition)])
                # Skip offsets without a record, for example transaction markers.
                start = max(start, position.offset)
                if time.monotonic() > give_up_at:
                    raise Unavailable(
                        "kafka_unavailable", f"Topic {topic} could not be read within {READ_TIMEOUT_S} s."
                    )
            return records
        finally:
            consumer.close()


def _produce(producer: Producer, record: OutgoingRecord, note: Callable[[KafkaError | None, Message], None]) -> None:
    while True:
        try:
            producer.produce(record.topic, record.value, record.key, on_delivery=note, headers=list(record.headers))
        except BufferError:
            # The client's queue is full: wait until it has sent some records.
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def _topic_id(described: "Future[Any]") -> "Future[str]":
    told: Future[str] = Future()

    def tell(done: "Future[Any]") -> None:
        topic_id = "" if done.cancelled() or done.exception() is not None else str(done.result().topic_id)
        # An id of zeros means that the topic has none.
        told.set_result(topic_id if topic_id.strip("A=") else "")

    described.add_done_callback(tell)
    return told


class _Sending:
    """The delivery results of some records.

    Any thread that polls the producer receives the results of all threads' records.
    """

    def __init__(self, count: int) -> None:
        self.answers: list[Undelivered | None] = [Undelivered("The record was not delivered in time.")] * count
        self.left = set(range(count))

    def note(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        return lambda error, _message: self.end(number, None if error is None else _undelivered(error))

    def end(self, number: int, answer: Undelivered | None) -> None:
        self.answers[number] = answer
        self.left.discard(number)


def _undelivered(error: KafkaError) -> Undelivered:
    return Undelivered(error.str(), too_large=error.code() == KafkaError.MSG_SIZE_TOO_LARGE, fatal=error.fatal())
