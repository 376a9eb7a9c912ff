"""Error messages say what was wrong and what is expected, with the names of this API."""

import msgspec
import pytest

from laurels.errors import LaurelsError
from laurels.http.decode import decode_body, decode_texts
from laurels.http.queries import TopQuery
from laurels.http.requests import BoardRequest, KeyRequest, RanksRequest, ScoreItem


@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [
        (ScoreItem, '{"userId": "a", "score": "5"}', "score: expected a number, got a string."),
        (ScoreItem, '{"userId": "a", "score": null}', "score: expected a number, got null."),
        (ScoreItem, '{"userId": "a", "score": 1, "eventId": 5}', "eventId: expected a string or null, got an integer."),
        (ScoreItem, '{"userId": "a"}', "score: missing."),
        (ScoreItem, '{"userId": "", "score": 1}', "userId: expected at least 1 character."),
        (ScoreItem, '{"userId": "a\\u0000", "score": 1}', "userId: expected a string without control characters."),
        (
            ScoreItem,
            '{"userId": "a", "scores": 1}',
            (
                "scores: unknown; did you mean score? "
                "Allowed: score, timestamp, eventId, metadata, region, subscore, operation, userId, stamped."
            ),
        ),
        (
            ScoreItem,
            '{"userId": "a", "score": 1, "timestamp": "2026-01-01T00:00:00"}',
            "timestamp: expected a timestamp with a time zone, such as 2026-11-15T09:00:00Z.",
        ),
        (BoardRequest, '{"name": "x", "rule": "max"}', "rule: 'max' is not one of increment, best, latest."),
        (
            BoardRequest,
            '{"name": "x", "UUID": "a b"}',
            "UUID: expected a string of letters, digits, '.', '_' and '-', with a letter or digit first.",
        ),
        (KeyRequest, '{"role": "king"}', "role: 'king' is not one of client, server."),
        (RanksRequest, '{"userIds": []}', "userIds: expected at least 1 item."),
        (RanksRequest, "[]", "The body must be a JSON object."),
        (RanksRequest, "", "The body is empty. Send a JSON object."),
    ],
)
def test_invalid_body_error_describes_the_expected_input(kind: type, body: str, detail: str) -> None:
    with pytest.raises(LaurelsError) as caught:
        decode_body(body.encode(), msgspec.json.Decoder(kind))
    assert caught.value.message == detail


@pytest.mark.parametrize(
    ("texts", "detail"),
    [
        ({"limit": "abc"}, "limit: expected an integer, got a string."),
        ({"limit": "0"}, "limit: expected an integer >= 1."),
        ({"ranking": "x"}, "ranking: 'x' is not one of ordinal, competition, dense."),
    ],
)
def test_invalid_query_error_describes_the_expected_input(texts: dict[str, str], detail: str) -> None:
    with pytest.raises(LaurelsError) as caught:
        decode_texts(texts, TopQuery)
    assert caught.value.message == detail
