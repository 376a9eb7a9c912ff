"""Dead letters: what came from Kafka and could not be counted. They are a pod's own."""

import base64
import binascii
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
    ReplayedAnswer,
    ReplayResult,
)
from laurels.http.fields import DeadLetterId
from laurels.http.problems import problem_of
from laurels.http.requests import DeadLettersQuery, NoQuery, ReplayRequest
from laurels.ports import Letter
from laurels.service.ingest.dead_letters import DeadLetter
from laurels.service.submit import Accepted


async def get_dead_letters(call: Call[DeadLettersQuery, None]) -> DeadLettersAnswer:
    """Dead letters of a pod, the last first

    Without those that were counted when they were replayed, unless `replayed` is true. A page may have fewer entries
    than `limit`, or none, and still have a `nextCursor`.
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
    """One dead letter, with what it holds

    As text in `value`, or where it is not UTF-8, in `valueBase64`.
    """
    place = decode_value(call.path("letterId"), DeadLetterId, "letterId")
    dead = await call.laurels.dead_letters.find(await _pod_of(call), place)
    letter = dead.letter
    return DeadLetterAnswer(
        **msgspec.structs.asdict(_entry(dead)),
        key=_text(letter.key),
        headers={name: _text(value) for name, value in letter.headers},
        value=_text(letter.value),
        value_base64=None if letter.value is None or _text(letter.value) is not None else _base64(letter.value),
    )


async def post_replay(call: Call[NoQuery, ReplayRequest]) -> ReplayedAnswer:
    """Try dead letters again

    With the schemas and boards as they are now. An event that was counted before is not counted again, so a replay may
    be repeated at any time. What still can't be counted stays a dead letter, and says why.
    """
    pod_id = await _pod_of(call)
    ids = list(dict.fromkeys(call.body.ids))
    results = [_result(dead, answer) for dead, answer in await call.laurels.dead_letters.replay(pod_id, ids)]
    return ReplayedAnswer(results=results)


def _result(dead: DeadLetter, answer: Accepted | LaurelsError) -> ReplayResult:
    if isinstance(answer, LaurelsError):
        return ReplayResult(id=dead.place, status="refused", problem=problem_of(answer))
    return ReplayResult(id=dead.place, status=answer.outcome.value, event_id=answer.event_id)


async def _pod_of(call: Call[Any, Any]) -> str:
    return await call.laurels.access.pod_of(call.caller, call.path("podId"))


def _entry(dead: DeadLetter) -> DeadLetterEntry:
    letter: Letter = dead.letter
    return DeadLetterEntry(
        id=dead.place,
        code=dead.code,
        reason=dead.reason,
        field=dead.field,
        schema_version=dead.schema_version,
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        timestamp=to_datetime(letter.at),
        failed_at=to_datetime(dead.failed_at),
        replayed_at=None if dead.replay is None else to_datetime(dead.replay.replayed_at),
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
