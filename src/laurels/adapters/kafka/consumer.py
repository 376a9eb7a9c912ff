"""The RecordConsumer on librdkafka. A dedicated thread makes all calls of the client.

The offsets of a recreated topic start at 0 again, so offsets of the deleted topic are invalid. To detect this, the
consumer commits the topic's id with every offset. It ignores committed offsets with another id, and must be reopened
if the id of a topic changes while it is read. Records that are read twice are counted once.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from laurels import ports
from laurels.core.instants import LAST_US
from laurels.errors import Unavailable
from laurels.logs import LogLimit
from laurels.ports import KafkaRecord

log = structlog.get_logger()
_log_limit = LogLimit()

T = TypeVar("T")

HOLD_S = 0.05
LAG_TIMEOUT_S = 2.0
COMMITTED_TIMEOUT_S = 5.0
# Interval of the checks for recreated topics.
ASK_EVERY_S = 1.0
IDS_WAIT_S = 0.5
# Errors of a commit that mean that another member owns the partition by now. That member continues from the group's
# last commit, and records that it reads again are not counted again.
NOT_OURS = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001 - confluent_kafka's public name
    KafkaError._NO_OFFSET,  # noqa: SLF001 - the same
    KafkaError._STATE,  # noqa: SLF001 - the same
}


# Requests the ids of topics. The futures complete later, with '' for a topic without an id; some may never complete.
AskTopicIds = Callable[[Collection[str]], dict[str, "Future[str]"]]


class KafkaRecordConsumer:
    def __init__(self, config: dict[str, Any], pattern: str, ask_topic_ids: AskTopicIds) -> None:
        self._config = config
        self._pattern = pattern
        self._ask_topic_ids = ask_topic_ids
        # Ids of the topics that this member has partitions of.
        self._ids: dict[str, str] = {}
        # The last request for topic ids, and when to send the next.
        self._asked: dict[str, Future[str]] = {}
        self._ask_at = 0.0
        # Why partitions could not be assigned; empty if they were.
        self._not_assigned = ""
        self._thread = ThreadPoolExecutor(1, "laurels-kafka-consumer")
        self._consumer: Consumer | None = None
        self._may_be_paused = False
        self._left_off: dict[ports.TopicPartition, int] = {}
        # Messages that `hold` received after a reassignment, for the next `poll`.
        self._early: list[Message] = []
        self._closed = False

    async def poll(self, limit: int, wait_s: float) -> list[KafkaRecord]:
        return await self._run(lambda consumer: self._take(consumer, limit, wait_s))

    async def hold(self) -> None:
        await self._run(self._hold)

    async def commit(self, offsets: Mapping[ports.TopicPartition, int]) -> None:
        wanted = [
            TopicPartition(topic, partition, offset, self._ids.get(topic, ""))
            for (topic, partition), offset in offsets.items()
        ]
        await self._run(lambda consumer: _commit(consumer, wanted))

    async def lag(self) -> dict[str, int]:
        return await self._run(self._lag)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    # In the thread

    async def _run(self, work: Callable[[Consumer], T]) -> T:
        def run() -> T:
            if self._closed:
                raise Unavailable("stopping", "The consumer is closed.")
            if self._consumer is None:
                self._consumer = Consumer(self._config)
                self._consumer.subscribe([self._pattern], on_assign=self._assigned, on_revoke=_tell_revoked)
            return work(self._consumer)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except KafkaException as error:
            raise Unavailable("kafka_unavailable", f"Kafka: {error.args[0].str()}.") from error

    def _take(self, consumer: Consumer, limit: int, wait_s: float) -> list[KafkaRecord]:
        self._need_same_topics(consumer)
        if self._may_be_paused:
            # All partitions, because a paused one stays paused when it is revoked and assigned again.
            consumer.resume(consumer.assignment())
            self._may_be_paused = False
        messages, self._early = self._early, []
        if not messages:
            # Wait for the first message only: those that were fetched with it are buffered.
            first = consumer.poll(wait_s)
            self._need_assigned()
            if first is None:
                return []
            messages.append(first)
        if len(messages) < limit:
            messages += consumer.consume(limit - len(messages), 0)
        self._need_assigned()
        return [read_record(message) for message in messages if _is_good(message)]

    def _hold(self, consumer: Consumer) -> None:
        self._need_same_topics(consumer)
        assigned = consumer.assignment()
        if assigned:
            consumer.pause(assigned)
            self._may_be_paused = True
        # Kafka considers members dead that do not poll.
        message = consumer.poll(HOLD_S)
        self._need_assigned()
        if message is not None:
            self._early.append(message)

    def _lag(self, consumer: Consumer) -> dict[str, int]:
        waiting: dict[str, int] = {}
        for each in consumer.position(consumer.assignment()):
            # Offsets from the last fetch, because a request would queue behind the next fetch, which waits for records.
            low, high = consumer.get_watermark_offsets(each, cached=True)
            if self._may_be_paused or high < 0:
                low, high = consumer.get_watermark_offsets(each, timeout=LAG_TIMEOUT_S, cached=False)
            here = each.offset if each.offset >= 0 else self._left_off_at(consumer, each)
            waiting[each.topic] = waiting.get(each.topic, 0) + max(0, high - max(here, low))
        return waiting

    def _left_off_at(self, consumer: Consumer, assigned: TopicPartition) -> int:
        """Return the committed offset of a partition from which nothing was read yet."""
        key = (assigned.topic, assigned.partition)
        if key not in self._left_off:
            (found,) = consumer.committed([TopicPartition(*key)], timeout=LAG_TIMEOUT_S)
            self._left_off[key] = found.offset
        return self._left_off[key]

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start new partitions at the right offsets.

        librdkafka calls this and can't handle exceptions here, so an error is stored, and `poll` or `hold`
        raises it.
        """
        self._may_be_paused = True
        self._left_off.clear()
        try:
            for topic, topic_id in self._wait_for_ids({each.topic for each in partitions}).items():
                if (known := self._ids.get(topic)) and known != topic_id:
                    # Records in progress belong to the old topic: their offsets must not be committed with the new id.
                    self._not_assigned = f"topic {topic} was recreated"
                self._ids[topic] = topic_id
            asked = [TopicPartition(each.topic, each.partition) for each in partitions]
            started = [self._start(each) for each in consumer.committed(asked, timeout=COMMITTED_TIMEOUT_S)]
            consumer.incremental_assign(started)
        except (KafkaException, RuntimeError) as error:
            self._not_assigned = str(error)
        log.info("partitions_assigned", partitions=_names(partitions))

    def _start(self, committed: TopicPartition) -> TopicPartition:
        """Return where to start in a partition: the committed offset, or the beginning if the topic was recreated."""
        # If the id is still unknown, it is compared with the committed one later.
        topic_id = self._ids.setdefault(committed.topic, committed.metadata or "")
        if committed.offset >= 0 and committed.metadata and committed.metadata != topic_id:
            log.warning("topic_recreated", topic=committed.topic, partition=committed.partition)
            return TopicPartition(committed.topic, committed.partition, OFFSET_BEGINNING)
        return TopicPartition(committed.topic, committed.partition, committed.offset)

    def _need_same_topics(self, consumer: Consumer) -> None:
        """Raise `Unavailable` if a topic was recreated since its partitions were assigned."""
        for topic, topic_id in _known(self._asked).items():
            known = self._ids.get(topic)
            if known and known != topic_id:
                raise Unavailable("kafka_unavailable", f"Topic {topic} was recreated. It is read from the beginning.")
            self._ids[topic] = topic_id
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + ASK_EVERY_S
            topics = {each.topic for each in consumer.assignment()}
            self._asked = self._ask_topic_ids(topics) if topics else {}

    def _need_assigned(self) -> None:
        if self._not_assigned:
            raise Unavailable("kafka_unavailable", f"Partitions could not be assigned: {self._not_assigned}.")

    def _wait_for_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the topic ids that arrive within IDS_WAIT_S. `_need_same_topics` asks for the others later."""
        asked = self._ask_topic_ids(topics)
        wait(asked.values(), timeout=IDS_WAIT_S)
        return _known(asked)

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def _known(asked: Mapping[str, "Future[str]"]) -> dict[str, str]:
    """Return the ids that have arrived."""
    done = {topic: future for topic, future in asked.items() if future.done() and future.exception() is None}
    return {topic: topic_id for topic, future in done.items() if (topic_id := future.result())}


def _is_good(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    if error.fatal():
        raise KafkaException(error)
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        # No topic matches yet, or one was deleted.
        return False
    if (count := _log_limit.count(error.name())) is not None:
        log.warning("kafka_consumer", reason=error.str(), count=count)
    return False


def read_record(message: Message) -> KafkaRecord:
    kind, millis = message.timestamp()
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record that was read has a topic"
    assert partition is not None, "a record that was read has a partition"
    assert offset is not None, "a record that was read has an offset"
    try:
        headers = tuple((str(name), _as_bytes(value)) for name, value in list(message.headers() or ()))
        damaged = False
    except UnicodeDecodeError:
        # The client can't return any header if the name of one is not UTF-8.
        headers, damaged = (), True
    return KafkaRecord(
        topic,
        partition,
        offset,
        _as_bytes(message.key()),
        _as_bytes(message.value()),
        headers,
        # Producers can set any timestamp, even one outside the calendar.
        0 if kind == TIMESTAMP_NOT_AVAILABLE else min(max(millis * 1000, 0), LAST_US),
        damaged,
    )


def _as_bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _commit(consumer: Consumer, wanted: list[TopicPartition]) -> None:
    try:
        answers = consumer.commit(offsets=wanted, asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() not in NOT_OURS:
            raise
        log.info("offsets_not_ours", reason=error.args[0].str())
        return
    for each in answers or ():
        if each.error is not None and each.error.code() not in NOT_OURS:
            raise KafkaException(each.error)


def _tell_revoked(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
    log.info("partitions_revoked", partitions=_names(partitions))


def _names(partitions: list[TopicPartition]) -> list[str]:
    return [f"{each.topic}/{each.partition}" for each in partitions]
