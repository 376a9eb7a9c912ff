"""The transformation of a game's event into a score.

Pure: the same event and schema always result in the same score or the same error. Fields without a mapping become
metadata. Errors name the invalid field as it is spelled in the event.
"""

import re
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from laurels.core import limits
from laurels.core.checks import exact_score
from laurels.core.ids import composed
from laurels.core.instants import FIRST_US, LAST_US, to_datetime, to_us
from laurels.core.schemas import FieldSource, Schema, ScoreType, TimestampFormat
from laurels.errors import Invalid, LaurelsError, Malformed, TooLarge
from laurels.ports import Headers, KafkaRecord
from laurels.service.write.submissions import Submission

EVENT_TYPE = "SCORE_UPDATE"
_ID = re.compile(limits.ID_PATTERN)
_SLUG = re.compile(limits.SLUG_PATTERN)
_UNITS = {TimestampFormat.EPOCH_MILLIS: 1000, TimestampFormat.EPOCH_SECONDS: 1_000_000}
_MISSING = object()
_NUMBERS = (int, float)

Event = dict[str, Any]
Path = tuple[str, ...]


class Transformed(Struct, frozen=True):
    uuid: str
    submission: Submission


def read_event(value: bytes | None) -> Event:
    """Return the JSON object in a record, or raise Malformed or TooLarge."""
    if not value:
        raise Malformed("invalid_json", "The record is empty: it must hold a JSON object.", rule="JSON in UTF-8")
    if len(value) > limits.RECORD_BYTES:
        raise TooLarge(
            "record_too_large",
            f"The record has {len(value)} bytes; the maximum is {limits.RECORD_BYTES}.",
            rule=f"<= {limits.RECORD_BYTES} bytes",
        )
    try:
        event = msgspec.json.decode(value)
    except RecursionError:
        raise Malformed("invalid_json", "The JSON in the record is nested too deeply.", rule="JSON in UTF-8") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed("invalid_json", f"The record is not JSON: {error}.", rule="JSON in UTF-8") from None
    if not isinstance(event, dict):
        raise Malformed("not_an_object", "The record must hold a JSON object.", rule="a JSON object")
    return event


def look_up(where: FieldSource, event: Event, headers: Headers) -> Any:
    """Return the value of a field or header, or None if it is missing."""
    if where.header is not None:
        value = dict(headers).get(where.header)
        return None if value is None else value.decode("utf-8", "replace")
    assert where.field is not None, "a source has either a field or a header"
    found = _find(event, tuple(where.field.split(".")))
    return None if found is _MISSING else found


class Transformer:
    """A schema that is prepared for reading events."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        terms = schema.terms
        mappings = terms.field_mappings
        self._user_id = _split(mappings.user_id)
        self._score = _split(mappings.score)
        self._uuid = _split(mappings.uuid)
        self._timestamp = None if mappings.timestamp is None else _split(mappings.timestamp)
        self._region = None if mappings.region is None else _split(mappings.region)
        self._subscore = None if mappings.subscore is None else _split(mappings.subscore)
        self._subscore_field = mappings.subscore or ""
        # For error messages.
        self._score_field, self._timestamp_field = mappings.score, mappings.timestamp or ""
        self._to_us = _from_iso if terms.timestamp_format is TimestampFormat.ISO_8601 else _from_epoch
        self._unit = _UNITS.get(terms.timestamp_format, 1)
        self._event_id = terms.event_id_from
        # Event id and schema version are not repeated in the metadata.
        told = [where.field for where in (terms.event_id_from, terms.version_from) if where and where.field]
        paths = [self._user_id, self._score, self._uuid, *map(_split, told)]
        paths += [path for path in (self._timestamp, self._region, self._subscore) if path is not None]
        self._mapped = sorted(set(paths), key=len)

    def transform(self, event: Event, record: KafkaRecord) -> Transformed:
        """Return the score in an event.

        Removes the mapped fields from `event`, so that only the metadata is left.
        """
        user_id = _compose(_text(event, self._user_id, "userId", _ID, limits.USER_ID_CHARS), "userId")
        uuid = _text(event, self._uuid, "UUID", _SLUG, limits.BOARD_UUID_CHARS)
        score = self._read_score(event)
        at, stamped = record.at, self._timestamp is None
        if self._timestamp is not None:
            at = self._to_us(_need(event, self._timestamp, "timestamp"), self._timestamp_field, self._unit)
        region = None
        if self._region is not None and _is_there(_find(event, self._region)):
            region = _text(event, self._region, "region", _SLUG, limits.REGION_CHARS)
        subscore = None
        if self._subscore is not None and _is_there(_find(event, self._subscore)):
            subscore = self._read_subscore(_find(event, self._subscore))
        event_id = (
            record.record_id if self._event_id is None else self._read_event_id(self._event_id, event, record.headers)
        )
        for path in self._mapped:
            _remove(event, path)
        return Transformed(
            uuid,
            Submission(
                user_id,
                score,
                at=at,
                event_id=event_id,
                metadata=event or None,
                stamped=stamped,
                region=region,
                subscore=subscore,
            ),
        )

    def _read_subscore(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > limits.SUBSCORE:
            kind = f"an integer from -{limits.SUBSCORE} to {limits.SUBSCORE}"
            field, shown = self._subscore_field, _show(value)
            raise Invalid("invalid_score", f"{field} (subscore) must be {kind}, not {shown}.", field=field, rule=kind)
        return value

    def _read_score(self, event: Event) -> float:
        value = _need(event, self._score, "score")
        field = self._score_field
        whole = self.schema.terms.score_type is ScoreType.INTEGER
        if not _is_number(value) or (whole and isinstance(value, float) and not value.is_integer()):
            kind = "a whole number" if whole else "a number"
            raise Invalid(
                "invalid_score", f"{field} (score) must be {kind}, not {_show(value)}.", field=field, rule=kind
            )
        try:
            return exact_score(value, field)
        except Invalid as error:
            raise Invalid("invalid_score", f"{field} (score): {error.message}", field=field, rule=error.rule) from None

    def _read_event_id(self, where: FieldSource, event: Event, headers: Headers) -> str:
        field = where.field or f"header {where.header}"
        value = look_up(where, event, headers)
        if value is None:
            raise Invalid("schema_mismatch", f"{field} (eventId) is missing.", field=field, rule="required")
        return _compose(_check_text(value, field, "eventId", _ID, limits.EVENT_ID_CHARS), field)


def _compose(text: str, field: str) -> str:
    """Return an id in composed form. A few characters become several, so it may be too long then."""
    found = composed(text)
    if len(found) > limits.USER_ID_CHARS:
        rule = f"<= {limits.USER_ID_CHARS} characters"
        raise Invalid("wrong_length", f"{field} is too long in Unicode's composed form (NFC).", field=field, rule=rule)
    return found


def show_common(pod_id: str, transformed: Transformed) -> dict[str, Any]:
    """Return a score in the common format of transformed events."""
    submission = transformed.submission
    assert submission.at is not None, "a record has a time"
    at = to_datetime(submission.at)
    timespec = "microseconds" if at.microsecond % 1000 else "milliseconds"
    shown: dict[str, Any] = {
        "eventId": submission.event_id,
        "eventType": EVENT_TYPE,
        "podId": pod_id,
        "UUID": transformed.uuid,
        "userId": submission.user_id,
        "score": submission.score,
        "timestamp": at.isoformat(timespec=timespec).replace("+00:00", "Z"),
        "metadata": submission.metadata or {},
    }
    told = {"region": submission.region, "subscore": submission.subscore}
    return shown | {name: value for name, value in told.items() if value is not None}


def _split(path: str) -> Path:
    return tuple(path.split("."))


def _find(event: Any, path: Path) -> Any:
    for part in path:
        if type(event) is not dict:
            return _MISSING
        event = event.get(part, _MISSING)
    return event


def _is_number(value: Any) -> bool:
    # JSON has no other numbers; a bool is an int, but not a number in JSON.
    return type(value) in _NUMBERS


def _is_there(value: Any) -> bool:
    return value is not _MISSING and value is not None


def _need(event: Event, path: Path, what: str) -> Any:
    value = _find(event, path)
    if not _is_there(value):
        field = ".".join(path)
        raise Invalid("schema_mismatch", f"{field} ({what}) is missing.", field=field, rule="required")
    return value


def _remove(event: Event, path: Path) -> None:
    """Remove a field, and the objects around it that become empty."""
    name, *rest = path
    if not rest:
        event.pop(name, None)
        return
    inner = event.get(name)
    if isinstance(inner, dict):
        _remove(inner, tuple(rest))
        if not inner:
            del event[name]


def _text(event: Event, path: Path, what: str, pattern: re.Pattern[str], longest: int) -> str:
    value = _need(event, path, what)
    # The usual case first, because every record has several of them.
    if type(value) is str and 1 <= len(value) <= longest and pattern.match(value):
        return value
    return _check_text(value, ".".join(path), what, pattern, longest)


def _check_text(value: Any, field: str, what: str, pattern: re.Pattern[str], longest: int) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise Invalid(
            "schema_mismatch", f"{field} ({what}) must be a string, not {_show(value)}.", field=field, rule="a string"
        )
    if not 1 <= len(value) <= longest:
        raise Invalid(
            "wrong_length",
            f"{field} ({what}) must have 1 to {longest} characters, but has {len(value)}.",
            field=field,
            rule=f"1..{longest} characters",
        )
    if pattern.match(value) is None:
        rule = (
            "no control characters"
            if pattern is _ID
            else "only letters, digits, '.', '_' and '-', with a letter or digit first"
        )
        raise Invalid("wrong_format", f"{field} ({what}) must contain {rule}.", field=field, rule=rule)
    return value


def _from_iso(value: Any, field: str, _unit: int) -> int:
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None and FIRST_US <= (at := to_us(moment)) <= LAST_US:
            return at
    except (ValueError, TypeError, OverflowError):
        pass
    raise _bad_time(value, field, "ISO 8601 with a time zone, for example 2024-01-15T10:30:00Z")


def _from_epoch(value: Any, field: str, unit: int) -> int:
    if _is_number(value) and 0 <= value * unit <= LAST_US:
        return value * unit if isinstance(value, int) else int(Decimal(repr(value)) * unit)
    rule = "milliseconds since 1970" if unit == _UNITS[TimestampFormat.EPOCH_MILLIS] else "seconds since 1970"
    raise _bad_time(value, field, f"a number of {rule}")


def _bad_time(value: Any, field: str, rule: str) -> LaurelsError:
    return Invalid(
        "invalid_timestamp", f"{field} (timestamp) must be {rule}, not {_show(value)}.", field=field, rule=rule
    )


def _show(value: Any) -> str:
    """Return a value as JSON, shortened to about 60 characters."""
    text = msgspec.json.encode(value).decode() if not isinstance(value, int) else str(value)[:64]
    return text if len(text) <= 60 else f"{text[:60]}…"
