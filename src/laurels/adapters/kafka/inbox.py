"""The Inbox on a consumer of librdkafka, which belongs to one thread of its own.

A topic that is deleted and made again under the same name begins with offset 0 again, and an offset of the old one
means nothing there. Kafka gives each topic an id: it is committed with every offset. Offsets of another id are not
used, and when the id of a topic changes under way, the consumer is opened anew. What is read twice is counted once.
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

from laurels.core.instants import LAST_US
from laurels.errors import Unavailable
from laurels.ports import Lane, Letter

log = structlog.get_logger()

T = TypeVar("T")

HOLD_S = 0.05
LAG_TIMEOUT_S = 2.0
COMMITTED_TIMEOUT_S = 5.0
# So soon a topic that was made anew is noticed.
ASK_EVERY_S = 1.0
IDS_WAIT_S = 0.5
# What a commit is answered with when the partition is another member's by now: who has it goes on from where the group
# last committed, and what it reads again is not counted again.
NOT_OURS = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001 - that is its name
    KafkaError._NO_OFFSET,  # noqa: SLF001 - the same
    KafkaError._STATE,  # noqa: SLF001 - the same
}


# Asks for the ids of topics. They come later, '' where there are none; or never, where the brokers know of none.
AskTopicIds = Callable[[Collection[str]], dict[str, "Future[str]"]]


class KafkaInbox:
    def __init__(self, config: dict[str, Any], pattern: str, ask_topic_ids: AskTopicIds) -> None:
        self._config = config
        self._pattern = pattern
        self._ask_topic_ids = ask_topic_ids
        # Of the topics that this member has partitions of.
        self._ids: dict[str, str] = {}
        # What was asked for last, and when to ask again.
        self._asked: dict[str, Future[str]] = {}
        self._ask_at = 0.0
        # Why partitions could not be begun where they should.
        self._not_assigned = ""
        self._thread = ThreadPoolExecutor(1, "laurels-kafka-inbox")
        self._consumer: Consumer | None = None
        self._may_be_paused = False
        self._left_off: dict[Lane, int] = {}
        # What came between two takes, when partitions were assigned anew.
        self._early: list[Message] = []
        self._closed = False

    async def take(self, limit: int, wait_s: float) -> list[Letter]:
        return await self._run(lambda consumer: self._take(consumer, limit, wait_s))

    async def hold(self) -> None:
        await self._run(self._hold)

    async def commit(self, offsets: Mapping[Lane, int]) -> None:
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

    def _take(self, consumer: Consumer, limit: int, wait_s: float) -> list[Letter]:
        self._need_same_topics(consumer)
        if self._may_be_paused:
            # All, for what was paused stays so when it is taken away and given back.
            consumer.resume(consumer.assignment())
            self._may_be_paused = False
        messages, self._early = self._early, []
        if not messages:
            # The first may be waited for; what came with it is there already.
            first = consumer.poll(wait_s)
            self._need_assigned()
            if first is None:
                return []
            messages.append(first)
        if len(messages) < limit:
            messages += consumer.consume(limit - len(messages), 0)
        self._need_assigned()
        return [read_letter(message) for message in messages if _is_good(message)]

    def _hold(self, consumer: Consumer) -> None:
        self._need_same_topics(consumer)
        assigned = consumer.assignment()
        if assigned:
            consumer.pause(assigned)
            self._may_be_paused = True
        # Who does not poll is taken for dead.
        message = consumer.poll(HOLD_S)
        self._need_assigned()
        if message is not None:
            self._early.append(message)

    def _lag(self, consumer: Consumer) -> dict[str, int]:
        waiting: dict[str, int] = {}
        for each in consumer.position(consumer.assignment()):
            # What the last fetch told. To ask would have to wait behind the next one, which waits for records.
            low, high = consumer.get_watermark_offsets(each, cached=True)
            if self._may_be_paused or high < 0:
                low, high = consumer.get_watermark_offsets(each, timeout=LAG_TIMEOUT_S, cached=False)
            here = each.offset if each.offset >= 0 else self._left_off_at(consumer, each)
            waiting[each.topic] = waiting.get(each.topic, 0) + max(0, high - max(here, low))
        return waiting

    def _left_off_at(self, consumer: Consumer, lane: TopicPartition) -> int:
        """Where the group was in a partition of which nothing was read yet."""
        key = (lane.topic, lane.partition)
        if key not in self._left_off:
            (found,) = consumer.committed([TopicPartition(*key)], timeout=LAG_TIMEOUT_S)
            self._left_off[key] = found.offset
        return self._left_off[key]

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Called by the client, which can't bear an exception here: it is kept for the next call of ours."""
        self._may_be_paused = True
        self._left_off.clear()
        try:
            for topic, topic_id in self._wait_for_ids({each.topic for each in partitions}).items():
                if (known := self._ids.get(topic)) and known != topic_id:
                    # What is under way is of the old one: its offsets must not be committed under the new id.
                    self._not_assigned = f"the topic {topic} was made anew"
                self._ids[topic] = topic_id
            asked = [TopicPartition(each.topic, each.partition) for each in partitions]
            started = [self._start(each) for each in consumer.committed(asked, timeout=COMMITTED_TIMEOUT_S)]
            consumer.incremental_assign(started)
        except (KafkaException, RuntimeError) as error:
            self._not_assigned = str(error)
        log.info("partitions_assigned", partitions=_names(partitions))

    def _start(self, committed: TopicPartition) -> TopicPartition:
        """Where to go on in a partition: where the group left off, unless that was in another topic of the name."""
        # If it is not known yet it is compared with this when it is.
        topic_id = self._ids.setdefault(committed.topic, committed.metadata or "")
        if committed.offset >= 0 and committed.metadata and committed.metadata != topic_id:
            log.warning("topic_made_anew", topic=committed.topic, partition=committed.partition)
            return TopicPartition(committed.topic, committed.partition, OFFSET_BEGINNING)
        return TopicPartition(committed.topic, committed.partition, committed.offset)

    def _need_same_topics(self, consumer: Consumer) -> None:
        """Raise if a topic was made anew since its partitions were assigned: then all begins again."""
        for topic, topic_id in _known(self._asked).items():
            known = self._ids.get(topic)
            if known and known != topic_id:
                raise Unavailable(
                    "kafka_unavailable", f"The topic {topic} was made anew: it is read from its beginning."
                )
            self._ids[topic] = topic_id
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + ASK_EVERY_S
            topics = {each.topic for each in consumer.assignment()}
            self._asked = self._ask_topic_ids(topics) if topics else {}

    def _need_assigned(self) -> None:
        if self._not_assigned:
            raise Unavailable("kafka_unavailable", f"Partitions could not be begun: {self._not_assigned}.")

    def _wait_for_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Nobody is kept waiting for long: what is not known then is known later."""
        asked = self._ask_topic_ids(topics)
        wait(asked.values(), timeout=IDS_WAIT_S)
        return _known(asked)

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def _known(asked: Mapping[str, "Future[str]"]) -> dict[str, str]:
    """The ids that have come."""
    done = {topic: future for topic, future in asked.items() if future.done() and future.exception() is None}
    return {topic: topic_id for topic, future in done.items() if (topic_id := future.result())}


def _is_good(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    if error.fatal():
        raise KafkaException(error)
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        # Nobody has made a topic yet that matches, or one is gone.
        return False
    log.warning("kafka_consumer", reason=error.str())
    return False


def read_letter(message: Message) -> Letter:
    kind, millis = message.timestamp()
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record that was read has one"
    assert partition is not None, "the same"
    assert offset is not None, "the same"
    try:
        headers = tuple((str(name), _as_bytes(value)) for name, value in list(message.headers() or ()))
        damaged = False
    except UnicodeDecodeError:
        # The client can't give any of them if one has a name that is no UTF-8.
        headers, damaged = (), True
    return Letter(
        topic,
        partition,
        offset,
        _as_bytes(message.key()),
        _as_bytes(message.value()),
        headers,
        # A producer may claim any time, also one that no calendar has.
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
