"""The consumer: the loop that reads records from Kafka and counts them.

A record has one of three outcomes: it is counted (now or earlier), it becomes a dead letter, or a store is unavailable
and the outcome is open; then the consumer retries and commits nothing. The consumer commits an offset only after all
records before it are counted in the ledger or stored as dead letters. After a crash at any point records may be read
again, but they are not counted again.

Up to `DEPTH` batches are in progress at the same time: one is read while another is written and a third is ranked.
Their offsets are committed in the order in which they were read. If the oldest batch takes long, the consumer pauses
its partitions, so memory is bounded.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import structlog

from laurels.errors import InternalError, LaurelsError, Unavailable
from laurels.metrics import INGEST_LAG, INGEST_STOPPED, INGESTED
from laurels.ports import Broker, KafkaRecord, RecordConsumer, TopicPartition
from laurels.retry import Backoff
from laurels.service.ingest.alarm import Alarm
from laurels.service.ingest.dead_letters import DeadLetters
from laurels.service.ingest.intake import Intake, Outcome
from laurels.service.ingest.topics import Topics
from laurels.service.write.submissions import Accepted
from laurels.settings import KafkaSettings
from laurels.tasks import end_tasks

log = structlog.get_logger()

WAIT_S = 0.5
HOLD_AFTER_S = 1.0
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
TELL_EVERY_TRIES = 20
TELL_EVERY_S = 2.0
CLOSE_S = 10
# After this many internal errors each record is tried alone, because one record may cause them all.
ATTEMPTS = 3
# Maximum number of batches in progress.
DEPTH = 3

# The offset after the last record, by partition.
_Ended = dict[TopicPartition, int]


class Consumer:
    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        intake: Intake,
        dead_letters: DeadLetters,
        alarm: Alarm,
        settings: KafkaSettings,
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._intake = intake
        self._dead_letters = dead_letters
        self._alarm = alarm
        self._group = settings.kafka_group
        self._batch = settings.ingest_batch
        self._running: asyncio.Task[None] | None = None
        self._closing = False
        self._told_at = 0.0
        self._reported_pods: set[str] = set()
        # Batches that are being retried.
        self._stuck: set[asyncio.Task[Any] | None] = set()
        self._ended = 0
        self._uncommitted: dict[TopicPartition, int] = {}

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="consume")

    @property
    def is_running(self) -> bool:
        return self._running is not None

    async def close(self) -> None:
        """Finish the batches in progress within `CLOSE_S` seconds, and leave the rest to Kafka."""
        self._closing = True
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=CLOSE_S)
            await end_tasks([self._running])

    async def _run(self) -> None:
        backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        while not self._closing:
            self._ended = 0
            consumer: RecordConsumer | None = None
            try:
                consumer = self._broker.open_consumer(self._topics.pattern, self._group)
                await self._consume(consumer)
            except Unavailable as error:
                log.warning("ingest_interrupted", reason=error.message)
            except Exception:
                log.exception("ingest_interrupted")
            finally:
                self._uncommitted.clear()
                if consumer is not None:
                    await consumer.close()
            if not self._closing:
                INGEST_STOPPED.set(1)
                if self._ended:
                    backoff.reset()
                await asyncio.sleep(backoff.next_s())

    async def _consume(self, consumer: RecordConsumer) -> None:
        under_way: deque[asyncio.Task[_Ended]] = deque()
        try:
            while not self._closing:
                records = await consumer.poll(self._batch, WAIT_S)
                if records:
                    under_way.append(asyncio.create_task(self._end(records), name="count records"))
                while under_way and (not records or len(under_way) >= DEPTH or under_way[0].done()):
                    self._note_offsets(await self._wait_for(under_way[0], consumer))
                    under_way.popleft()
                await self._commit(consumer)
                await self._tell_state(consumer)
            while under_way:
                self._note_offsets(await self._wait_for(under_way[0], consumer))
                under_way.popleft()
            await self._commit(consumer)
        finally:
            await end_tasks(under_way)
            self._stuck.clear()

    async def _wait_for(self, oldest: "asyncio.Task[_Ended]", consumer: RecordConsumer) -> _Ended:
        """Wait for the oldest batch, and pause the partitions if it takes long (backpressure)."""
        while True:
            done, _ = await asyncio.wait({oldest}, timeout=HOLD_AFTER_S)
            if done:
                return oldest.result()
            await consumer.hold()
            await self._tell_state(consumer)

    async def _end(self, records: list[KafkaRecord]) -> _Ended:
        """Count records, and return the offsets that may be committed.

        When it returns, each record is counted in the ledger or stored as a dead letter.
        """
        outcomes = await self._count([(self._topics.pod_of(record.topic), record) for record in records])
        dead = [outcome for outcome in outcomes if outcome.error is not None]
        if dead:
            await self._send_to_dead_letters(dead)
        self._stuck.discard(asyncio.current_task())
        await self._note(outcomes)
        self._ended += len(records)
        ended: _Ended = {}
        for record in records:
            partition = (record.topic, record.partition)
            ended[partition] = max(record.offset + 1, ended.get(partition, 0))
        return ended

    def _note_offsets(self, ended: _Ended) -> None:
        """Note offsets for the next commit.

        Call it in the order in which batches were read, so that all records before these offsets have ended too.
        """
        self._uncommitted |= ended

    async def _count(self, records: Sequence[tuple[str, KafkaRecord]]) -> list[Outcome]:
        """Count records, and retry until each has a final outcome."""
        final: list[Outcome] = []
        backoff, tries = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S), 0
        while records:
            outcomes = await self._intake.count(records)
            again = [each for each in outcomes if each.error is not None and each.error.retryable]
            final += [each for each in outcomes if each.error is None or not each.error.retryable]
            tries += 1
            if (
                again
                and tries >= ATTEMPTS
                and all(each.error is not None and each.error.code == "internal" for each in again)
            ):
                return final + [await self._count_alone(each) for each in again]
            if again:
                await self._pause(again[0].error, tries, backoff)
            records = [(each.pod_id, each.record) for each in again]
        return final

    async def _count_alone(self, outcome: Outcome) -> Outcome:
        """Count one record after repeated internal errors.

        If it fails with an internal error again it becomes a dead letter, so that it does not block the records behind
        it.
        """
        (alone,) = await self._intake.count([(outcome.pod_id, outcome.record)])
        if alone.error is None or not alone.error.retryable:
            return alone
        if alone.error.code != "internal":
            (found,) = await self._count([(outcome.pod_id, outcome.record)])
            return found
        return Outcome(outcome.pod_id, outcome.record, InternalError("internal", alone.error.message), alone.version)

    async def _send_to_dead_letters(self, dead: list[Outcome]) -> None:
        """Store dead letters, and retry until all are stored.

        Until then the offsets of this batch and of later ones are not committed.
        """
        backoff, tries = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S), 0
        while dead:
            try:
                dead, reason = await self._dead_letters.send_to_dead_letters(dead)
                error = Unavailable("kafka_unavailable", f"{len(dead)} dead letters could not be written: {reason}")
            except Unavailable as away:
                error = away
            if dead:
                tries += 1
                await self._pause(error, tries, backoff)

    async def _commit(self, consumer: RecordConsumer) -> None:
        """Commit the noted offsets; if that fails, the next commit includes them."""
        if not self._uncommitted:
            return
        offsets = dict(self._uncommitted)
        try:
            await consumer.commit(offsets)
        except Unavailable as error:
            log.warning("offsets_not_committed", reason=error.message)
            return
        self._uncommitted = {
            partition: end for partition, end in self._uncommitted.items() if offsets.get(partition) != end
        }

    async def _note(self, outcomes: Sequence[Outcome]) -> None:
        results = Counter(
            (each.pod_id, each.answer.outcome.value if isinstance(each.answer, Accepted) else "dead")
            for each in outcomes
        )
        for (pod_id, result), count in results.items():
            INGESTED.labels(pod_id, result).inc(count)
        unknown = Counter(
            each.pod_id for each in outcomes if each.error is not None and each.error.code == "pod_not_found"
        )
        for pod_id, count in unknown.items():
            await self._alarm.note_unknown(pod_id, count)
        records = Counter(each.pod_id for each in outcomes)
        for pod_id, count in records.items():
            await self._alarm.note(pod_id, count, results[pod_id, "dead"])

    async def _tell_state(self, consumer: RecordConsumer) -> None:
        """Update the metrics for lag and stopped ingest and the alerts, at most every `TELL_EVERY_S` seconds."""
        now = asyncio.get_running_loop().time()
        if now < self._told_at + TELL_EVERY_S:
            return
        self._told_at = now
        await self._alarm.look()
        try:
            await self._broker.ping()
            waiting = await consumer.lag()
        except Unavailable:
            INGEST_STOPPED.set(1)
            return
        INGEST_STOPPED.set(bool(self._stuck))
        pods = {self._topics.pod_of(topic): count for topic, count in waiting.items()}
        # Another member of the group now reports the lag of these pods.
        for pod_id in self._reported_pods - pods.keys():
            INGEST_LAG.labels(pod_id).set(0)
        self._reported_pods = set(pods)
        for pod_id, count in pods.items():
            INGEST_LAG.labels(pod_id).set(count)

    async def _pause(self, error: LaurelsError | None, tries: int, backoff: Backoff) -> None:
        """Wait before the next attempt."""
        INGEST_STOPPED.set(1)
        if tries % TELL_EVERY_TRIES == 1:
            log.error("ingest_stopped", reason=None if error is None else error.message, tries=tries)
        if self._closing:
            raise Unavailable("stopping", "The consumer is stopping. Uncommitted records will be read again.")
        self._stuck.add(asyncio.current_task())
        await asyncio.sleep(backoff.next_s())
