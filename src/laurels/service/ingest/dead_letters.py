"""Dead letters: records that could not be counted, stored in a separate topic for inspection and replay.

A dead letter has the key, value and headers of the original record. Additional headers, with the prefix `laurels-`,
hold the error and the original topic, partition and offset.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import structlog
from msgspec import Struct

from laurels.core.instants import to_datetime, to_us
from laurels.errors import Conflict, LaurelsError, NotFound
from laurels.logs import LogLimit
from laurels.metrics import DEAD_LETTERS
from laurels.ports import DISCARDED, Broker, Clock, Headers, KafkaRecord, Ledger, OutgoingRecord, Replay
from laurels.service.ingest.intake import Intake, Outcome
from laurels.service.ingest.schemas import RESERVED
from laurels.service.ingest.topics import Topics
from laurels.service.write.submissions import Accepted

log = structlog.get_logger()

PREFIX = RESERVED
REASON_CHARS = 1000
BARE = "value, key and headers"
INVALID_HEADERS = "invalid_headers"
# Offsets closer than this are read in one request.
CLOSE = 100


class DeadLetter(Struct, frozen=True):
    """A record that could not be counted.

    `record`: the original record, with its original partition and offset. `replay`: the outcome of the replay that
    counted it.
    """

    letter_id: str
    code: str
    reason: str
    field: str | None
    schema_version: str | None
    failed_at: int
    record: KafkaRecord
    value_omitted: bool
    # Unique, even if the topic is deleted and created again.
    name: str
    replay: Replay | None = None


class DeadLetters:
    def __init__(self, broker: Broker | None, topics: Topics, intake: Intake, ledger: Ledger, clock: Clock) -> None:
        self._maybe_broker = broker
        self._topics = topics
        self._intake = intake
        self._ledger = ledger
        self._clock = clock
        self._logged = LogLimit()

    async def send_to_dead_letters(self, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], str]:
        """Store dead letters, and return those that failed, to be retried, with a reason."""
        left = list(outcomes)
        reason = ""
        # With our headers a record may exceed the broker's limit: then parts are omitted, and the headers say where
        # the original is.
        for form in (self._whole, self._without_value, self._bare):
            if not left:
                break
            answers = await self._broker.send([form(outcome) for outcome in left])
            paired = list(zip(left, answers, strict=True))
            for outcome, answer in paired:
                if answer is None:
                    assert outcome.error is not None, "only failed records become dead letters"
                    DEAD_LETTERS.labels(outcome.pod_id, outcome.error.code).inc()
                    self._log(outcome, outcome.error)
            reason = next((answer.reason for answer in answers if answer is not None), reason)
            failed = [outcome for outcome, answer in paired if answer is not None and not answer.too_large]
            if failed:
                return [outcome for outcome, answer in paired if answer is not None], reason
            left = [outcome for outcome, answer in paired if answer is not None]
        return left, reason

    async def page(
        self, pod_id: str, ends: Mapping[int, int] | None, limit: int
    ) -> tuple[list[DeadLetter], dict[int, int]]:
        """Return a page of dead letters, newest first, and where the next page starts.

        The latter is by partition: the offset before which there are more.
        """
        topic = self._topics.dead_letters(pod_id)
        found: list[KafkaRecord] = []
        left: dict[int, int] = {}
        for partition, (low, high) in (await self._broker.bounds(topic)).items():
            end = high if ends is None else min(high, ends.get(partition, low))
            start = max(low, end - limit)
            if start < end:
                found += await self._broker.read(topic, partition, start, end)
                left[partition] = start if start > low else 0
        found.sort(key=lambda record: (record.at, record.offset), reverse=True)
        for record in found[limit:]:
            left[record.partition] = max(left.get(record.partition, 0), record.offset + 1)
        return await self._shown(pod_id, found[:limit]), {partition: end for partition, end in left.items() if end}

    async def find(self, pod_id: str, letter_id: str) -> DeadLetter:
        (found,) = await self._find(pod_id, [letter_id])
        return found

    async def replay(self, pod_id: str, letter_ids: Sequence[str]) -> list[tuple[DeadLetter, Accepted | LaurelsError]]:
        """Count dead letters again, with the current schemas and boards, and return the answers in order.

        Idempotent: a record that was counted before is not counted again.
        """
        found = await self._find(pod_id, letter_ids)
        whole = [dead for dead in found if not dead.value_omitted]
        outcomes = iter(await self._intake.count([(pod_id, dead.record) for dead in whole]))
        answers = [_omitted() if dead.value_omitted else next(outcomes).answer for dead in found]
        now = self._clock.now_us()
        counted = [
            Replay(dead.name, answer.outcome.value, now)
            for dead, answer in zip(found, answers, strict=True)
            if isinstance(answer, Accepted)
        ]
        if counted:
            await self._ledger.streams.note_replays(pod_id, counted)
        return list(zip(found, answers, strict=True))

    async def discard(self, pod_id: str, letter_ids: Sequence[str], reason: str) -> int:
        """Note that dead letters are not worth a replay, and return how many. They can still be replayed.

        Those that were counted stay counted.
        """
        found = await self._find(pod_id, letter_ids)
        open_ = [dead for dead in found if dead.replay is None]
        now = self._clock.now_us()
        if open_:
            discarded = [Replay(dead.name, DISCARDED, now, reason) for dead in open_]
            await self._ledger.streams.note_replays(pod_id, discarded)
        return len(open_)

    def _log(self, outcome: Outcome, error: LaurelsError) -> None:
        """Log a dead letter; of many of a pod with one code, the first and then at most one line every ten seconds."""
        count = self._logged.count(f"{outcome.pod_id} {error.code}")
        if count is not None:
            record = outcome.record
            log.warning(
                "dead_letter",
                pod=outcome.pod_id,
                code=error.code,
                reason=error.message[:REASON_CHARS],
                record=f"{record.topic}/{record.partition}/{record.offset}",
                count=count,
            )

    @property
    def _broker(self) -> Broker:
        if self._maybe_broker is None:
            raise Conflict("kafka_off", "This server runs without Kafka. Start it with --kafka, or set LAURELS_KAFKA.")
        return self._maybe_broker

    async def _find(self, pod_id: str, letter_ids: Sequence[str]) -> list[DeadLetter]:
        topic = self._topics.dead_letters(pod_id)
        bounds = await self._broker.bounds(topic)
        wanted = [_parse(letter_id) for letter_id in letter_ids]
        for letter_id, (partition, offset) in zip(letter_ids, wanted, strict=True):
            low, high = bounds.get(partition, (0, 0))
            if not low <= offset < high:
                raise _unknown(pod_id, letter_id)
        held: dict[tuple[int, int], KafkaRecord] = {}
        asked = set(wanted)
        for partition in {partition for partition, _ in wanted}:
            for start, end in _ranges(sorted(offset for each, offset in wanted if each == partition)):
                for record in await self._broker.read(topic, partition, start, end):
                    if (partition, record.offset) in asked:
                        held[partition, record.offset] = record
        for letter_id, key in zip(letter_ids, wanted, strict=True):
            if key not in held:
                raise _unknown(pod_id, letter_id)
        return await self._shown(pod_id, [held[key] for key in wanted])

    async def _shown(self, pod_id: str, records: Sequence[KafkaRecord]) -> list[DeadLetter]:
        names = [_name(record) for record in records]
        replays = {each.record_id: each for each in await self._ledger.streams.replays(pod_id, names)} if names else {}
        first = self._topics.updates(pod_id)
        return [_read(first, record, replays.get(name)) for record, name in zip(records, names, strict=True)]

    def _whole(self, outcome: Outcome) -> OutgoingRecord:
        record = outcome.record
        return self._outgoing(outcome, record.key, record.value, _own(record.headers))

    def _without_value(self, outcome: Outcome) -> OutgoingRecord:
        record = outcome.record
        return self._outgoing(outcome, record.key, None, _own(record.headers), omitted="value")

    def _bare(self, outcome: Outcome) -> OutgoingRecord:
        return self._outgoing(outcome, None, None, (), omitted=BARE)

    def _outgoing(
        self, outcome: Outcome, key: bytes | None, value: bytes | None, own: Headers, omitted: str | None = None
    ) -> OutgoingRecord:
        error, record = outcome.error, outcome.record
        assert error is not None, "only failed records become dead letters"
        told = {
            "code": error.code,
            "reason": error.message[:REASON_CHARS],
            "field": error.field,
            "schema-version": outcome.version,
            "topic": record.topic,
            "partition": str(record.partition),
            "offset": str(record.offset),
            "timestamp": to_datetime(record.at).isoformat(),
            "failed-at": to_datetime(self._clock.now_us()).isoformat(),
            "value-omitted": omitted,
            "headers-omitted": "true" if record.damaged or omitted == BARE else None,
        }
        ours = tuple(
            (PREFIX + name, text.encode("utf-8", "replace")) for name, text in told.items() if text is not None
        )
        return OutgoingRecord(self._topics.dead_letters(outcome.pod_id), key, value, own + ours)


def _own(headers: Headers) -> Headers:
    return tuple((name, value) for name, value in headers if not name.startswith(PREFIX))


def _read(first_topic: str, record: KafkaRecord, replay: Replay | None) -> DeadLetter:
    """Read a dead letter from a record and its `laurels-` headers.

    Other programs may write to the topic, too: a record without our headers is returned as it is.
    """
    told = {
        name.removeprefix(PREFIX): value.decode("utf-8", "replace")
        for name, value in record.headers
        if name.startswith(PREFIX) and value is not None
    }
    first = KafkaRecord(
        first_topic if "topic" in told else record.topic,
        _number(told.get("partition"), record.partition),
        _number(told.get("offset"), record.offset),
        record.key,
        record.value,
        _own(record.headers),
        _moment(told.get("timestamp"), record.at),
        # Without its headers the record might be read with the wrong schema.
        damaged="headers-omitted" in told or told.get("code") == INVALID_HEADERS,
    )
    return DeadLetter(
        letter_id=_letter_id(record),
        code=told.get("code", "internal"),
        reason=told.get("reason", "Laurels did not write this record."),
        field=told.get("field"),
        schema_version=told.get("schema-version"),
        failed_at=_moment(told.get("failed-at"), record.at),
        record=first,
        value_omitted="value-omitted" in told,
        name=_name(record),
        replay=replay,
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else otherwise


def _moment(text: str | None, otherwise: int) -> int:
    try:
        return otherwise if text is None else to_us(datetime.fromisoformat(text))
    except (ValueError, TypeError):
        return otherwise


def _letter_id(record: KafkaRecord) -> str:
    return f"{record.partition}-{record.offset}"


def _name(record: KafkaRecord) -> str:
    return f"{_letter_id(record)}@{record.at // 1000}"


def _parse(letter_id: str) -> tuple[int, int]:
    partition, _, offset = letter_id.partition("-")
    return _number(partition, -1), _number(offset, -1)


def _ranges(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return ranges `(start, end)` that cover sorted offsets, with close offsets in one range."""
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and offset - ranges[-1][1] < CLOSE:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


def _unknown(pod_id: str, letter_id: str) -> LaurelsError:
    return NotFound(
        "dead_letter_not_found",
        f"Pod {pod_id!r} has no dead letter {letter_id!r}; Kafka may have deleted it.",
        field="id",
    )


def _omitted() -> LaurelsError:
    return Conflict(
        "record_too_large",
        "The dead letter has no value because the record was too large. The original topic may still have it.",
    )
