"""Quotas of pods: boards, windows, resets, users and events per day."""

import uuid
from typing import Any

import httpx
import pytest

from support.calls import problem
from support.running import RunningServer
from support.waiting import until

HOURLY = {"window": "hourly", "cron": "0 * * * *"}


@pytest.fixture
def pod(api: httpx.Client) -> str:
    """Return the path of a new pod."""
    name = f"quota-{uuid.uuid4()}"
    assert api.post("/api/v1/pods", json={"podId": name, "name": "A pod"}).status_code == 201
    return f"/api/v1/pods/{name}"


def set_quotas(api: httpx.Client, pod: str, **quotas: int) -> None:
    answer = api.patch(pod, json={"quotas": quotas})
    assert answer.status_code == 200, answer.text
    shown = {name: value for name, value in answer.json()["quotas"].items() if value is not None}
    assert shown == quotas


def create(api: httpx.Client, pod: str, **fields: Any) -> httpx.Response:
    return api.post("/api/v1/leaderboards", json={"podId": pod.rsplit("/", maxsplit=1)[-1], "name": "A board"} | fields)


def usage(api: httpx.Client, pod: str) -> Any:
    return api.get(f"{pod}/usage").json()


def test_usage_shows_the_settings_and_own_quotas(api: httpx.Client, pod: str) -> None:
    shown = usage(api, pod)
    assert shown["boards"] == {"used": 0, "limit": 10_000}
    assert shown["windows"] == {"used": 0, "limit": 20_000}
    assert shown["users"] == {"used": 0, "limit": 100_000_000}
    assert shown["eventsToday"] == {"used": 0, "limit": 1_000_000_000}
    assert shown["shortestResetSeconds"] == {"used": None, "limit": 60}
    board = create(api, pod, windows=["all", "daily", HOURLY]).json()["UUID"]
    for user in ("ada", "bob"):
        api.put(f"/api/v1/leaderboards/{board}/users/{user}", json={"score": 1})
    set_quotas(api, pod, boards=5, users=0)
    shown = usage(api, pod)
    assert shown["boards"] == {"used": 1, "limit": 5}
    assert shown["windows"]["used"] == 2
    assert shown["users"] == {"used": 2, "limit": None}
    assert shown["eventsToday"]["used"] == 2
    assert shown["shortestResetSeconds"]["used"] == 3600
    # Origins and quotas change one without the other; null means as in the settings.
    api.patch(pod, json={"allowedOrigins": ["*"]})
    assert usage(api, pod)["boards"]["limit"] == 5
    api.patch(pod, json={"quotas": {"boards": None}})
    assert usage(api, pod)["boards"]["limit"] == 10_000
    problem(api.patch(pod, json={"quotas": {"boards": -1}}), 422, "out_of_range", "quotas.boards")
    problem(api.get("/api/v1/pods/nosuch/usage"), 404, "pod_not_found", "podId")


def test_server_key_reads_the_usage_of_its_own_pod(server: RunningServer, api: httpx.Client, pod: str) -> None:
    key = api.post(f"{pod}/keys", json={"role": "server"}).json()["key"]
    with server.client(key) as game:
        assert game.get(f"{pod}/usage").status_code == 200
        problem(game.get("/api/v1/pods/default/usage"), 404, "pod_not_found", "podId")
        problem(game.patch(pod, json={"quotas": {}}), 403, "role_forbidden")


def test_boards_are_limited_and_archiving_makes_room(api: httpx.Client, pod: str) -> None:
    set_quotas(api, pod, boards=2)
    first = create(api, pod).json()["UUID"]
    assert create(api, pod).status_code == 201
    problem(create(api, pod), 409, "too_many_boards")
    # A repetition creates nothing.
    assert create(api, pod, UUID=first).status_code == 201
    api.delete(f"/api/v1/leaderboards/{first}")
    made = create(api, pod)
    assert made.status_code == 201
    # But archived boards are not free for ever.
    for _ in range(30):
        api.delete(f"/api/v1/leaderboards/{made.json()['UUID']}")
        if (made := create(api, pod)).status_code != 201:
            break
    assert "archived" in problem(made, 409, "too_many_boards")["detail"]


def test_windows_with_resets_are_limited_in_total(api: httpx.Client, pod: str) -> None:
    set_quotas(api, pod, windows=3)
    board = create(api, pod, windows=["all", "daily", "weekly"]).json()["UUID"]
    problem(create(api, pod, windows=["daily", "weekly"]), 409, "too_many_windows", "windows")
    assert create(api, pod, windows=["all"]).status_code == 201
    path = f"/api/v1/leaderboards/{board}"
    body = {"windows": ["all", "daily", "weekly", "monthly", HOURLY]}
    problem(api.patch(path, json=body), 409, "too_many_windows", "windows")
    assert api.patch(path, json={"windows": ["all", "daily", "weekly", "monthly"]}).status_code == 200
    assert usage(api, pod)["windows"] == {"used": 3, "limit": 3}


def test_parts_of_split_boards_are_limited_in_total(api: httpx.Client, pod: str) -> None:
    set_quotas(api, pod, parts=40)
    problem(create(api, pod, shards=41), 409, "too_many_parts", "shards")
    board = create(api, pod, shards=16, windows=["all", "daily"]).json()["UUID"]
    # Boards with one part have no part in it.
    assert create(api, pod).status_code == 201
    problem(create(api, pod, shards=9), 409, "too_many_parts", "shards")
    path = f"/api/v1/leaderboards/{board}"
    problem(api.patch(path, json={"shards": 21}), 409, "too_many_parts", "shards")
    problem(api.patch(path, json={"windows": ["all", "daily", "weekly"]}), 409, "too_many_parts", "shards")
    assert api.patch(path, json={"shards": 20}).status_code == 200
    assert usage(api, pod)["parts"] == {"used": 40, "limit": 40}
    # What is there may be kept and made smaller.
    set_quotas(api, pod, parts=10)
    assert api.patch(path, json={"name": "Another name"}).status_code == 200
    assert api.patch(path, json={"shards": 10}).status_code == 200


def test_resets_must_not_be_too_often(api: httpx.Client, pod: str) -> None:
    set_quotas(api, pod, minResetSeconds=3600)
    often = {"window": "w", "cron": "0,30 8 * * *"}
    problem(create(api, pod, windows=["all", often]), 422, "resets_too_often", "windows")
    board = create(api, pod, windows=["all", HOURLY]).json()["UUID"]
    body = {"windows": ["all", HOURLY, often]}
    problem(api.patch(f"/api/v1/leaderboards/{board}", json=body), 422, "resets_too_often", "windows")


def test_events_of_a_day_are_limited(api: httpx.Client, pod: str) -> None:
    board = f"/api/v1/leaderboards/{create(api, pod).json()['UUID']}"
    set_quotas(api, pod, eventsPerDay=3)
    assert api.put(f"{board}/users/ada", json={"score": 1, "eventId": "e1"}).status_code == 200
    for _ in range(2):
        # A duplicate is no new event.
        assert api.put(f"{board}/users/ada", json={"score": 1, "eventId": "e1"}).status_code == 200
    scores = [{"userId": "bob", "score": 2}, {"userId": "cyd", "score": 3}]
    assert api.post(f"{board}/scores", json={"scores": scores}).status_code == 200
    answer = api.put(f"{board}/users/ada", json={"score": 9})
    assert problem(answer, 429, "quota_exceeded")["retryable"] is False
    assert 1 <= int(answer.headers["Retry-After"]) <= 86_400
    problem(api.post(f"{board}/scores", json={"scores": scores}), 429, "quota_exceeded")
    # What is stored already can still be repeated.
    assert api.put(f"{board}/users/ada", json={"score": 1, "eventId": "e1"}).status_code == 200
    mixed = [{"userId": "ada", "score": 1, "eventId": "e1"}, {"userId": "dan", "score": 1, "eventId": "e2"}]
    results = api.post(f"{board}/scores", json={"scores": mixed}).json()["results"]
    assert [result["status"] for result in results] == ["duplicate", "refused"]
    assert results[1]["problem"]["code"] == "quota_exceeded"
    assert usage(api, pod)["eventsToday"] == {"used": 3, "limit": 3}
    # Other pods go on, and so does this one with a larger quota.
    set_quotas(api, pod, eventsPerDay=4)
    until(lambda: api.put(f"{board}/users/ada", json={"score": 9}).status_code == 200, "the new quota counts")


def test_full_pod_takes_scores_of_known_users_only(api: httpx.Client, pod: str) -> None:
    board = f"/api/v1/leaderboards/{create(api, pod).json()['UUID']}"
    for user in ("ada", "bob"):
        api.put(f"{board}/users/{user}", json={"score": 1})
    set_quotas(api, pod, users=2)
    api.put(f"{board}/users/ada", json={"score": 2})

    def is_full() -> bool:
        return api.put(f"{board}/users/ada", json={"score": 2}).status_code == 200 and (
            api.put(f"{board}/users/new-{uuid.uuid4()}", json={"score": 1}).status_code == 429
        )

    until(is_full, "the users are counted")
    answer = api.put(f"{board}/users/zoe", json={"score": 1})
    assert problem(answer, 429, "quota_exceeded")["retryable"] is False
    assert api.put(f"{board}/users/bob", json={"score": 7}).json()["rank"] == 1
    scores = [{"userId": "ada", "score": 8}, {"userId": "zoe", "score": 9}]
    results = api.post(f"{board}/scores", json={"scores": scores}).json()["results"]
    assert [result["status"] for result in results] == ["accepted", "refused"]
    set_quotas(api, pod, users=1000)
    until(lambda: api.put(f"{board}/users/zoe", json={"score": 1}).status_code == 200, "there is room again")
