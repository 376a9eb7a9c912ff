"""Subscores over HTTP: where they appear, what is refused, and that exports and past seasons keep them."""

import httpx

from support.both_stores import api, new_board, server
from support.calls import NewBoard, problem

RACE = {"rule": "best", "order": "desc", "subscore": "asc", "windows": ["daily", "all"]}

__all__ = ["api", "new_board", "server"]


def test_subscore_breaks_ties_and_is_shown_everywhere(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(**RACE)}"
    assert api.get(board).json()["subscore"] == "asc"
    # Kills, with fewer deaths first.
    for user, kills, deaths in (("ada", 10, 4), ("bob", 10, 2), ("eve", 12, 9), ("kim", 10, 2)):
        answer = api.put(f"{board}/users/{user}", json={"score": kills, "subscore": deaths}).json()
        assert (answer["subscore"], answer["periods"][0]["subscore"]) == (deaths, deaths)
    top = api.get(f"{board}/top").json()["users"]
    assert [(each["userId"], each["subscore"]) for each in top] == [("eve", 9), ("bob", 2), ("kim", 2), ("ada", 4)]
    shared = api.get(f"{board}/top", params={"ranking": "competition"}).json()["users"]
    assert [each["rank"] for each in shared] == [1, 2, 2, 4]
    dense = api.get(f"{board}/top", params={"ranking": "dense"}).json()["users"]
    assert [each["rank"] for each in dense] == [1, 2, 2, 3]
    assert api.get(f"{board}/users/bob/rank").json()["subscore"] == 2
    # The same score with a better subscore is better, with a worse one it is not.
    assert api.put(f"{board}/users/ada", json={"score": 10, "subscore": 1}).json()["rank"] == 2
    assert api.put(f"{board}/users/ada", json={"score": 10, "subscore": 8}).json()["subscore"] == 1
    assert api.get(f"{board}/users/ada/history").json()["events"][0]["subscore"] == 8
    assert [each["subscore"] for each in api.get(f"{board}/events").json()["events"]] == [4, 2, 9, 2, 1, 8]
    scores = api.get("/api/v1/users/ada/scores", params={"podId": "default"}).json()["scores"]
    assert {each["subscore"] for each in scores if board.endswith(each["UUID"])} == {1}


def test_boards_without_subscores_refuse_and_show_none(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board()}"
    problem(api.put(f"{board}/users/ada", json={"score": 1, "subscore": 0}), 422, "subscore_not_available", "subscore")
    assert "subscore" not in api.put(f"{board}/users/ada", json={"score": 1}).json()
    assert "subscore" not in api.get(f"{board}/top").json()["users"][0]
    problem(api.patch(board, json={"subscore": "asc"}), 422, "immutable_field", "subscore")
    board = f"/api/v1/leaderboards/{new_board(**RACE)}"
    for wrong in (1.5, 2**31, "2"):
        answer = api.put(f"{board}/users/ada", json={"score": 1, "subscore": wrong})
        assert (answer.status_code, answer.json()["field"]) == (422, "subscore")
    assert api.put(f"{board}/users/ada", json={"score": 1, "eventId": "e"}).json()["subscore"] == 0
    problem(
        api.put(f"{board}/users/ada", json={"score": 1, "subscore": 5, "eventId": "e"}),
        409,
        "event_conflict",
        "eventId",
    )


def test_exported_events_are_imported_with_their_subscores(api: httpx.Client, new_board: NewBoard) -> None:
    source, target = (f"/api/v1/leaderboards/{new_board(**RACE)}" for _ in range(2))
    sent = [{"userId": f"u{number % 5}", "score": number % 3, "subscore": number % 4} for number in range(30)]
    api.post(f"{source}/scores", json={"scores": sent})
    events = api.get(f"{source}/events").json()["events"]
    kept = ("userId", "score", "subscore", "timestamp", "eventId", "stamped")
    api.post(f"{target}/scores", json={"scores": [{name: each[name] for name in kept} for each in events]})
    assert api.get(f"{target}/top").json()["users"] == api.get(f"{source}/top").json()["users"]
