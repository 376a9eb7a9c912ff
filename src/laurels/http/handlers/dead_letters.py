"""The dead letters of a pod: records from Kafka that could not be counted."""

import base64
import binascii
from collections import Counter
from typing import Any

import msgspec

from laurels.core.instants import to_datetime
from laurels.errors import LaurelsError
from laurels.http.call import Call
from laurels.http.decode import bad_cursor, decode_value
from laurels.http.event_answers import (
    DeadLetterAnswer,
    DeadLetterEntry,
    DeadLettersAnswer,
    DiscardedAnswer,
    ReplayedAnswer,
    ReplayResult,
)
from laurels.http.fields import DeadLetterId, PodId
from laurels.http.problems import problem_of
from laurels.http.queries import DeadLettersQuery, NoQuery
from laurels.http.requests import DiscardRequest, ReplayRequest
from laurels.ports import DISCARDED, KafkaRecord
from laurels.service.ingest.dead_letters import DeadLetter
from laurels.service.write.submissions import Accepted


async def get_dead_letters(call: Call[DeadLettersQuery, None]) -> DeadLettersAnswer:
    """List the dead letters of a pod, newest first.

    Dead letters that were counted by a replay, or discarded, are included only if `replayed` is true. A page may have
    fewer entries than `limit`, or none, and still have a `nextCursor`.
    """
    query = call.query
    found, ends = await call.laurels.dead_letters.page(await _pod_of(call), _decode_ends(query.cursor), query.limit)
    shown = [
        dead
        for dead in found
        if (query.replayed or dead.replay is None) and (query.code is None or dead.code == query.code)
    ]
    return DeadLettersAnswer(
        dead_letters=[_entry(dead) for dead in shown], next_cursor=_encode_ends(ends) if ends else None
    )


async def get_dead_letter(call: Call[NoQuery, None]) -> DeadLetterAnswer:
    """Return a dead letter with its content.

    The content is text in `value` or, if it is not UTF-8, base64 in `valueBase64`.
    """
    letter_id = decode_value(call.path("letterId"), DeadLetterId, "letterId")
    dead = await call.laurels.dead_letters.find(await _pod_of(call), letter_id)
    record = dead.record
    return DeadLetterAnswer(
        **msgspec.structs.asdict(_entry(dead)),
        key=_text(record.key),
        headers={name: _text(value) for name, value in record.headers},
        value=_text(record.value),
        value_base64=None if record.value is None or _text(record.value) is not None else _base64(record.value),
    )


async def post_replay(call: Call[NoQuery, ReplayRequest]) -> ReplayedAnswer:
    """Replay dead letters.

    Uses the current schemas and boards. An event that was counted before is not counted again, so a replay can be
    repeated at any time. A record that still can't be counted stays a dead letter; its result has the reason.
    """
    pod_id = await _pod_of(call)
    ids = list(dict.fromkeys(call.body.ids))
    results = [_result(dead, answer) for dead, answer in await call.laurels.dead_letters.replay(pod_id, ids)]
    counts = Counter(result.status for result in results)
    call.note_change(None, {"replayed": len(results), **counts})
    return ReplayedAnswer(results=results)


async def post_discard(call: Call[NoQuery, DiscardRequest]) -> DiscardedAnswer:
    """Discard dead letters that need no replay, with a reason.

    They stay in Kafka and can still be replayed, but lists leave them out, unless `replayed` is true.
    """
    ids = list(dict.fromkeys(call.body.ids))
    # What is noted about dead letters belongs to a pod, so it must exist.
    pod_id = await call.laurels.access.pod_of(call.caller, call.path("podId"))
    count = await call.laurels.dead_letters.discard(pod_id, ids, call.body.reason)
    call.note_change(None, {"discarded": count, "reason": call.body.reason})
    return DiscardedAnswer(discarded=count)


def _result(dead: DeadLetter, answer: Accepted | LaurelsError) -> ReplayResult:
    if isinstance(answer, LaurelsError):
        return ReplayResult(id=dead.letter_id, status="refused", problem=problem_of(answer))
    return ReplayResult(id=dead.letter_id, status=answer.outcome.value, event_id=answer.event_id)


async def _pod_of(call: Call[Any, Any]) -> str:
    """Return the pod of the path. For an administrator, it may be unknown: its records became dead letters, too."""
    if call.caller.is_admin:
        return str(decode_value(call.path("podId"), PodId, "podId"))
    return await call.laurels.access.pod_of(call.caller, call.path("podId"))


def _entry(dead: DeadLetter) -> DeadLetterEntry:
    record: KafkaRecord = dead.record
    replay = dead.replay
    is_discarded = replay is not None and replay.outcome == DISCARDED
    at = None if replay is None else to_datetime(replay.replayed_at)
    return DeadLetterEntry(
        id=dead.letter_id,
        code=dead.code,
        reason=dead.reason,
        field=dead.field,
        schema_version=dead.schema_version,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=to_datetime(record.at),
        failed_at=to_datetime(dead.failed_at),
        replayed_at=None if is_discarded else at,
        discarded_at=at if is_discarded else None,
        discard_reason=None if replay is None else replay.reason,
    )


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _encode_ends(ends: dict[int, int]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(list(ends.items()))).decode().rstrip("=")


def _decode_ends(cursor: str | None) -> dict[int, int] | None:
    if cursor is None:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        return dict(msgspec.json.decode(text, type=list[tuple[int, int]]))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise bad_cursor() from None
