"""Dead letters: records that could not be counted, kept in a topic beside their own, to be looked at and replayed.

The value of one is the record as it came; its own headers are kept, and ours tell why and from where.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from laurels.core.instants import to_datetime, to_us
from laurels.errors import Conflict, LaurelsError, NotFound
from laurels.metrics import DEAD_LETTERS
from laurels.ports import Broker, Clock, Headers, Ledger, Letter, Outgoing, Replay
from laurels.service.ingest.intake import Intake, Outcome
from laurels.service.ingest.schemas import RESERVED
from laurels.service.ingest.topics import Topics
from laurels.service.submit import Accepted

PREFIX = RESERVED
REASON_CHARS = 1000
BARE = "value, key and headers"
INVALID_HEADERS = "invalid_headers"
# Offsets that are no further apart are read in one go.
CLOSE = 100


class DeadLetter(Struct, frozen=True):
    """`letter`: as it came, with its first place. `replay`: what came of trying again, if it was counted then."""

    place: str
    code: str
    reason: str
    field: str | None
    schema_version: str | None
    failed_at: int
    letter: Letter
    value_omitted: bool
    # What no other dead letter is called, also when the topic is made anew.
    name: str
    replay: Replay | None = None


class DeadLetters:
    def __init__(self, broker: Broker | None, topics: Topics, intake: Intake, ledger: Ledger, clock: Clock) -> None:
        self._maybe_broker = broker
        self._topics = topics
        self._intake = intake
        self._ledger = ledger
        self._clock = clock

    async def bury(self, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], str]:
        """Write them down; gives those that could not be, and why. They are to be tried again."""
        left = list(outcomes)
        reason = ""
        # With what we add a letter may be over the broker's limit: then it goes with less, and tells where the rest is.
        for form in (self._whole, self._without_value, self._bare):
            if not left:
                break
            answers = await self._broker.send([form(outcome) for outcome in left])
            paired = list(zip(left, answers, strict=True))
            for outcome, answer in paired:
                if answer is None:
                    assert outcome.error is not None, "only what failed is dead"
                    DEAD_LETTERS.labels(outcome.pod_id, outcome.error.code).inc()
            reason = next((answer.reason for answer in answers if answer is not None), reason)
            failed = [outcome for outcome, answer in paired if answer is not None and not answer.too_large]
            if failed:
                return [outcome for outcome, answer in paired if answer is not None], reason
            left = [outcome for outcome, answer in paired if answer is not None]
        return left, reason

    async def page(
        self, pod_id: str, ends: Mapping[int, int] | None, limit: int
    ) -> tuple[list[DeadLetter], dict[int, int]]:
        """The last ones first, and where to go on: of each partition, the offset before which more are."""
        topic = self._topics.dead_letters(pod_id)
        found: list[Letter] = []
        left: dict[int, int] = {}
        for partition, (low, high) in (await self._broker.bounds(topic)).items():
            end = high if ends is None else min(high, ends.get(partition, low))
            start = max(low, end - limit)
            if start < end:
                found += await self._broker.read(topic, partition, start, end)
                left[partition] = start if start > low else 0
        found.sort(key=lambda letter: (letter.at, letter.offset), reverse=True)
        for letter in found[limit:]:
            left[letter.partition] = max(left.get(letter.partition, 0), letter.offset + 1)
        return await self._shown(pod_id, found[:limit]), {partition: end for partition, end in left.items() if end}

    async def find(self, pod_id: str, place: str) -> DeadLetter:
        (found,) = await self._find(pod_id, [place])
        return found

    async def replay(self, pod_id: str, places: Sequence[str]) -> list[tuple[DeadLetter, Accepted | LaurelsError]]:
        """Try again, with the schemas and boards as they are now. What was counted once is not counted again."""
        found = await self._find(pod_id, places)
        whole = [dead for dead in found if not dead.value_omitted]
        outcomes = iter(await self._intake.count([(pod_id, dead.letter) for dead in whole]))
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

    @property
    def _broker(self) -> Broker:
        if self._maybe_broker is None:
            raise Conflict(
                "kafka_off", "This Laurels runs without Kafka: start the server with --kafka, or set LAURELS_KAFKA."
            )
        return self._maybe_broker

    async def _find(self, pod_id: str, places: Sequence[str]) -> list[DeadLetter]:
        topic = self._topics.dead_letters(pod_id)
        bounds = await self._broker.bounds(topic)
        wanted = [_parse(place) for place in places]
        for place, (partition, offset) in zip(places, wanted, strict=True):
            low, high = bounds.get(partition, (0, 0))
            if not low <= offset < high:
                raise _unknown(pod_id, place)
        held: dict[tuple[int, int], Letter] = {}
        asked = set(wanted)
        for partition in {partition for partition, _ in wanted}:
            for start, end in _stretches(sorted(offset for each, offset in wanted if each == partition)):
                for letter in await self._broker.read(topic, partition, start, end):
                    if (partition, letter.offset) in asked:
                        held[partition, letter.offset] = letter
        for place, key in zip(places, wanted, strict=True):
            if key not in held:
                raise _unknown(pod_id, place)
        return await self._shown(pod_id, [held[key] for key in wanted])

    async def _shown(self, pod_id: str, letters: Sequence[Letter]) -> list[DeadLetter]:
        names = [_name(letter) for letter in letters]
        replays = {each.place: each for each in await self._ledger.streams.replays(pod_id, names)} if names else {}
        first = self._topics.updates(pod_id)
        return [_read(first, letter, replays.get(name)) for letter, name in zip(letters, names, strict=True)]

    def _whole(self, outcome: Outcome) -> Outgoing:
        letter = outcome.letter
        return self._outgoing(outcome, letter.key, letter.value, _own(letter.headers))

    def _without_value(self, outcome: Outcome) -> Outgoing:
        letter = outcome.letter
        return self._outgoing(outcome, letter.key, None, _own(letter.headers), omitted="value")

    def _bare(self, outcome: Outcome) -> Outgoing:
        return self._outgoing(outcome, None, None, (), omitted=BARE)

    def _outgoing(
        self, outcome: Outcome, key: bytes | None, value: bytes | None, own: Headers, omitted: str | None = None
    ) -> Outgoing:
        error, letter = outcome.error, outcome.letter
        assert error is not None, "only what failed is dead"
        told = {
            "code": error.code,
            "reason": error.message[:REASON_CHARS],
            "field": error.field,
            "schema-version": outcome.version,
            "topic": letter.topic,
            "partition": str(letter.partition),
            "offset": str(letter.offset),
            "timestamp": to_datetime(letter.at).isoformat(),
            "failed-at": to_datetime(self._clock.now_us()).isoformat(),
            "value-omitted": omitted,
            "headers-omitted": "true" if letter.damaged or omitted == BARE else None,
        }
        ours = tuple(
            (PREFIX + name, text.encode("utf-8", "replace")) for name, text in told.items() if text is not None
        )
        return Outgoing(self._topics.dead_letters(outcome.pod_id), key, value, own + ours)


def _own(headers: Headers) -> Headers:
    return tuple((name, value) for name, value in headers if not name.startswith(PREFIX))


def _read(first_topic: str, letter: Letter, replay: Replay | None) -> DeadLetter:
    """What our headers tell. Somebody else may have written there, too: then it is read as what it is."""
    told = {
        name.removeprefix(PREFIX): value.decode("utf-8", "replace")
        for name, value in letter.headers
        if name.startswith(PREFIX) and value is not None
    }
    first = Letter(
        first_topic if "topic" in told else letter.topic,
        _number(told.get("partition"), letter.partition),
        _number(told.get("offset"), letter.offset),
        letter.key,
        letter.value,
        _own(letter.headers),
        _moment(told.get("timestamp"), letter.at),
        # Without them it may be read with another schema, and say something else.
        damaged="headers-omitted" in told or told.get("code") == INVALID_HEADERS,
    )
    return DeadLetter(
        place=_place(letter),
        code=told.get("code", "internal"),
        reason=told.get("reason", "Laurels did not write this letter."),
        field=told.get("field"),
        schema_version=told.get("schema-version"),
        failed_at=_moment(told.get("failed-at"), letter.at),
        letter=first,
        value_omitted="value-omitted" in told,
        name=_name(letter),
        replay=replay,
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else otherwise


def _moment(text: str | None, otherwise: int) -> int:
    try:
        return otherwise if text is None else to_us(datetime.fromisoformat(text))
    except (ValueError, TypeError):
        return otherwise


def _place(letter: Letter) -> str:
    return f"{letter.partition}-{letter.offset}"


def _name(letter: Letter) -> str:
    return f"{_place(letter)}@{letter.at // 1000}"


def _parse(place: str) -> tuple[int, int]:
    partition, _, offset = place.partition("-")
    return _number(partition, -1), _number(offset, -1)


def _stretches(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Offsets that are close to each other are read together."""
    stretches: list[tuple[int, int]] = []
    for offset in offsets:
        if stretches and offset - stretches[-1][1] < CLOSE:
            stretches[-1] = (stretches[-1][0], offset + 1)
        else:
            stretches.append((offset, offset + 1))
    return stretches


def _unknown(pod_id: str, place: str) -> LaurelsError:
    return NotFound(
        "dead_letter_not_found", f"Pod {pod_id!r} has no dead letter {place!r}; Kafka may have let it go.", field="id"
    )


def _omitted() -> LaurelsError:
    return Conflict(
        "record_too_large", "The dead letter holds no value, for it was too large. Its first place may still have it."
    )
