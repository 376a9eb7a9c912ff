"""Operations on single scores, and scores that expire, over HTTP."""

import time
from datetime import UTC, datetime, timedelta

import httpx

from support.both_stores import api, new_board, server
from support.calls import NewBoard, problem

__all__ = ["api", "new_board", "server"]


def test_single_scores_do_what_the_board_allows(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(rule='best', operations=['increment', 'set'])}"
    assert api.get(board).json()["operations"] == ["increment", "set"]
    sent = (
        {"score": 10},
        {"score": 5, "operation": "increment"},
        {"score": 3, "operation": "best"},
        {"score": 4, "operation": "set"},
        {"score": 0.5, "operation": "increment"},
    )
    results = [api.put(f"{board}/users/ada", json=body).json()["score"] for body in sent]
    assert results == [10, 15, 15, 4, 4.5]
    # A score from before the others counts as if it had come first.
    late = {"score": 50, "operation": "set", "timestamp": (datetime.now(UTC) - timedelta(minutes=1)).isoformat()}
    assert api.put(f"{board}/users/ada", json=late).json()["score"] == 4.5
    problem(
        api.put(f"{board}/users/ada", json={"score": 1, "operation": "latest"}),
        422,
        "operation_not_allowed",
        "operation",
    )
    assert api.put(f"{board}/users/bob", json={"score": 1, "operation": "erase"}).status_code == 422
    events = api.get(f"{board}/events").json()["events"]
    assert [each.get("operation") for each in events] == [None, "increment", None, "set", "increment", "set"]
    # An export that is imported in its order gives the same scores.
    copy = f"/api/v1/leaderboards/{new_board(rule='best', operations=['increment', 'set'])}"
    kept = ("userId", "score", "operation", "timestamp", "eventId", "stamped")
    api.post(
        f"{copy}/scores", json={"scores": [{name: each[name] for name in kept if name in each} for each in events]}
    )
    assert api.get(f"{copy}/top").json()["users"] == api.get(f"{board}/top").json()["users"]
    problem(api.patch(board, json={"operations": []}), 422, "immutable_field", "operations")
    plain = f"/api/v1/leaderboards/{new_board(rule='best')}"
    assert api.put(f"{plain}/users/ada", json={"score": 1, "operation": "best"}).status_code == 200
    problem(
        api.put(f"{plain}/users/ada", json={"score": 1, "operation": "set"}), 422, "operation_not_allowed", "operation"
    )


def test_score_expires_by_itself(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(scoreTtlSeconds=2)}"
    assert api.get(board).json()["scoreTtlSeconds"] == 2
    problem(api.patch(board, json={"scoreTtlSeconds": 9}), 422, "immutable_field", "scoreTtlSeconds")
    api.put(f"{board}/users/ada", json={"score": 5})
    taken = datetime.fromisoformat(api.get(f"{board}/top").json()["users"][0]["timestamp"])
    while datetime.now(UTC) < taken + timedelta(seconds=2):
        time.sleep(0.01)
        assert api.get(f"{board}/top").status_code == 200
    # No read after that moment shows the user.
    shown = api.get(f"{board}/top").json()
    assert (shown["users"], shown["totalUsers"]) == ([], 0)
    problem(api.get(f"{board}/users/ada/rank"), 404, "user_not_found", "userId")
    assert api.get(board).json()["totalUsers"] == 0
    assert api.put(f"{board}/users/ada", json={"score": 1}).json()["score"] == 5
