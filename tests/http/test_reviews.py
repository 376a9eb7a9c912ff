"""Review lists over HTTP."""

import uuid

import httpx

from support.both_stores import api, new_board, server
from support.calls import NewBoard, problem
from support.running import RunningServer

RULES = [
    {"name": "high", "scores": {"atLeast": 100}},
    {"name": "fast", "rise": {"by": 50, "seconds": 60}},
    {"name": "debug", "match": {"client": "debug"}},
]

__all__ = ["api", "new_board", "server"]


def test_suspicious_score_waits_for_a_moderator(api: httpx.Client, new_board: NewBoard, server: RunningServer) -> None:
    board = f"/api/v1/leaderboards/{new_board(review=RULES, public=True)}"
    assert api.get(board).json()["review"] == RULES
    with server.client(None) as nobody:
        assert nobody.get(board).json()["review"] == []
    sent = api.put(f"{board}/users/ada", json={"score": 500, "eventId": "big", "metadata": {"map": "ice"}})
    assert sent.status_code == 202
    answer = sent.json()
    assert (answer["rankState"], answer["score"], answer["rank"], answer["periods"]) == ("in_review", None, None, [])
    body = {"scores": [{"userId": "bob", "score": 7}, {"userId": "eve", "score": 1, "metadata": {"client": "debug"}}]}
    batch = api.post(f"{board}/scores", json=body)
    assert batch.status_code == 200
    assert [each["status"] for each in batch.json()["results"]] == ["accepted", "in_review"]

    listed = api.get(f"{board}/reviews", params={"status": "pending"}).json()["reviews"]
    assert [(each["userId"], each["rule"], each["score"]) for each in listed] == [
        ("eve", "debug", 1),
        ("ada", "high", 500),
    ]
    ada = listed[1]
    assert (ada["eventId"], ada["metadata"], ada["status"]) == ("big", {"map": "ice"}, "pending")
    page = api.get(f"{board}/reviews", params={"limit": 1}).json()
    assert api.get(f"{board}/reviews", params={"limit": 1, "cursor": page["nextCursor"]}).json()["reviews"] == [ada]

    accepted = api.post(f"{board}/reviews/{ada['reviewId']}/accept", json={"reason": "seen it"})
    assert (accepted.status_code, accepted.json()["kind"]) == (200, "restore")
    best = api.get(f"{board}/top").json()["users"][0]
    assert (best["userId"], best["score"], best["timestamp"]) == ("ada", 500, ada["timestamp"])
    rejected = api.post(f"{board}/reviews/{listed[0]['reviewId']}/reject")
    assert rejected.json()["kind"] == "reject"
    problem(api.post(f"{board}/reviews/{listed[0]['reviewId']}/accept"), 409, "review_decided")
    problem(api.post(f"{board}/reviews/{ada['reviewId']}/reject"), 409, "review_decided")
    decided = {each["userId"]: each for each in api.get(f"{board}/reviews").json()["reviews"]}
    assert (decided["ada"]["status"], decided["ada"]["reason"]) == ("accepted", "seen it")
    assert (decided["eve"]["status"], decided["eve"]["decidedBy"]) == ("rejected", "admin")
    for number in ("999999999", "x", "1" * 30):
        problem(api.post(f"{board}/reviews/{number}/accept"), 404, "review_not_found", "reviewId")


def test_review_list_is_for_moderators_of_the_pod(
    api: httpx.Client, new_board: NewBoard, server: RunningServer
) -> None:
    board = f"/api/v1/leaderboards/{new_board(review=RULES, public=True)}"
    api.put(f"{board}/users/ada", json={"score": 500})
    path = f"{board}/reviews"
    keys = [
        api.post("/api/v1/pods/default/keys", json=body).json()["key"]
        for body in ({"role": "client"}, {"role": "server", "scopes": ["scores:write"]})
    ]
    with server.client(keys[0]) as client, server.client(keys[1]) as game, server.client(None) as nobody:
        problem(client.get(path), 403, "role_forbidden")
        problem(game.get(path), 403, "scope_forbidden")
        problem(nobody.get(path), 401, "key_required")


def test_rules_are_checked_and_changed(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board()}"
    for rules, field in (
        ([{"name": "x"}], "review[0]"),
        ([{"name": "x", "scores": {}}], "review[0]"),
        ([*RULES, RULES[0]], "review[3]"),
        ([RULES[0] | {"match": {"a": 1}}], "review[0]"),
        ([{"name": "x", "rise": {"by": -1, "seconds": 5}}], "review[0]"),
    ):
        problem(api.patch(board, json={"review": rules}), 422, "invalid_review", field)
    assert api.patch(board, json={"review": RULES}).json()["review"] == RULES
    assert api.put(f"{board}/users/ada", json={"score": 500}).status_code == 202
    assert api.patch(board, json={"review": []}).json()["review"] == []
    assert api.put(f"{board}/users/ada", json={"score": 500}).status_code == 200


def test_score_for_several_boards_is_not_reviewed(api: httpx.Client, new_board: NewBoard) -> None:
    boards = [new_board(), new_board(review=RULES)]
    user = f"u{uuid.uuid4().hex[:8]}"
    sent = api.post(f"/api/v1/users/{user}/scores", params={"podId": "default"}, json={"score": 500, "boards": boards})
    problem(sent, 409, "needs_review", "boards")
    assert api.get(f"/api/v1/leaderboards/{boards[0]}").json()["totalUsers"] == 0
