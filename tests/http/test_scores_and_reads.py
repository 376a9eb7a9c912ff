"""Reads and writes beyond the model test: history, removal, distribution, all scores, short form, idempotency."""

import json
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx

from support.both_stores import api, new_board, server
from support.calls import NewBoard, problem
from support.running import RunningServer

__all__ = ["api", "new_board", "server"]


def test_history_pages_list_events_newest_first(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(rule='latest')}"
    for number in range(5):
        event = {"score": number, "eventId": f"e{number}", "timestamp": f"2026-01-0{9 - number}T00:00:00Z"}
        api.put(board + "/users/ada", json=event | ({"metadata": {"match": number}} if number else {}))
    assert api.get(board + "/users/ada/rank").json()["score"] == 0
    first = api.get(board + "/users/ada/history?limit=3").json()
    second = api.get(board + f"/users/ada/history?limit=3&cursor={first['nextCursor']}").json()
    assert [event["eventId"] for event in first["events"] + second["events"]] == ["e4", "e3", "e2", "e1", "e0"]
    assert second["nextCursor"] is None
    assert first["events"][0]["metadata"] == {"match": 4}
    assert second["events"][-1]["metadata"] is None
    problem(api.get(board + "/users/bob/history"), 404, "user_not_found", "userId")


def test_removed_user_can_start_over_with_new_events(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(rule='increment')}"
    for user, score in (("ada", 5), ("bob", 3)):
        api.put(f"{board}/users/{user}", json={"score": score, "eventId": f"{user}-1"})
    problem(api.delete(board + "/users/cy"), 404, "user_not_found", "userId")
    headers = {"Idempotency-Key": "once"}
    for _ in range(2):
        assert api.delete(board + "/users/ada", headers=headers).json()["removed"] is True
    problem(api.delete(board + "/users/ada"), 404, "user_not_found", "userId")
    problem(api.get(board + "/users/ada/rank"), 404, "user_not_found", "userId")
    assert api.get(board + "/users/bob/rank").json()["rank"] == 1
    assert api.get(board + "/users/ada/history").json()["events"][0]["voided"] is True
    repeated = api.put(board + "/users/ada", json={"score": 5, "eventId": "ada-1"}).json()
    assert (repeated["duplicate"], repeated["score"], repeated["rank"]) == (True, None, None)
    assert repeated["rankState"] == "removed"
    anew = api.put(board + "/users/ada", json={"score": 2, "eventId": "ada-2"}).json()
    assert (anew["score"], anew["previousScore"], anew["rank"]) == (2, None, 2)
    assert api.delete(board + "/users/ada", headers=headers).status_code == 200
    assert api.get(board + "/users/ada/rank").json()["score"] == 2


def test_idempotency_key_is_used_as_event_id(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(rule='increment')}"
    headers = {"Idempotency-Key": "key-1"}
    for _ in range(3):
        answer = api.put(board + "/users/ada", json={"score": 5}, headers=headers).json()
        assert (answer["score"], answer["eventId"]) == (5, "key-1")
    problem(api.put(board + "/users/ada", json={"score": 6}, headers=headers), 409, "event_conflict", "eventId")
    batch = {"scores": [{"userId": "bob", "score": 1}, {"userId": "bob", "score": 2}]}
    for expected in ("accepted", "duplicate"):
        results = api.post(board + "/scores", json=batch, headers=headers).json()["results"]
        assert [(result["status"], result["score"]) for result in results] == [(expected, 3)] * 2
    problem(
        api.put(board + "/users/ada", json={"score": 5}, headers={"Idempotency-Key": "x" * 300}),
        422,
        "wrong_length",
        "Idempotency-Key",
    )


def test_distribution_returns_correct_buckets_and_deciles(api: httpx.Client, new_board: NewBoard) -> None:
    for order in ("asc", "desc"):
        board = f"/api/v1/leaderboards/{new_board(order=order)}"
        empty = api.get(board + "/distribution").json()
        assert (empty["buckets"], empty["deciles"], empty["totalUsers"]) == ([], [], 0)
        scores = [{"userId": f"u{number}", "score": number} for number in range(1, 101)]
        api.post(board + "/scores", json={"scores": scores})
        answer = api.get(board + "/distribution?buckets=3").json()
        assert answer["buckets"] == [
            {"from": 1, "to": 34, "count": 33},
            {"from": 34, "to": 67, "count": 33},
            {"from": 67, "to": 100, "count": 34},
        ]
        assert answer["deciles"] == [10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_user_scores_cover_all_boards_of_the_pod(api: httpx.Client, new_board: NewBoard) -> None:
    user = f"user-{uuid4()}"
    full = new_board(capacity=1)
    many = [{"userId": f"u{number}", "score": number} for number in range(100)]
    api.post(f"/api/v1/leaderboards/{full}/scores", json={"scores": [*many, {"userId": user, "score": -1}]})
    other = new_board(name="Other")
    api.put(f"/api/v1/leaderboards/{other}/users/{user}", json={"score": 7})
    answer = api.get(f"/api/v1/users/{user}/scores?podId=default").json()
    found = {(each["UUID"], each["window"], each["period"], each["score"], each["rank"]) for each in answer["scores"]}
    assert found == {(full, "all", "all", -1, None), (other, "all", "all", 7, 1)}
    assert api.get("/api/v1/users/nobody/scores?podId=default").json()["scores"] == []


def test_board_events_are_listed_in_order_of_arrival(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board()}"
    api.post(board + "/scores", json={"scores": [{"userId": "a", "score": n, "eventId": f"e{n}"} for n in range(5)]})
    first = api.get(board + "/events?limit=3").json()
    second = api.get(board + f"/events?limit=3&cursor={first['nextCursor']}").json()
    assert [event["eventId"] for event in first["events"] + second["events"]] == [f"e{n}" for n in range(5)]
    assert (first["totalEvents"], second["totalEvents"], second["nextCursor"]) == (5, None, None)


def test_short_form_responses_have_the_documented_shape(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as fresh, fresh.client() as api, fresh.client(None) as anyone:
        assert anyone.get("/v1/scores").json() == {"data": [], "total": 0}
        for user, points in (("alice", 2), ("bob", 1), ("alice", 1), ("cy", 3)):
            assert api.post("/v1/scores", json={"user_id": user, "points": points}).status_code == 200
        assert anyone.get("/v1/scores").json() == {
            "data": [
                {"user_id": "alice", "user_name": "alice", "rank": 1, "score": 3},
                {"user_id": "cy", "user_name": "cy", "rank": 1, "score": 3},
                {"user_id": "bob", "user_name": "bob", "rank": 3, "score": 1},
            ],
            "total": 3,
        }
        named = {"users": [{"userId": "bob", "displayName": "Bob the Builder"}]}
        assert api.post("/api/v1/users", json=named, params={"podId": "default"}).status_code == 200
        assert [each["user_name"] for each in anyone.get("/v1/scores").json()["data"]] == [
            "alice",
            "cy",
            "Bob the Builder",
        ]
        assert anyone.get("/v1/scores/bob").json() == {"user_info": {"user_id": "bob", "score": 1, "rank": 3}}
        once = {"user_id": "bob", "points": 1, "event_id": "e"}
        for _ in range(2):
            answer = api.post("/v1/scores", json=once).json()
            assert answer == {"user_info": {"user_id": "bob", "score": 2, "rank": 3}}
        problem(anyone.post("/v1/scores", json=once), 401, "key_required")
        problem(api.post("/v1/scores", json={"user_id": "bob"}), 422, "missing_field", "points")


def test_docs_page_lists_all_calls_without_external_references(api: httpx.Client) -> None:
    docs = api.get("/docs")
    assert docs.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<script" not in docs.text
    assert 'src="http' not in docs.text
    assert 'href="http' not in docs.text
    document = api.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        assert path in docs.text
        for operation in operations.values():
            _, _, section = docs.text.partition(f'<details id="{operation["operationId"]}">')
            section, _, _ = section.partition("</details>")
            for parameter in operation["parameters"]:
                assert f"<code>{parameter['name']}</code>" in section, (path, parameter["name"])
    assert api.get("/healthz").json() == {"status": "ok"}
    ready = api.get("/readyz").json()
    assert len(ready.pop("ledgerId")) == 16
    assert ready == {"status": "ready", "dependencies": {"ledger": "ok", "index": "ok"}}
    assert api.head("/api/v1/leaderboards/default/top").status_code == 200


def test_timestamps_are_truncated_to_microseconds(api: httpx.Client, new_board: NewBoard) -> None:
    """Rounding would move the last moment of a day to the next day."""
    board = f"/api/v1/leaderboards/{new_board(rule='latest')}"
    metadata = {"timestamp": "2026-01-05T23:59:59.9999999Z", "note": ".12345678"}
    body = {"score": 1, "timestamp": "2026-01-05T23:59:59.9999999Z", "metadata": metadata}
    assert api.put(f"{board}/users/ada", json=body).status_code == 200
    item = {"userId": "bob", "score": 9007199254740991, "timestamp": "2026-01-05T23:59:59.999999999+00:00"}
    assert api.post(f"{board}/scores", json={"scores": [item]}).json()["results"][0]["status"] == "accepted"
    for user in ("ada", "bob"):
        (event,) = api.get(f"{board}/users/{user}/history").json()["events"]
        assert event["timestamp"] == "2026-01-05T23:59:59.999999Z"
    (event,) = api.get(f"{board}/users/ada/history").json()["events"]
    assert event["metadata"] == metadata
    end = {"endTime": "2099-12-31T23:59:59.9999999Z"}
    assert api.patch(board, json=end).json()["endTime"] == "2099-12-31T23:59:59.999999Z"
    wrong = {"score": 1, "timestamp": "2026-13-05T23:59:59.9999999Z"}
    problem(api.put(f"{board}/users/ada", json=wrong), 422, "invalid_timestamp", "timestamp")


def test_item_with_a_repeated_name_is_refused_alone(api: httpx.Client, new_board: NewBoard) -> None:
    path = f"/api/v1/leaderboards/{new_board()}/scores"
    headers = {"Content-Type": "application/json"}
    body = '{"scores": [{"userId": "a", "score": 1, "score": 2}, {"userId": "b", "score": 3}]}'
    results = api.post(path, content=body, headers=headers).json()["results"]
    assert [result["status"] for result in results] == ["refused", "accepted"]
    assert results[0]["problem"]["code"] == "duplicate_name"
    twice = '{"scores": [{"userId": "a", "score": 1}], "scores": [{"userId": "b", "score": 3}]}'
    problem(api.post(path, content=twice, headers=headers), 400, "duplicate_name")
    escaped = twice.replace('"scores": [{"userId": "b"', '"\\u0073cores": [{"userId": "b"')
    problem(api.post(path, content=escaped, headers=headers), 400, "duplicate_name")
    # A user may have that name.
    named = '{"scores": [{"userId": "scores", "score": 1}]}'
    assert api.post(path, content=named, headers=headers).json()["results"][0]["status"] == "accepted"


def test_ids_are_compared_in_composed_form(api: httpx.Client, new_board: NewBoard) -> None:
    """The same name as one character and as two is one user, in paths, bodies, queries and batches."""
    board = f"/api/v1/leaderboards/{new_board(rule='increment')}"
    one, two = "Ren\u00e9-\u1100\u1161".replace("\u1100\u1161", "\uac00"), "Rene\u0301-\u1100\u1161"
    assert unicodedata.normalize("NFC", two) == one != two
    escaped = json.dumps({"scores": [{"userId": two, "score": 4, "eventId": two}]})
    assert api.put(f"{board}/users/{quote(two)}", json={"score": 1}).json()["userId"] == one
    assert api.put(f"{board}/users/{quote(one)}", json={"score": 2}).json()["score"] == 3
    batch = {"scores": [{"userId": two, "score": 3}, {"userId": one, "score": 0, "metadata": {"name": two}}]}
    assert [each["userId"] for each in api.post(f"{board}/scores", json=batch).json()["results"]] == [one, one]
    json_type = {"Content-Type": "application/json"}
    results = [api.post(f"{board}/scores", content=escaped, headers=json_type).json()["results"] for _ in range(2)]
    assert [each["status"] for (each,) in results] == ["accepted", "duplicate"]
    # The id of an event, too; metadata stay as they are.
    twice = {"scores": [{"userId": one, "score": 4, "eventId": one}]}
    assert api.post(f"{board}/scores", json=twice).json()["results"][0]["status"] == "duplicate"
    events = api.get(f"{board}/users/{quote(two)}/history").json()["events"]
    assert [event["metadata"] for event in events if event["metadata"]] == [{"name": two}]
    users = api.get(f"{board}/top").json()["users"]
    assert [(each["userId"], each["score"]) for each in users] == [(one, 10)]
    ranks = api.post(f"{board}/ranks", json={"userIds": [two, one]}).json()
    assert ([each["userId"] for each in ranks["users"]], ranks["missing"]) == ([one], [])
    assert api.get(f"{board}/search", params={"q": two}).json()["users"][0]["userId"] == one
    assert api.get(f"{board}/top", params={"viewer": two}).status_code == 200
    profiles = {"users": [{"userId": two, "displayName": "R"}]}
    assert api.post("/api/v1/users", json=profiles, params={"podId": "default"}).status_code == 200
    assert api.get(f"/api/v1/users/{quote(one)}", params={"podId": "default"}).json()["displayName"] == "R"
    void = api.post(f"{board}/void", json={"eventIds": [two]}).json()
    assert void["events"] == 1


def test_id_that_is_too_long_in_composed_form_is_refused(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board()}"
    long, short = "\u0958" * 256, "\u0958" * 128
    for user, status in ((long, 422), (short, 200)):
        assert api.put(f"{board}/users/{quote(user)}", json={"score": 1}).status_code == status
    problem(api.put(f"{board}/users/ada", json={"score": 1, "eventId": long}), 422, "wrong_length", "eventId")
    # The id that is shown can be used.
    (shown,) = [each["userId"] for each in api.get(f"{board}/top").json()["users"]]
    assert len(shown) == 256
    assert api.get(f"{board}/users/{quote(shown)}/rank").status_code == 200


def test_batch_returns_ranks_and_scores_from_before_if_asked(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(rule='increment')}"
    api.post(f"{board}/scores", json={"scores": [{"userId": "ada", "score": 5}, {"userId": "bob", "score": 7}]})
    batch = {"scores": [{"userId": "ada", "score": 5}, {"userId": "cyd", "score": 1}, {"userId": "", "score": 1}]}
    plain, asked = (
        api.post(f"{board}/scores{query}", json=batch).json()["results"] for query in ("", "?previous=true")
    )
    assert "previousRank" not in plain[0]
    assert [(each.get("previousRank"), each.get("previousScore")) for each in asked] == [(1, 10), (3, 1), (None, None)]
    api.post(f"{board}/scores?rank=false&previous=true", json=batch)
    unranked = api.post(f"{board}/scores?rank=false&previous=true", json=batch).json()["results"]
    assert (unranked[0]["previousRank"], unranked[0]["previousScore"]) == (None, 20)


def test_reads_by_score_of_an_empty_board(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board()}"
    place = api.get(f"{board}/rank?score=5&above=3&below=3").json()
    assert (place["rank"], place["percentile"], place["users"], place["totalUsers"]) == (1, 100, [], 0)
    found = api.get(f"{board}/range?minScore=0").json()
    assert (found["users"], found["count"], found["totalUsers"]) == ([], 0, 0)
    assert api.get(f"{board}/top?order=reverse&percent=50").json()["users"] == []
    spread = api.get(f"{board}/distribution?percentiles=50&sum=true").json()
    assert (spread["percentiles"], spread["sum"], spread["mean"]) == ([], 0, None)


def test_scores_of_a_user_on_some_boards(api: httpx.Client, new_board: NewBoard) -> None:
    boards = [new_board() for _ in range(3)]
    user = f"user-{uuid4()}"
    for number, board in enumerate(boards):
        api.put(f"/api/v1/leaderboards/{board}/users/{user}", json={"score": number})
    path = f"/api/v1/users/{user}/scores"
    named = {"podId": "default", "boards": ",".join(boards[1:])}
    assert [each["UUID"] for each in api.get(path, params=named).json()["scores"]] == boards[1:]
    assert len(api.get(path, params={"podId": "default"}).json()["scores"]) == 3
    problem(api.get(path, params={"podId": "default", "boards": "nowhere"}), 404, "board_not_found", "boards")
    problem(api.get(path, params={"podId": "default", "boards": "a,,b"}), 422, "wrong_format", "boards")


def test_many_users_are_removed_by_id_or_by_score(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(rule='best', capacity=5, windows=['daily', 'all'])}"
    api.post(f"{board}/scores", json={"scores": [{"userId": f"u{n:02}", "score": n} for n in range(30)]})
    path, reason = f"{board}/removals", {"reason": "bots"}
    answer = api.post(path, json={"userIds": ["u29", "nobody", "u28", "u29"]} | reason).json()
    assert (answer["removed"], answer["missing"], answer["more"]) == (2, ["nobody"], False)
    assert api.get(f"{board}/top").json()["users"][0]["userId"] == "u27"
    # Also those outside the capacity.
    answer = api.post(path, json={"minScore": 3, "maxScore": 25, "window": "all"} | reason).json()
    assert (answer["removed"], answer["missing"], answer["more"]) == (23, [], False)
    left = api.get(f"{board}/range?window=daily").json()
    assert [entry["userId"] for entry in left["users"]] == ["u27", "u26", "u02", "u01", "u00"]
    acts = api.get("/api/v1/acts", params={"podId": "default", "UUID": board.rpartition("/")[2], "limit": 100}).json()[
        "acts"
    ]
    assert [(act["kind"], act["reason"]) for act in acts] == [("remove", "bots")] * 25
    restored = api.post(f"/api/v1/acts/{acts[0]['actId']}/restore", params={"podId": "default"}, json={})
    assert restored.status_code == 200, restored.text
    assert api.get(f"{board}/range?minScore=3&maxScore=25").json()["count"] == 1
    unclear: list[dict[str, Any]] = [{}, {"userIds": []}, {"userIds": ["ada"], "minScore": 1}]
    for wrong in unclear:
        problem(api.post(path, json=wrong), 422, "nothing_chosen", "userIds")
    problem(api.post(path, json={"minScore": 2, "maxScore": 1}), 422, "bounds_reversed", "maxScore")
    problem(api.post(path, json={"minScore": 2, "window": "weekly"}), 422, "window_not_available", "window")


def test_removals_by_score_tell_when_there_are_more(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board()}"
    api.post(f"{board}/scores", json={"scores": [{"userId": f"u{n}", "score": n} for n in range(1010)]})
    counts = [api.post(f"{board}/removals", json={"maxScore": 1004}, timeout=60).json() for _ in range(2)]
    assert [(each["removed"], each["more"]) for each in counts] == [(1000, True), (5, False)]
    assert api.get(f"{board}/range").json()["count"] == 5


def test_score_for_several_boards_counts_on_all_or_on_none(api: httpx.Client, new_board: NewBoard) -> None:
    first, second = new_board(rule="increment"), new_board(rule="best", order="asc", windows=["daily", "all"])
    user = f"user-{uuid4()}"
    path, pod = f"/api/v1/users/{user}/scores", {"podId": "default"}

    def send(score: float, *boards: str, **fields: Any) -> httpx.Response:
        return api.post(path, json={"score": score, "boards": boards} | fields, params=pod)

    def scores() -> list[float | None]:
        found = [api.get(f"/api/v1/leaderboards/{board}/users/{user}/rank") for board in (first, second)]
        return [each.json().get("score") for each in found]

    answer = send(5, first, second, eventId="e1").json()
    assert (answer["userId"], answer["eventId"]) == (user, "e1")
    assert [(each["UUID"], each["score"], each["rank"]) for each in answer["results"]] == [
        (first, 5, 1),
        (second, 5, 1),
    ]
    assert [len(each["periods"]) for each in answer["results"]] == [1, 2]
    again = send(5, first, second, eventId="e1").json()
    assert [each["duplicate"] for each in again["results"]] == [True, True]
    made = send(3, second, first).json()
    assert made["eventId"] == made["results"][0]["eventId"] == made["results"][1]["eventId"]
    assert scores() == [8, 3]
    # The first board knows the event with another score, so that the second one does not count it either.
    api.put(f"/api/v1/leaderboards/{first}/users/{user}", json={"score": 1, "eventId": "e2"})
    refused = problem(send(2, second, first, eventId="e2"), 409, "event_conflict", "eventId")
    assert f"board {first!r} does not take it" in refused["detail"]
    third = new_board(maxScore=1)
    problem(send(2, first, third), 422, "score_out_of_bounds", "score")
    api.patch(f"/api/v1/leaderboards/{third}", json={"status": "ENDED"})
    problem(send(1, first, third), 409, "board_ended")
    assert scores() == [9, 3]
    problem(send(1, first, "nowhere"), 404, "board_not_found", "boards")
    problem(send(1, first, first), 422, "duplicate_board", "boards")
    problem(send(1), 422, "wrong_length", "boards")
    unranked = api.post(path, json={"score": 1, "boards": [first]}, params=pod | {"rank": "false"}).json()
    assert unranked["results"][0]["rankState"] == "not_requested"


def test_score_for_several_boards_stays_within_a_pod(api: httpx.Client, server: RunningServer) -> None:
    names = [f"pod-{uuid4()}" for _ in range(2)]
    boards = []
    for name in names:
        api.post("/api/v1/pods", json={"podId": name, "name": name})
        boards.append(
            api.post("/api/v1/leaderboards", json={"podId": name, "name": "B", "public": True}).json()["UUID"]
        )
    key = api.post(f"/api/v1/pods/{names[0]}/keys", json={"role": "server"}).json()["key"]
    with server.client(key) as game:
        assert game.post("/api/v1/users/ada/scores", json={"score": 1, "boards": boards[:1]}).status_code == 200
        foreign = game.post("/api/v1/users/ada/scores", json={"score": 1, "boards": boards})
        # The board of the other pod is public.
        problem(foreign, 403, "role_forbidden")
    mixed = api.post("/api/v1/users/ada/scores", json={"score": 1, "boards": boards}, params={"podId": names[0]})
    problem(mixed, 404, "board_not_found", "boards")
    assert api.get(f"/api/v1/leaderboards/{boards[1]}/top").json()["users"] == []
