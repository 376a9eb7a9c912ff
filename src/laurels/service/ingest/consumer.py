"""The loop that takes letters out of Kafka.

A letter ends in one of three ways: it is counted (or was before), it is dead, or it can't be told yet, for a store is
away; then it is tried again, and nothing is committed. Offsets are committed after all letters before them are counted
in the ledger or stored as dead letters, so a crash at any point leads to a letter being read again, and not counted
again.

A few batches are under way at once: one is read while one is written and one is ranked. Their offsets are committed in
the order in which they were taken. If the oldest takes long, partitions are paused: there is never more in memory.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import structlog

from laurels.errors import InternalError, LaurelsError, Unavailable
from laurels.metrics import INGEST_LAG, INGEST_STOPPED, INGESTED
from laurels.ports import Broker, Inbox, Lane, Letter
from laurels.service.ingest.alarm import Alarm
from laurels.service.ingest.dead_letters import DeadLetters
from laurels.service.ingest.intake import Intake, Outcome
from laurels.service.ingest.topics import Topics
from laurels.service.submit import Accepted
from laurels.tasks import end_tasks

log = structlog.get_logger()

WAIT_S = 0.5
HOLD_AFTER_S = 1.0
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
TELL_EVERY_TRIES = 20
TELL_EVERY_S = 2.0
CLOSE_S = 10
# A fault of ours may be that of one letter: after so many tries each is tried alone.
ATTEMPTS = 3
# Batches that are under way.
DEPTH = 3

# Of each partition, the offset after the last letter.
_Ended = dict[Lane, int]


class Consumer:
    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        intake: Intake,
        dead_letters: DeadLetters,
        alarm: Alarm,
        *,
        group: str,
        batch: int,
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._intake = intake
        self._dead_letters = dead_letters
        self._alarm = alarm
        self._group = group
        self._batch = batch
        self._running: asyncio.Task[None] | None = None
        self._closing = False
        self._told_at = 0.0
        self._told_of: set[str] = set()
        # Batches that can't be ended at present.
        self._stuck: set[asyncio.Task[Any] | None] = set()
        self._ended = 0
        self._uncommitted: dict[Lane, int] = {}

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="consume")

    async def close(self) -> None:
        """Finish what was taken, if that is possible soon; Kafka has the rest."""
        self._closing = True
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=CLOSE_S)
            await end_tasks([self._running])

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closing:
            self._ended = 0
            inbox: Inbox | None = None
            try:
                inbox = self._broker.open_inbox(self._topics.pattern, self._group)
                await self._consume(inbox)
            except Unavailable as error:
                log.warning("ingest_interrupted", reason=error.message)
            except Exception:
                log.exception("ingest_interrupted")
            finally:
                self._uncommitted.clear()
                if inbox is not None:
                    await inbox.close()
            if not self._closing:
                INGEST_STOPPED.set(1)
                pause_s = FIRST_PAUSE_S if self._ended else min(LAST_PAUSE_S, 2 * pause_s)
                await asyncio.sleep(pause_s)

    async def _consume(self, inbox: Inbox) -> None:
        under_way: deque[asyncio.Task[_Ended]] = deque()
        try:
            while not self._closing:
                letters = await inbox.take(self._batch, WAIT_S)
                if letters:
                    under_way.append(asyncio.create_task(self._end(letters), name="count letters"))
                while under_way and (not letters or len(under_way) >= DEPTH or under_way[0].done()):
                    self._note_offsets(await self._wait_for(under_way[0], inbox))
                    under_way.popleft()
                await self._commit(inbox)
                await self._tell_state(inbox)
            while under_way:
                self._note_offsets(await self._wait_for(under_way[0], inbox))
                under_way.popleft()
            await self._commit(inbox)
        finally:
            await end_tasks(under_way)
            self._stuck.clear()

    async def _wait_for(self, oldest: "asyncio.Task[_Ended]", inbox: Inbox) -> _Ended:
        """Backpressure: nothing more is taken until this is done."""
        while True:
            done, _ = await asyncio.wait({oldest}, timeout=HOLD_AFTER_S)
            if done:
                return oldest.result()
            await inbox.hold()
            await self._tell_state(inbox)

    async def _end(self, letters: list[Letter]) -> _Ended:
        """Each is counted in the ledger or stored as a dead letter once this has returned."""
        outcomes = await self._count([(self._topics.pod_of(letter.topic), letter) for letter in letters])
        dead = [outcome for outcome in outcomes if outcome.error is not None]
        if dead:
            await self._bury(dead)
        self._stuck.discard(asyncio.current_task())
        await self._note(outcomes)
        self._ended += len(letters)
        ended: _Ended = {}
        for letter in letters:
            lane = (letter.topic, letter.partition)
            ended[lane] = max(letter.offset + 1, ended.get(lane, 0))
        return ended

    def _note_offsets(self, ended: _Ended) -> None:
        """In the order in which batches were taken: all before these is ended, too."""
        self._uncommitted |= ended

    async def _count(self, letters: Sequence[tuple[str, Letter]]) -> list[Outcome]:
        """Until it is known of each what became of it."""
        final: list[Outcome] = []
        pause_s, tries = FIRST_PAUSE_S, 0
        while letters:
            outcomes = await self._intake.count(letters)
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
                pause_s = await self._pause(again[0].error, tries, pause_s)
            letters = [(each.pod_id, each.letter) for each in again]
        return final

    async def _count_alone(self, outcome: Outcome) -> Outcome:
        """One letter that is a fault of ours must not keep those behind it."""
        (alone,) = await self._intake.count([(outcome.pod_id, outcome.letter)])
        if alone.error is None or not alone.error.retryable:
            return alone
        if alone.error.code != "internal":
            (found,) = await self._count([(outcome.pod_id, outcome.letter)])
            return found
        return Outcome(outcome.pod_id, outcome.letter, InternalError("internal", alone.error.message), alone.version)

    async def _bury(self, dead: list[Outcome]) -> None:
        """Until they are stored: without that, nothing is committed and nothing more is taken."""
        pause_s, tries = FIRST_PAUSE_S, 0
        while dead:
            try:
                dead, reason = await self._dead_letters.bury(dead)
                error = Unavailable("kafka_unavailable", f"{len(dead)} dead letters could not be written: {reason}")
            except Unavailable as away:
                error = away
            if dead:
                tries += 1
                pause_s = await self._pause(error, tries, pause_s)

    async def _commit(self, inbox: Inbox) -> None:
        """What can't be committed now is with what comes next."""
        if not self._uncommitted:
            return
        offsets = dict(self._uncommitted)
        try:
            await inbox.commit(offsets)
        except Unavailable as error:
            log.warning("offsets_not_committed", reason=error.message)
            return
        self._uncommitted = {lane: end for lane, end in self._uncommitted.items() if offsets.get(lane) != end}

    async def _note(self, outcomes: Sequence[Outcome]) -> None:
        results = Counter(
            (each.pod_id, each.answer.outcome.value if isinstance(each.answer, Accepted) else "dead")
            for each in outcomes
        )
        for (pod_id, result), count in results.items():
            INGESTED.labels(pod_id, result).inc(count)
        records = Counter(each.pod_id for each in outcomes)
        for pod_id, count in records.items():
            await self._alarm.note(pod_id, count, results[pod_id, "dead"])

    async def _tell_state(self, inbox: Inbox) -> None:
        """Now and then: how many wait, whether anything moves, and whether an alert is over."""
        now = asyncio.get_running_loop().time()
        if now < self._told_at + TELL_EVERY_S:
            return
        self._told_at = now
        await self._alarm.look()
        try:
            await self._broker.ping()
            waiting = await inbox.lag()
        except Unavailable:
            INGEST_STOPPED.set(1)
            return
        INGEST_STOPPED.set(bool(self._stuck))
        pods = {self._topics.pod_of(topic): count for topic, count in waiting.items()}
        # What went to another member is told by that one.
        for pod_id in self._told_of - pods.keys():
            INGEST_LAG.labels(pod_id).set(0)
        self._told_of = set(pods)
        for pod_id, count in pods.items():
            INGEST_LAG.labels(pod_id).set(count)

    async def _pause(self, error: LaurelsError | None, tries: int, pause_s: float) -> float:
        """Wait before the next try; gives how long to wait then."""
        INGEST_STOPPED.set(1)
        if tries % TELL_EVERY_TRIES == 1:
            log.error("ingest_stopped", reason=None if error is None else error.message, tries=tries)
        if self._closing:
            raise Unavailable("stopping", "What was taken last is taken again by whoever goes on.")
        self._stuck.add(asyncio.current_task())
        await asyncio.sleep(pause_s)
        return min(LAST_PAUSE_S, 2 * pause_s)
