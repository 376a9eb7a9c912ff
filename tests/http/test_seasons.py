"""Seasons over HTTP: permissions, responses, and a whole season in a few seconds."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from support.both_stores import api, new_board, server
from support.calls import NewBoard, problem
from support.running import ADMIN_KEY, RunningServer, laurels
from support.waiting import until_equal

__all__ = ["api", "new_board", "server"]

WINDOWS = [
    "monthly",
    {"window": "weekly", "timeZone": "Europe/Berlin", "startDay": "sunday"},
    {"window": "season", "cron": "0 9 1 */3 *", "timeZone": "Asia/Seoul"},
    "all",
]
REWARDS = [
    {"name": "podium", "prize": {"gems": [1, None]}, "ranks": {"from": 1, "to": 2}},
    {"name": "tenth", "prize": "frame", "topPercent": 10.5, "windows": ["weekly"]},
    {"name": "veteran", "prize": 7, "scores": {"atLeast": 100}},
]


def test_board_with_windows_and_rewards_is_read_back_unchanged(api: httpx.Client) -> None:
    body = {
        "UUID": f"season-{uuid4()}",
        "podId": "default",
        "name": "Seasons",
        "windows": WINDOWS,
        "rewards": REWARDS,
        "graceSeconds": 5,
        "flushMs": 250,
        "keepEventsDays": 30,
        "keepPeriodsDays": 400,
    }
    made = api.post("/api/v1/leaderboards", json=body)
    assert made.status_code == 201, made.text
    board = made.json()
    assert body.items() <= board.items()
    assert [period["window"] for period in board["periods"]] == ["monthly", "weekly", "season", "all"]
    for period in board["periods"][:3]:
        assert (period["status"], period["nextReset"]) == ("OPEN", period["endTime"])
    path = f"/api/v1/leaderboards/{board['UUID']}"
    assert api.patch(path, json={"windows": WINDOWS, "rewards": REWARDS}).json() == board
    problem(api.patch(path, json={"windows": WINDOWS[1:]}), 422, "immutable_field", "windows")
    # Twelve hours from now, so that at any time of day no further period is about to begin.
    shift = {"window": "shift", "cron": f"0 {(datetime.now(UTC).hour + 12) % 24} * * *"}
    changed = api.patch(path, json={"windows": [*WINDOWS, shift], "rewards": [], "graceSeconds": 0, "flushMs": None})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["windows"], changed.json()["rewards"]) == ([*WINDOWS, shift], [])
    listed = api.get(path + "/periods", params={"window": "shift"}).json()["periods"]
    # The first period begins two seconds after the request, so it may be open by now.
    began = datetime.fromisoformat(listed[1]["startTime"]) <= datetime.now(UTC)
    expected = ["SCHEDULED", "SCHEDULED"], ["SCHEDULED", "OPEN"]
    assert [period["status"] for period in listed] in (expected if began else expected[:1])
    assert listed[1]["endTime"] == listed[0]["startTime"]
    joined = changed.json()["periods"][-1]
    assert joined["status"] == "SCHEDULED"
    assert joined | {"status": listed[1]["status"]} == listed[1]


def test_weekend_with_attempts_is_read_back_and_limits_scores(api: httpx.Client, new_board: NewBoard) -> None:
    # Twelve hours from now, so that it is closed now at any time of day.
    hour = (datetime.now(UTC).hour + 12) % 24
    evening = {"window": "evening", "cron": f"0 {hour} * * *", "openSeconds": 3600, "attempts": 2}
    board = f"/api/v1/leaderboards/{new_board(windows=[evening])}"
    assert api.get(board).json()["windows"] == [evening]
    assert api.get(board).json()["periods"][0]["status"] == "SCHEDULED"
    problem(api.put(f"{board}/users/ada", json={"score": 1}), 409, "window_closed", "timestamp")
    unlimited = [{"window": "evening", "cron": f"0 {hour} * * *", "openSeconds": 3600}]
    problem(api.patch(board, json={"windows": unlimited}), 422, "immutable_field", "windows")
    board = f"/api/v1/leaderboards/{new_board(windows=[{'window': 'daily', 'attempts': 2}, 'all'])}"
    for number in range(2):
        assert api.put(f"{board}/users/ada", json={"score": number}).status_code == 200
    problem(api.put(f"{board}/users/ada", json={"score": 5}), 409, "attempts_used", "userId")
    batch = api.post(f"{board}/scores", json={"scores": [{"userId": user, "score": 3} for user in ("ada", "bob")]})
    assert [each["status"] for each in batch.json()["results"]] == ["refused", "accepted"]
    twice = [{"window": "daily", "attempts": 2}, {"window": "weekly", "attempts": 9}]
    for windows, field in ((twice, "windows"), ([{"window": "all", "openSeconds": 60}], "windows[0]")):
        body = {"podId": "default", "name": "A board", "windows": windows}
        problem(api.post("/api/v1/leaderboards", json=body), 422, "invalid_window", field)


def test_season_runs_from_first_score_to_claimed_reward(
    api: httpx.Client, server: RunningServer, new_board: NewBoard
) -> None:
    windows = [{"window": "season", "cron": "0 0 1 1 *"}, "all"]
    uuid = new_board(windows=windows, rewards=[REWARDS[0], REWARDS[2]], graceSeconds=0, rule="increment")
    board = f"/api/v1/leaderboards/{uuid}"
    scores = [{"userId": f"u{n}-{uuid}", "score": 10 * n} for n in range(1, 12)]
    assert api.post(board + "/scores", json={"scores": scores}).status_code == 200
    answer = api.put(f"{board}/users/u1-{uuid}", json={"score": 1}).json()
    assert [each["window"] for each in answer["periods"]] == ["season", "all"]
    assert (answer["score"], answer["lateWindows"]) == (11, [])
    season = answer["periods"][0]["period"]
    before = api.get(board + "/top").json()["users"]
    closing = api.post(f"{board}/periods/{season}/close")
    assert closing.status_code == 200, closing.text
    assert closing.json()["endTime"] == closing.json()["nextReset"]

    def status() -> str:
        periods = api.get(board + "/periods", params={"window": "season"}).json()["periods"]
        return str(next(period["status"] for period in periods if period["period"] == season))

    until_equal(status, "FINAL")
    assert api.get(board + "/top", params={"period": season}).json()["users"] == before
    assert api.get(board + "/top", params={"period": "previous"}).json()["users"] == before
    assert api.get(board + "/top").json()["users"] == []
    user = f"u11-{uuid}"
    rank = api.get(f"{board}/users/{user}/rank", params={"period": season}).json()
    assert (rank["rank"], rank["score"], rank["percentile"], rank["totalUsers"]) == (1, 110, 100, 11)
    results = api.get(f"/api/v1/users/{user}/results", params={"podId": "default", "UUID": uuid}).json()["results"]
    assert [(each["UUID"], each["period"], each["rank"], each["totalUsers"]) for each in results] == [
        (uuid, season, 1, 11)
    ]
    rewards = api.get(f"{board}/periods/{season}/rewards").json()["rewards"]
    assert [(each["reward"], each["userId"]) for each in rewards] == [
        ("podium", user),
        ("veteran", user),
        ("podium", f"u10-{uuid}"),
        ("veteran", f"u10-{uuid}"),
    ]
    assert rewards[0]["prize"] == {"gems": [1, None]}
    mine = api.get(f"/api/v1/users/{user}/rewards", params={"podId": "default", "limit": 1}).json()
    assert (mine["rewards"][0]["reward"], mine["nextCursor"] is not None) == ("podium", True)
    more = api.get(f"/api/v1/users/{user}/rewards", params={"podId": "default", "cursor": mine["nextCursor"]}).json()
    assert [each["reward"] for each in more["rewards"]] == ["veteran"]
    claim = f"/api/v1/rewards/{rewards[0]['rewardId']}/claim"
    first, second = api.post(claim).json(), api.post(claim).json()
    assert (first["alreadyClaimed"], second["alreadyClaimed"]) == (False, True)
    assert first["reward"] == second["reward"]
    jobs = {job["job"]: job for job in api.get("/api/v1/jobs").json()["jobs"]}
    assert jobs["periods"]["error"] is None
    shown = laurels("jobs", data_dir=server.data_dir, url=server.url, key=ADMIN_KEY)
    assert shown.returncode == 0, shown.stderr
    assert "periods" in shown.stdout
    assert "frozen" in shown.stdout


def test_calls_on_missing_or_closed_periods_are_refused(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(windows=['daily', 'all'])}"
    for what in ("close", "extend"):
        body: dict[str, Any] = {"json": {"endTime": "2999-01-01T00:00:00Z"}} if what == "extend" else {}
        problem(api.post(f"{board}/periods/daily-1999-01-01/{what}", **body), 404, "period_not_found", "period")
        problem(api.post(f"{board}/periods/all/{what}", **body), 409, "period_not_open")
    daily = api.get(board).json()["periods"][0]["period"]
    assert api.post(f"{board}/periods/current/close").status_code == 200
    problem(
        api.post(f"{board}/periods/{daily}/extend", json={"endTime": "2999-01-01T00:00:00Z"}),
        422,
        "out_of_range",
        "endTime",
    )
    problem(api.get(f"{board}/top?window=weekly"), 422, "window_not_available", "window")
    problem(api.get(f"{board}/top?period=previous"), 404, "period_not_found", "period")
    problem(api.get(f"{board}/top?period=daily-2000-01-01"), 404, "period_not_found", "period")
    problem(api.get(f"{board}/periods/nothing/rewards"), 404, "period_not_found", "period")
    problem(api.get(f"{board}/periods/%00/rewards"), 404, "no_such_address")
    problem(api.get(f"{board}/periods?window=weekly"), 422, "window_not_available", "window")
    problem(api.post("/api/v1/rewards/1.1.none/claim"), 404, "reward_not_found", "rewardId")
    problem(api.get(f"{board}/periods?cursor=bm9wZQ"), 422, "invalid_cursor", "cursor")
    late = {"score": 1, "timestamp": "2026-01-01T00:00:00Z"}
    answer = api.put(board + "/users/ada", json=late).json()
    assert (answer["lateWindows"], answer["periods"][0]["window"]) == (["daily"], "all")
    only = f"/api/v1/leaderboards/{new_board(windows=['daily'])}"
    problem(api.put(only + "/users/ada", json=late), 409, "period_closed", "timestamp")


def test_season_calls_depend_on_role_and_pod(api: httpx.Client, server: RunningServer) -> None:
    api.post("/api/v1/pods", json={"podId": "seasons", "name": "Seasons"})
    api.post("/api/v1/pods", json={"podId": "others", "name": "Others"})
    keys = {
        role: api.post("/api/v1/pods/seasons/keys", json={"role": role}).json()["key"] for role in ("server", "client")
    }
    stranger_key = api.post("/api/v1/pods/others/keys", json={"role": "server"}).json()["key"]
    body = {"UUID": f"s-{uuid4()}", "podId": "seasons", "name": "S", "windows": ["daily"], "public": True}
    api.post("/api/v1/leaderboards", json=body)
    board = f"/api/v1/leaderboards/{body['UUID']}"
    daily = api.get(board).json()["periods"][0]["period"]
    with (
        server.client(keys["client"]) as client,
        server.client(stranger_key) as stranger,
        httpx.Client(base_url=server.url) as nobody,
    ):
        problem(client.post(f"{board}/periods/{daily}/close"), 403, "role_forbidden")
        problem(client.get(f"{board}/periods/{daily}/rewards"), 403, "role_forbidden")
        problem(stranger.get(f"{board}/periods/{daily}/rewards"), 403, "role_forbidden")
        problem(stranger.get("/api/v1/users/ada/rewards?podId=seasons"), 404, "pod_not_found", "podId")
        problem(stranger.get(f"/api/v1/users/ada/results?UUID={body['UUID']}"), 403, "role_forbidden")
        problem(client.post("/api/v1/rewards/1.1.x/claim"), 403, "role_forbidden")
        problem(client.get("/api/v1/jobs"), 403, "role_forbidden")
        problem(client.put("/api/v1/pods/seasons/webhook", json={"url": "http://127.0.0.1:1"}), 403, "role_forbidden")
        assert nobody.get(board + "/periods").status_code == 200
        problem(nobody.get(f"{board}/periods/{daily}/rewards"), 401, "key_required")
        problem(nobody.get("/api/v1/users/ada/results"), 401, "key_required")


def test_webhook_secret_is_shown_only_on_creation(api: httpx.Client) -> None:
    api.post("/api/v1/pods", json={"podId": "hooked", "name": "Hooked"})
    path = "/api/v1/pods/hooked/webhook"
    problem(api.get(path), 404, "webhook_not_found", "podId")
    for url in ("ftp://x.example", "http://a b", "not a url"):
        problem(api.put(path, json={"url": url}), 422, "wrong_format", "url")
    made = api.put(path, json={"url": "https://game.example/hook?x=1"}).json()
    assert made["secret"].startswith("whsec_")
    assert api.put(path, json={"url": "https://game.example/hook?x=1"}).json() == made | {"secret": None}
    shown = api.get(path).json()
    assert shown == {name: value for name, value in made.items() if name != "secret"}
    assert api.delete(path).json() == shown
    problem(api.delete(path), 404, "webhook_not_found", "podId")
    problem(api.put("/api/v1/pods/nobody/webhook", json={"url": "http://x.example"}), 404, "pod_not_found", "podId")


def test_webhook_secret_is_rotated_without_losing_the_url(api: httpx.Client) -> None:
    api.post("/api/v1/pods", json={"podId": "rotated", "name": "Rotated"})
    path = "/api/v1/pods/rotated/webhook"
    problem(api.post(path + "/rotate"), 404, "webhook_not_found", "podId")
    made = api.put(path, json={"url": "https://game.example/hook"}).json()
    answer = api.post(path + "/rotate", json={"overlapSeconds": 60})
    assert answer.status_code == 201
    assert answer.json()["secret"] not in {made["secret"], None}
    assert answer.json() | {"secret": None} == made | {"secret": None}


@pytest.mark.parametrize("digits", ["9007199254740993", "1" + "0" * 400])
def test_reward_with_a_rank_out_of_range_is_refused(api: httpx.Client, digits: str) -> None:
    body = '{"podId": "default", "name": "x", "rewards": [{"name": "a", "prize": 1, "ranks": {"from": 1, "to": %s}}]}'
    answer = api.post("/api/v1/leaderboards", content=body % digits, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
