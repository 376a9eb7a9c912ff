"""Bad input is answered with a problem that has the field, the rule and a stable code, and has no effect."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from laurels.core import limits
from support.calls import NewBoard, problem
from support.running import RunningServer

JSON = {"Content-Type": "application/json"}
NOW = datetime.now(UTC)
DEEP = '{"a":' * 20 + "1" + "}" * 20

# (body of a PUT, status, code, field)
BODIES: list[tuple[str, int, str, str | None]] = [
    ('{"score": NaN}', 422, "not_finite", "score"),
    ('{"score": Infinity}', 422, "not_finite", "score"),
    ('{"score": -Infinity}', 422, "not_finite", "score"),
    ('{"score": 1e400}', 422, "not_finite", "score"),
    ('{"score": -1e400}', 422, "not_finite", "score"),
    ('{"score": ' + "9" * 400 + "}", 422, "not_finite", "score"),
    ('{"score": "5"}', 422, "wrong_type", "score"),
    ('{"score": true}', 422, "wrong_type", "score"),
    ('{"score": null}', 422, "wrong_type", "score"),
    ('{"score": [1]}', 422, "wrong_type", "score"),
    ('{"score": 9007199254740993}', 422, "not_exact", "score"),
    ('{"score": -9007199254740993}', 422, "not_exact", "score"),
    ("{}", 422, "missing_field", "score"),
    ('{"score": 1, "scor": 2}', 422, "unknown_field", "scor"),
    ('{"score": 1, "eventId": ""}', 422, "wrong_length", "eventId"),
    ('{"score": 1, "eventId": "' + "e" * 300 + '"}', 422, "wrong_length", "eventId"),
    ('{"score": 1, "eventId": "a\\u0000b"}', 422, "wrong_format", "eventId"),
    ('{"score": 1, "eventId": "a\\n"}', 422, "wrong_format", "eventId"),
    ('{"score": 1, "eventId": 7}', 422, "wrong_type", "eventId"),
    ('{"score": 1, "timestamp": "2026-01-01T00:00:00"}', 422, "invalid_timestamp", "timestamp"),
    ('{"score": 1, "timestamp": "yesterday"}', 422, "invalid_timestamp", "timestamp"),
    ('{"score": 1, "timestamp": "2026-02-30T00:00:00Z"}', 422, "invalid_timestamp", "timestamp"),
    ('{"score": 1, "timestamp": 1700000000}', 422, "wrong_type", "timestamp"),
    ('{"score": 1, "timestamp": "1969-12-31T23:59:59Z"}', 422, "timestamp_out_of_range", "timestamp"),
    ('{"score": 1, "score": 2}', 400, "duplicate_name", None),
    ('{"score": 1, "sc\\u006fre": 2}', 400, "duplicate_name", None),
    ('{"score": 1, "metadata": {"a": {"b": 1, "b": 2}}}', 400, "duplicate_name", None),
    ('{"score": 1, "timestamp": "0001-01-01T00:00:00+05:00"}', 422, "timestamp_out_of_range", "timestamp"),
    (
        json.dumps({"score": 1, "timestamp": (NOW + timedelta(days=1)).isoformat()}),
        422,
        "timestamp_out_of_range",
        "timestamp",
    ),
    ('{"score": 1, "metadata": 5}', 422, "wrong_type", "metadata"),
    ('{"score": 1, "metadata": {"a": NaN}}', 422, "not_finite", "metadata.a"),
    ('{"score": 1, "metadata": ' + DEEP + "}", 422, "metadata_too_large", "metadata"),
    ('{"score": 1, "metadata": {"a": ' + "[" * 480 + "]" * 480 + "}}", 422, "metadata_too_large", "metadata"),
    (json.dumps({"score": 1, "metadata": {"a": "x" * 5000}}), 422, "metadata_too_large", "metadata"),
    ("", 400, "invalid_json", None),
    ("score=1", 400, "invalid_json", None),
    ('{"score": 1', 400, "invalid_json", None),
    ('{"score": 1}}', 400, "invalid_json", None),
    ('{"score": 1, "eventId": "\\ud800"}', 400, "invalid_json", None),
    ("[1]", 400, "not_an_object", None),
    ("5", 400, "not_an_object", None),
    ("null", 400, "not_an_object", None),
    ('{"score": 1, "metadata": {"a": ' + "[" * 30_000 + "]" * 30_000 + "}}", 400, "too_deep", None),
    ('{"score": 1, "metadata": {"a": "' + "x" * 70_000 + '"}}', 413, "body_too_large", None),
]


@pytest.fixture(scope="module")
def board(new_board: NewBoard) -> str:
    return new_board(rule="increment")


@pytest.fixture(autouse=True)
def nothing_happens(api: httpx.Client, board: str) -> Iterator[None]:
    yield
    assert api.get(f"/api/v1/leaderboards/{board}/top").json()["totalUsers"] == 0


@pytest.mark.parametrize(
    ("body", "status", "code", "field"), BODIES, ids=[f"{each[2]}: {each[0][:40]}" for each in BODIES]
)
def test_invalid_score_body_is_refused(
    api: httpx.Client, board: str, body: str, status: int, code: str, field: str | None
) -> None:
    url = f"/api/v1/leaderboards/{board}/users/ada"
    problem(api.put(url, content=body.encode(), headers=JSON), status, code, field)


def test_body_with_many_repeated_names_is_refused_at_once(api: httpx.Client, board: str) -> None:
    """The check is one pass: these 60,000 names took more than a minute when each was counted."""
    names = ",".join(f'"n{number}":1' for number in range(60_000)) + ',"n59999":1'
    content = '{"scores":[{"userId":"ada","score":1,"metadata":{' + names + "}}]}"
    answer = api.post(
        f"/api/v1/leaderboards/{board}/scores",
        content=content,
        headers={"Content-Type": "application/json"},
        timeout=20,
    )
    assert answer.status_code in {200, 400, 422}, answer.text
    assert "duplicate_name" in answer.text or "metadata_too_large" in answer.text


def test_body_with_invalid_utf8_is_refused(api: httpx.Client, board: str) -> None:
    response = api.put(
        f"/api/v1/leaderboards/{board}/users/a", content=b'{"score": 1, "eventId": "\xff"}', headers=JSON
    )
    problem(response, 400, "invalid_json")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_body_with_a_content_type_other_than_json_is_refused(api: httpx.Client, board: str, media_type: str) -> None:
    headers = {"Content-Type": media_type}
    response = api.put(f"/api/v1/leaderboards/{board}/users/ada", content=b'{"score": 1}', headers=headers)
    problem(response, 415, "media_type_not_json", "Content-Type")


@pytest.mark.parametrize(
    ("user", "status", "code"),
    [
        ("", 422, "wrong_length"),
        ("x" * 300, 422, "wrong_length"),
        ("a\nb", 422, "wrong_format"),
        ("ab\n", 422, "wrong_format"),
        ("a\x00", 422, "wrong_format"),
        ("a\x7f", 422, "wrong_format"),
        ("\x85", 422, "wrong_format"),
    ],
)
def test_invalid_user_id_is_refused(api: httpx.Client, board: str, user: str, status: int, code: str) -> None:
    path = f"/api/v1/leaderboards/{board}/users/{quote(user, safe='')}"
    problem(api.put(path, json={"score": 1}), status, code, "userId")
    problem(api.get(path + "/rank"), status, code, "userId")


def test_path_with_invalid_utf8_is_refused(api: httpx.Client, board: str) -> None:
    response = api.put(f"/api/v1/leaderboards/{board}/users/%ff%fe", json={"score": 1})
    problem(response, 400, "invalid_path")


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("limit=0", "out_of_range", "limit"),
        ("limit=1001", "out_of_range", "limit"),
        ("limit=-1", "out_of_range", "limit"),
        ("limit=ten", "wrong_type", "limit"),
        ("limit=", "wrong_type", "limit"),
        ("limit=1&limit=2", "wrong_length", "limit"),
        ("offset=-1", "out_of_range", "offset"),
        ("offset=99999999999999999999", "out_of_range", "offset"),
        ("limt=5", "unknown_field", "limt"),
        ("ranking=best", "not_a_choice", "ranking"),
        ("window=daily", "window_not_available", "window"),
        ("segment=region:eu", "segment_not_available", "segment"),
    ],
)
def test_invalid_query_parameter_of_top_is_refused(
    api: httpx.Client, board: str, query: str, code: str, field: str
) -> None:
    problem(api.get(f"/api/v1/leaderboards/{board}/top?{query}"), 422, code, field)


def test_invalid_parameters_of_other_reads_are_refused(api: httpx.Client, board: str) -> None:
    base = f"/api/v1/leaderboards/{board}"
    problem(api.get(f"{base}/users/ada/around?above=501"), 422, "out_of_range", "above")
    problem(api.get(f"{base}/rank"), 422, "missing_field", "score")
    problem(api.get(f"{base}/rank?score=nan"), 422, "not_finite", "score")
    problem(api.get(f"{base}/rank?score=9007199254740993"), 422, "not_exact", "score")
    problem(api.get(f"{base}/range?minScore=2&maxScore=1"), 422, "bounds_reversed", "maxScore")
    problem(api.get(f"{base}/range?minScore=inf"), 422, "not_finite", "minScore")
    problem(api.get(f"{base}/top?percent=0"), 422, "out_of_range", "percent")
    problem(api.get(f"{base}/top?percent=nan"), 422, "out_of_range", "percent")
    problem(api.get(f"{base}/top?percent=5&ranking=dense"), 422, "not_a_choice", "ranking")
    problem(api.get(f"{base}/top?order=backwards"), 422, "not_a_choice", "order")
    for wrong in ("", "101", "-1", "1e1", "50,", "1.23456", ",".join(["1"] * 21)):
        answer = api.get(f"{base}/distribution", params={"percentiles": wrong})
        told = problem(answer, 422, "wrong_format", "percentiles")
        assert "numbers from 0 to 100, such as 50,99,99.9" in told["detail"]
    problem(api.get(f"{base}/distribution?buckets=0"), 422, "out_of_range", "buckets")
    problem(api.get(f"{base}/top?period=daily-2026-01-01"), 404, "period_not_found", "period")
    problem(api.get(f"{base}/users/ada/history?cursor=!!"), 422, "invalid_cursor", "cursor")
    problem(api.get("/api/v1/leaderboards?cursor=LTE"), 422, "invalid_cursor", "cursor")
    problem(api.get("/api/v1/leaderboards?status=OVER"), 422, "not_a_choice", "status")
    problem(api.post(f"{base}/ranks", json={"userIds": []}), 422, "wrong_length", "userIds")
    problem(api.post(f"{base}/ranks", json={"userIds": ["a"] * 1001}), 422, "wrong_length", "userIds")
    problem(api.post(f"{base}/ranks", json={"userIds": ["a", ""]}), 422, "wrong_length", "userIds[1]")


def test_unknown_board_path_and_method_are_refused(api: httpx.Client) -> None:
    problem(api.put("/api/v1/leaderboards/nope/users/ada", json={"score": 1}), 404, "board_not_found", "UUID")
    problem(api.get("/api/v1/leaderboards/nope/top"), 404, "board_not_found", "UUID")
    problem(api.get("/api/v2/leaderboards"), 404, "no_such_address")
    problem(api.get("/api/v1/leaderboards/"), 404, "no_such_address")
    response = api.post("/api/v1/leaderboards/nope/top")
    problem(response, 405, "method_not_allowed")
    assert set(response.headers["Allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize(
    ("fields", "status", "code", "field"),
    [
        ({"name": ""}, 422, "wrong_length", "name"),
        ({"rule": "worst"}, 422, "not_a_choice", "rule"),
        ({"capacity": 0}, 422, "out_of_range", "capacity"),
        ({"capacity": 1.5}, 422, "wrong_type", "capacity"),
        ({"UUID": "a b"}, 422, "wrong_format", "UUID"),
        ({"UUID": "a\n"}, 422, "wrong_format", "UUID"),
        ({"startTime": "0001-01-01T00:00:00+14:00"}, 422, "timestamp_out_of_range", "startTime"),
        ({"endTime": "9999-12-31T23:59:59-14:00"}, 422, "timestamp_out_of_range", "endTime"),
        ({"windows": ["hourly"]}, 422, "invalid_window", "windows[0]"),
        ({"windows": ["all", "all"]}, 422, "invalid_window", "windows[1]"),
        ({"windows": [{"window": "daily", "timeZone": "Mars/Olympus"}]}, 422, "invalid_window", "windows[0]"),
        ({"windows": [{"window": "daily", "cron": "0 0 * * *"}]}, 422, "invalid_window", "windows[0]"),
        ({"windows": [{"window": "daily", "startDay": "sunday"}]}, 422, "invalid_window", "windows[0]"),
        ({"windows": [{"window": "weekly", "startDay": "Sunday"}]}, 422, "not_a_choice", "windows[0].startDay"),
        ({"windows": [{"window": "never", "cron": "0 0 30 2 *"}]}, 422, "invalid_window", "windows[0]"),
        ({"windows": [{"window": "a b", "cron": "0 0 * * *"}]}, 422, "wrong_format", "windows[0].window"),
        ({"windows": [7]}, 422, "wrong_type", "windows[0]"),
        ({"rewards": [{"name": "x", "prize": 1}]}, 422, "invalid_reward", "rewards[0]"),
        (
            {"rewards": [{"name": "x", "prize": 1, "ranks": {"from": 1, "to": 3}, "segment": "region"}]},
            422,
            "invalid_reward",
            "rewards[0]",
        ),
        (
            {
                "segments": ["region"],
                "rewards": [{"name": "x", "prize": 1, "topPercent": 3, "segment": "region"}],
            },
            422,
            "invalid_reward",
            "rewards[0]",
        ),
        ({"rewards": [{"name": "x", "prize": 1, "ranks": {"from": 3, "to": 1}}]}, 422, "invalid_reward", "rewards[0]"),
        ({"rewards": [{"name": "x", "prize": 1, "topPercent": 0}]}, 422, "out_of_range", "rewards[0].topPercent"),
        ({"rewards": [{"name": "x", "prize": 1, "scores": {}}]}, 422, "invalid_reward", "rewards[0]"),
        ({"rewards": [{"name": "x", "prize": "y" * 3000, "topPercent": 1}]}, 422, "invalid_reward", "rewards[0]"),
        (
            {"rewards": [{"name": "x", "prize": 1, "topPercent": 1, "windows": ["daily"]}]},
            422,
            "invalid_reward",
            "rewards[0]",
        ),
        ({"graceSeconds": -1}, 422, "out_of_range", "graceSeconds"),
        ({"keepEventsDays": 0}, 422, "out_of_range", "keepEventsDays"),
        ({"windows": []}, 422, "wrong_length", "windows"),
        ({"segments": ["region:eu"]}, 422, "not_a_choice", "segments[0]"),
        ({"podId": "nobody"}, 404, "pod_not_found", "podId"),
        ({"minScore": 5, "maxScore": 4}, 422, "bounds_reversed", "maxScore"),
        ({"minScore": 9007199254740993}, 422, "not_exact", "minScore"),
        ({"startTime": "2026-01-02T00:00:00Z", "endTime": "2026-01-01T00:00:00Z"}, 422, "bounds_reversed", "endTime"),
        ({"startTime": "2026-01-02T00:00:00Z", "endTime": "2026-01-02T00:00:00Z"}, 422, "bounds_reversed", "endTime"),
        ({"startTime": "2026-01-02"}, 422, "invalid_timestamp", "startTime"),
        ({"flushMs": 0}, 422, "out_of_range", "flushMs"),
        ({"metadata": {"a": "x" * 5000}}, 422, "metadata_too_large", "metadata"),
    ],
)
def test_board_with_an_invalid_field_is_refused(
    api: httpx.Client, fields: dict[str, Any], status: int, code: str, field: str
) -> None:
    body = {"podId": "default", "name": "A board"} | fields
    problem(api.post("/api/v1/leaderboards", json=body), status, code, field)


def test_score_outside_the_bounds_of_the_board_is_refused(api: httpx.Client, new_board: NewBoard) -> None:
    board = new_board(minScore=0, maxScore=100)
    for score in (-0.5, 100.5):
        response = api.put(f"/api/v1/leaderboards/{board}/users/ada", json={"score": score})
        body = problem(response, 422, "score_out_of_bounds", "score")
        assert body["rule"] == "0 <= score <= 100"
    for score in (0, 100):
        assert api.put(f"/api/v1/leaderboards/{board}/users/ada", json={"score": score}).status_code == 200


def test_board_that_is_not_active_refuses_scores(api: httpx.Client, new_board: NewBoard) -> None:
    """Boards that have not started, have ended or are archived; and an event from before the start of an open board."""
    hour = timedelta(hours=1)
    cases = [
        ({"startTime": (NOW + hour).isoformat()}, "board_not_started"),
        ({"endTime": (NOW - hour).isoformat()}, "board_ended"),
    ]
    for fields, code in cases:
        board = new_board(**fields)
        problem(api.put(f"/api/v1/leaderboards/{board}/users/ada", json={"score": 1}), 409, code)
        problem(
            api.post(f"/api/v1/leaderboards/{board}/scores", json={"scores": [{"userId": "a", "score": 1}]}), 409, code
        )
    board = new_board()
    api.delete(f"/api/v1/leaderboards/{board}")
    problem(api.put(f"/api/v1/leaderboards/{board}/users/ada", json={"score": 1}), 409, "board_archived")
    board = new_board(startTime=(NOW - hour).isoformat())
    early = {"score": 1, "timestamp": (NOW - 2 * hour).isoformat()}
    response = api.put(f"/api/v1/leaderboards/{board}/users/ada", json=early)
    problem(response, 422, "outside_board_time", "timestamp")


def test_event_id_reused_with_another_payload_is_a_conflict(api: httpx.Client, new_board: NewBoard) -> None:
    board = new_board(rule="increment")
    path = f"/api/v1/leaderboards/{board}/users/ada"
    first = {"score": 5, "eventId": "match-1", "timestamp": "2026-01-01T00:00:00Z", "metadata": {"b": 1, "a": 2}}
    assert api.put(path, json=first).json()["score"] == 5
    again = api.put(path, json=first | {"metadata": {"a": 2, "b": 1}})
    assert (again.status_code, again.json()["score"], again.json()["duplicate"]) == (200, 5, True)
    others: tuple[dict[str, Any], ...] = (
        {"score": 6},
        {"timestamp": "2026-01-01T00:00:01Z"},
        {"metadata": {}},
        {"timestamp": None},
    )
    for other in others:
        problem(api.put(path, json=first | other), 409, "event_conflict", "eventId")
    problem(api.put(path + "b", json=first), 409, "event_conflict", "eventId")
    assert api.get(f"{path}/rank").json()["score"] == 5


def test_batch_returns_a_separate_result_for_each_item(api: httpx.Client, new_board: NewBoard) -> None:
    board = new_board(rule="increment", maxScore=100)
    body = """{"scores": [
        {"userId": "ada", "score": 5, "eventId": "e1"},
        {"userId": "bob", "score": "5"},
        {"userId": "", "score": 5},
        {"userId": "cy", "score": 9007199254740993},
        {"userId": "dan", "score": 101},
        {"userId": "ada", "score": 5, "eventId": "e1"},
        {"userId": "ada", "score": 6, "eventId": "e1"},
        {"score": 5},
        7,
        {"userId": "eve", "score": 1e999},
        {"userId": "fay", "score": 7, "extra": 1},
        {"userId": "gus", "score": 7, "timestamp": "2026-01-01T00:00:00"},
        {"userId": "hal", "score": 7, "metadata": {"a": DEEP}},
        {"userId": "ada", "score": 3}
    ]}""".replace("DEEP", "[" * 480 + "]" * 480)
    response = api.post(f"/api/v1/leaderboards/{board}/scores", content=body, headers=JSON)
    assert response.status_code == 200
    results = response.json()["results"]
    told = [
        (r["userId"], r["status"], r["score"], r["problem"] and (r["problem"]["code"], r["problem"].get("field")))
        for r in results
    ]
    assert told == [
        ("ada", "accepted", 8, None),
        ("bob", "refused", None, ("wrong_type", "score")),
        ("", "refused", None, ("wrong_length", "userId")),
        ("cy", "refused", None, ("not_exact", "score")),
        ("dan", "refused", None, ("score_out_of_bounds", "score")),
        ("ada", "duplicate", 8, None),
        ("ada", "refused", None, ("event_conflict", "eventId")),
        (None, "refused", None, ("missing_field", "userId")),
        (None, "refused", None, ("not_an_object", None)),
        ("eve", "refused", None, ("not_finite", "score")),
        ("fay", "refused", None, ("unknown_field", "extra")),
        ("gus", "refused", None, ("invalid_timestamp", "timestamp")),
        ("hal", "refused", None, ("metadata_too_large", "metadata")),
        ("ada", "accepted", 8, None),
    ]
    assert api.get(f"/api/v1/leaderboards/{board}/top").json()["totalUsers"] == 1


def test_invalid_batch_is_refused_as_a_whole(api: httpx.Client, board: str) -> None:
    url = f"/api/v1/leaderboards/{board}/scores"
    problem(api.post(url, json={"scores": []}), 422, "wrong_length", "scores")
    problem(api.post(url, json={}), 422, "missing_field", "scores")
    many = [{"userId": "a", "score": 1}] * (limits.BATCH_ITEMS + 1)
    problem(api.post(url, json={"scores": many}), 422, "wrong_length", "scores")
    problem(
        api.post(url, content=b'{"scores": [' + b" " * limits.BATCH_BODY_BYTES + b"]}", headers=JSON),
        413,
        "body_too_large",
    )
    problem(
        api.post(url, content=b'{"scores": [{"userId": "a", "score": NaN}]}', headers=JSON),
        422,
        "not_finite",
        "scores[0].score",
    )


def test_invalid_board_changes_pods_keys_and_profiles_are_refused(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board()}"
    early = {"endTime": "0001-01-01T00:00:00+14:00"}
    problem(api.patch(board, json=early), 422, "timestamp_out_of_range", "endTime")
    problem(api.patch(board, json={"minScore": 9007199254740993}), 422, "not_exact", "minScore")
    problem(api.patch(board, json={"metadata": {"a": "x" * 5000}}), 422, "metadata_too_large", "metadata")
    problem(api.post("/api/v1/pods", json={"podId": "p\n", "name": "P"}), 422, "wrong_format", "podId")
    problem(api.post("/api/v1/pods/default/keys", json={"role": "server\n"}), 422, "not_a_choice", "role")
    problem(api.post("/api/v1/pods/default/keys", json={"role": "admin"}), 422, "not_a_choice", "role")
    problem(api.post("/api/v1/leaderboards", json={"name": "Whose?"}), 422, "missing_field", "podId")
    hidden = {"avatarUrl": "https://example.com/\0.png"}
    problem(api.put("/api/v1/users/ada?podId=default", json=hidden), 422, "wrong_format", "avatarUrl")


def test_request_without_a_key_is_refused_before_its_body_is_read(server: RunningServer) -> None:
    with server.client(None) as nobody:
        url = "/api/v1/leaderboards/default/scores"
        problem(nobody.post(url, content=b"nonsense", headers=JSON), 401, "key_required")
        problem(nobody.post(url, content=b"x" * 9_000_000, headers=JSON), 401, "key_required")


def test_empty_call_replaces_no_profile_and_hides_nobody(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board()}"
    person = f"/api/v1/users/{uuid4()}"
    where = {"podId": "default"}
    assert api.put(person, json={"displayName": "Ada"}, params=where).status_code == 200
    problem(api.put(person, params=where), 415, "media_type_not_json", "Content-Type")
    assert api.get(person, params=where).json()["displayName"] == "Ada"
    api.put(f"{board}/users/ada", json={"score": 1})
    for path in (f"{board}/users/ada/hidden", "/api/v1/users/ada/hidden?podId=default"):
        problem(api.put(path), 415, "media_type_not_json", "Content-Type")
    assert api.get(f"{board}/users/ada/rank").json()["rank"] == 1
    # An empty object is an answer to the question.
    assert api.put(person, json={}, params=where).json()["displayName"] is None


def test_null_in_a_query_is_a_text(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board()}"
    for user in ("null", "ada"):
        api.put(f"{board}/users/{user}", json={"score": 1})
    problem(api.get("/api/v1/leaderboards", params={"status": "null"}), 422, "not_a_choice", "status")
    assert api.get("/api/v1/leaderboards", params={"podId": "null"}).json()["leaderboards"] == []
    problem(api.get(f"{board}/top", params={"window": "null"}), 422, "window_not_available", "window")
    problem(api.get(f"{board}/top", params={"ranking": "Null"}), 422, "not_a_choice", "ranking")
    problem(api.get(f"{board}/top", params={"limit": "null"}), 422, "wrong_type", "limit")
    found = api.get(f"{board}/search", params={"q": "null"}).json()["users"]
    assert [each["userId"] for each in found] == ["null"]
    assert api.get("/api/v1/audit", params={"userId": "null"}).json()["entries"] == []
