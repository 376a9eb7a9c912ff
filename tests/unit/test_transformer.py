"""The mapping from a game's Kafka events to scores."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laurels.core.schemas import (
    FieldMappings,
    FieldSource,
    Schema,
    SchemaState,
    SchemaTerms,
    ScoreType,
    TimestampFormat,
)
from laurels.errors import LaurelsError
from laurels.ports import KafkaRecord
from laurels.service.ingest.transformer import Transformer, read_event, show_common
from support.pods import EVENT

T = TypeVar("T")

AT = 1_700_000_000_000_000


def schema(mappings: FieldMappings | None = None, **terms: Any) -> Schema:
    mappings = mappings or FieldMappings("playerId", "points", "leaderboardUuid", "gameTime")
    return Schema("pod-1", "1.0", SchemaState.ACTIVE, SchemaTerms(mappings, **terms), 0, 0)


def letter(event: Any, *headers: tuple[str, bytes]) -> KafkaRecord:
    value = event if isinstance(event, bytes) else json.dumps(event).encode()
    return KafkaRecord("pod-pod-1-score-updates", 2, 41, None, value, headers, AT)


def common(of: Schema, event: Any, *headers: tuple[str, bytes]) -> dict[str, Any]:
    sent = letter(event, *headers)
    return show_common("pod-1", Transformer(of).transform(read_event(sent.value), sent))


def failure(of: Schema, event: Any, *headers: tuple[str, bytes]) -> tuple[str, str | None]:
    with pytest.raises(LaurelsError) as raised:
        common(of, event, *headers)
    assert raised.value.field is None or raised.value.field.removeprefix("header ") in raised.value.message
    return raised.value.code, raised.value.field


def outcome(work: Callable[[], T]) -> T | LaurelsError:
    try:
        return work()
    except LaurelsError as error:
        return error


def test_documented_example_produces_the_documented_output() -> None:
    assert common(schema(score_type=ScoreType.INTEGER), EVENT) == {
        "eventId": "pod-pod-1-score-updates/2/41@1700000000000",
        "eventType": "SCORE_UPDATE",
        "podId": "pod-1",
        "UUID": "lb-uuid-123",
        "userId": "player-789",
        "score": 2500.0,
        "timestamp": "2024-01-15T10:30:00.000Z",
        "metadata": {"matchId": "match-abc-123", "gameMode": "ranked"},
    }


def test_nested_fields_are_mapped_and_the_rest_becomes_metadata() -> None:
    mappings = FieldMappings("user.id", "score.value", "context.leaderboardUuid", "eventTime")
    event = {
        "user": {"id": 77, "guild": "owls"},
        "score": {"value": 12.5},
        "eventTime": "2024-01-15T12:30:00.123456+02:00",
        "context": {"leaderboardUuid": "lb", "mode": {"name": "duo"}},
    }
    shown = common(schema(mappings), event)
    assert (shown["userId"], shown["score"], shown["UUID"]) == ("77", 12.5, "lb")
    assert shown["timestamp"] == "2024-01-15T10:30:00.123456Z"
    assert shown["metadata"] == {"user": {"guild": "owls"}, "context": {"mode": {"name": "duo"}}}


@pytest.mark.parametrize(
    ("form", "value", "shown"),
    [
        (TimestampFormat.ISO_8601, "2024-02-29T23:59:59Z", "2024-02-29T23:59:59.000Z"),
        (TimestampFormat.ISO_8601, "2024-02-29T23:59:59.5+05:45", "2024-02-29T18:14:59.500Z"),
        (TimestampFormat.EPOCH_MILLIS, 1705314600123, "2024-01-15T10:30:00.123Z"),
        (TimestampFormat.EPOCH_MILLIS, 1705314600123.5, "2024-01-15T10:30:00.123500Z"),
        (TimestampFormat.EPOCH_SECONDS, 1705314600, "2024-01-15T10:30:00.000Z"),
        (TimestampFormat.EPOCH_SECONDS, 1705314600.123456, "2024-01-15T10:30:00.123456Z"),
        (TimestampFormat.EPOCH_SECONDS, 0, "1970-01-01T00:00:00.000Z"),
    ],
)
def test_timestamps_of_every_format_are_exact(form: TimestampFormat, value: Any, shown: str) -> None:
    assert common(schema(timestamp_format=form), EVENT | {"gameTime": value})["timestamp"] == shown


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (TimestampFormat.ISO_8601, "2024-01-15T10:30:00"),
        (TimestampFormat.ISO_8601, "yesterday"),
        (TimestampFormat.ISO_8601, 1705314600),
        (TimestampFormat.ISO_8601, ""),
        (TimestampFormat.ISO_8601, "9999-12-31T23:59:59-14:00"),
        (TimestampFormat.ISO_8601, "0001-01-01T00:00:00+14:00"),
        (TimestampFormat.EPOCH_MILLIS, "1705314600123"),
        (TimestampFormat.EPOCH_MILLIS, -1),
        (TimestampFormat.EPOCH_MILLIS, True),
        (TimestampFormat.EPOCH_SECONDS, 1705314600123),
        (TimestampFormat.EPOCH_SECONDS, 10**400),
        (TimestampFormat.EPOCH_SECONDS, [1]),
    ],
)
def test_invalid_timestamp_is_rejected_with_its_field(form: TimestampFormat, value: Any) -> None:
    assert failure(schema(timestamp_format=form), EVENT | {"gameTime": value}) == ("invalid_timestamp", "gameTime")


def test_unmapped_timestamp_is_taken_from_the_record() -> None:
    shown = common(schema(FieldMappings("playerId", "points", "leaderboardUuid")), EVENT)
    assert shown["timestamp"] == "2023-11-14T22:13:20.000Z"
    assert shown["metadata"]["gameTime"] == EVENT["gameTime"]


@pytest.mark.parametrize("value", ["2500", None, True, [1], {"a": 1}, 10**400])
@pytest.mark.parametrize("kind", ScoreType)
def test_invalid_score_is_rejected_with_its_field(kind: ScoreType, value: Any) -> None:
    expected = "schema_mismatch" if value is None else "invalid_score"
    assert failure(schema(score_type=kind), EVENT | {"points": value}) == (expected, "points")


def test_integer_scores_must_be_whole_and_exact() -> None:
    whole = schema(score_type=ScoreType.INTEGER)
    assert common(whole, EVENT | {"points": 2.0})["score"] == 2.0
    assert failure(whole, EVENT | {"points": 2.5}) == ("invalid_score", "points")
    assert failure(whole, EVENT | {"points": 2**53 + 1}) == ("invalid_score", "points")
    assert common(schema(), EVENT | {"points": -2.5})["score"] == -2.5


@pytest.mark.parametrize("name", ["playerId", "points", "gameTime", "leaderboardUuid"])
def test_missing_field_is_named_in_the_error(name: str) -> None:
    event = {each: value for each, value in EVENT.items() if each != name}
    assert failure(schema(), event) == ("schema_mismatch", name)
    assert failure(schema(), EVENT | {name: None}) == ("schema_mismatch", name)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"playerId": ""}, "wrong_length", "playerId"),
        ({"playerId": "x" * 257}, "wrong_length", "playerId"),
        ({"playerId": "a\nb"}, "wrong_format", "playerId"),
        ({"playerId": 1.5}, "schema_mismatch", "playerId"),
        ({"playerId": False}, "schema_mismatch", "playerId"),
        ({"leaderboardUuid": "a board"}, "wrong_format", "leaderboardUuid"),
        ({"leaderboardUuid": {"id": 1}}, "schema_mismatch", "leaderboardUuid"),
    ],
)
def test_invalid_id_is_rejected_with_its_field(change: dict[str, Any], code: str, field: str) -> None:
    assert failure(schema(), EVENT | change) == (code, field)


def test_event_id_is_read_from_a_field_or_a_header() -> None:
    by_field = schema(event_id_from=FieldSource(field="matchId"))
    assert common(by_field, EVENT)["eventId"] == "match-abc-123"
    assert common(by_field, EVENT)["metadata"] == {"gameMode": "ranked"}
    assert failure(by_field, EVENT | {"matchId": None}) == ("schema_mismatch", "matchId")
    by_header = schema(event_id_from=FieldSource(header="event-id"))
    assert common(by_header, EVENT, ("event-id", b"e-1"))["eventId"] == "e-1"
    assert failure(by_header, EVENT) == ("schema_mismatch", "header event-id")
    assert failure(by_header, EVENT, ("event-id", b"\x00\xff")) == ("wrong_format", "header event-id")


def test_region_is_mapped_if_the_event_has_one() -> None:
    mapped = schema(FieldMappings("playerId", "points", "leaderboardUuid", region="where"))
    assert common(mapped, EVENT | {"where": "eu"})["region"] == "eu"
    assert "region" not in common(mapped, EVENT)
    assert failure(mapped, EVENT | {"where": ["eu"]}) == ("schema_mismatch", "where")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b"NaN", "invalid_json"),
        (b'{"points": 1e999}', "invalid_json"),
        (b"[" * 60_000, "invalid_json"),
        (b"[1]", "not_an_object"),
        (b"7", "not_an_object"),
        (b'{"a":"' + b"x" * 70_000 + b'"}', "record_too_large"),
    ],
)
def test_value_that_is_not_a_json_object_is_rejected(value: bytes, code: str) -> None:
    assert failure(schema(), value) == (code, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["playerId", "points", "gameTime", "leaderboardUuid", "user", "extra"])


@given(st.dictionaries(NAMES, JSON, max_size=6), st.sampled_from(TimestampFormat), st.sampled_from(ScoreType))
def test_any_event_is_mapped_or_rejected_with_an_error(
    event: dict[str, Any], form: TimestampFormat, kind: ScoreType
) -> None:
    of = schema(timestamp_format=form, score_type=kind)
    shown = outcome(lambda: common(of, event))
    if isinstance(shown, LaurelsError):
        assert shown.field is None or shown.field in EVENT
    else:
        # No field is lost, and none is added.
        mapped = {"playerId", "points", "gameTime", "leaderboardUuid"}
        assert shown["metadata"] == {name: value for name, value in event.items() if name not in mapped}
        assert shown["userId"] == str(event["playerId"])
        assert shown["score"] == event["points"]


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_rejected_with_an_error(value: bytes) -> None:
    read = outcome(lambda: read_event(value))
    assert isinstance(read, dict) or read.code in {"invalid_json", "not_an_object"}


@given(st.dictionaries(st.sampled_from(["id", "name", "x"]), JSON, min_size=1), JSON)
def test_siblings_of_a_nested_field_stay_in_the_metadata(user: dict[str, Any], other: Any) -> None:
    mappings = FieldMappings("user.id", "points", "board")
    event = {"user": user | {"id": "u"}, "points": 1, "board": "b", "other": other}
    rest = {name: value for name, value in user.items() if name != "id"}
    expected = {"other": other} | ({"user": rest} if rest else {})
    shown = common(schema(mappings), event)["metadata"]
    assert msgspec.json.encode(shown, order="sorted") == msgspec.json.encode(expected, order="sorted")


def test_ids_are_brought_into_the_composed_form() -> None:
    terms = schema(event_id_from=FieldSource(field="matchId"))
    shown = common(terms, EVENT | {"playerId": "Rene\u0301", "matchId": "e\u0301", "gameMode": "e\u0301"})
    assert (shown["userId"], shown["eventId"]) == ("Ren\u00e9", "\u00e9")
    assert shown["metadata"]["gameMode"] == "e\u0301"
