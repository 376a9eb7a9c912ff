"""Templates of boards, and boards that their first score creates."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.both_stores import api, new_board, server
from support.calls import problem
from support.running import RunningServer
from support.waiting import until

BOARD = {"name": "Clan {UUID}", "rule": "increment", "windows": ["weekly", "all"], "segments": ["global", "region"]}

__all__ = ["api", "new_board", "server"]


class Pod:
    """A pod of its own, with a server key, a key that may only write scores, and a client key."""

    def __init__(self, server: RunningServer, api: httpx.Client) -> None:
        self.pod_id = f"clans-{uuid.uuid4().hex[:8]}"
        self.path = f"/api/v1/pods/{self.pod_id}"
        self.prefix = f"clan-{uuid.uuid4().hex[:8]}-"
        assert api.post("/api/v1/pods", json={"podId": self.pod_id, "name": "Clans"}).status_code == 201
        wanted = [{"role": "server"}, {"role": "server", "scopes": ["scores:write"]}, {"role": "client"}]
        keys = [api.post(f"{self.path}/keys", json=each).json()["key"] for each in wanted]
        self.game, self.writer, self.client = (server.client(key) for key in keys)

    def put(self, name: str = "clan", **fields: Any) -> httpx.Response:
        body = {"board": BOARD, "prefix": self.prefix} | fields
        return self.game.put(f"{self.path}/templates/{name}", json=body)

    def score(self, client: httpx.Client, board: str, score: float = 5) -> httpx.Response:
        return client.put(f"/api/v1/leaderboards/{board}/users/ada", json={"score": score})


@pytest.fixture
def pod(server: RunningServer, api: httpx.Client) -> Iterator[Pod]:
    pod = Pod(server, api)
    with pod.game, pod.writer, pod.client:
        yield pod


def test_template_is_read_back_replaced_and_deleted(pod: Pod) -> None:
    made = pod.put().json()
    assert made["board"].items() >= BOARD.items()
    assert (made["podId"], made["name"], made["prefix"]) == (pod.pod_id, "clan", pod.prefix)
    again = pod.put(board=BOARD | {"rule": "best"}, prefix=None).json()
    assert (again["board"]["rule"], again["prefix"], again["createdAt"]) == ("best", None, made["createdAt"])
    assert pod.game.get(f"{pod.path}/templates").json()["templates"] == [again]
    assert pod.game.get(f"{pod.path}/templates/clan").json() == again
    assert pod.game.delete(f"{pod.path}/templates/clan").json() == again
    for method in ("GET", "DELETE"):
        problem(pod.game.request(method, f"{pod.path}/templates/clan"), 404, "template_not_found", "templateName")


def test_template_with_an_invalid_board_is_refused(pod: Pod) -> None:
    problem(pod.put(board={"name": "x", "minScore": 2, "maxScore": 1}), 422, "bounds_reversed", "maxScore")
    problem(pod.put(board={"name": "x", "windows": ["hourly"]}), 422, "invalid_window", "windows[0]")
    problem(pod.put(board={"name": "x", "UUID": "b"}), 422, "unknown_field", "board.UUID")
    problem(pod.put(name="a b"), 422, "wrong_format", "templateName")


def test_first_score_creates_the_board(pod: Pod, api: httpx.Client) -> None:
    pod.put()
    board = f"{pod.prefix}blue"
    problem(pod.game.get(f"/api/v1/leaderboards/{board}/top"), 404, "board_not_found", "UUID")
    assert pod.score(pod.writer, board).json()["rank"] == 1
    made = pod.game.get(f"/api/v1/leaderboards/{board}").json()
    assert made.items() >= (BOARD | {"name": f"Clan {board}", "podId": pod.pod_id, "totalUsers": 1}).items()
    # By a batch, by a call for several boards, and by the administrator, too.
    batch = f"{pod.prefix}batch"
    sent = pod.game.post(f"/api/v1/leaderboards/{batch}/scores", json={"scores": [{"userId": "bob", "score": 1}]})
    assert sent.json()["results"][0]["status"] == "accepted"
    several = [f"{pod.prefix}one", board, f"{pod.prefix}two"]
    sent = pod.game.post("/api/v1/users/ada/scores", json={"score": 2, "boards": several})
    assert [each["score"] for each in sent.json()["results"]] == [2, 7, 2]
    assert pod.score(api, f"{pod.prefix}admin").status_code == 200


def test_score_creates_no_board_without_a_template_for_it(pod: Pod, server: RunningServer, api: httpx.Client) -> None:
    pod.put()
    problem(pod.score(pod.game, f"other-{pod.prefix}"), 404, "board_not_found", "UUID")
    problem(pod.score(pod.client, f"{pod.prefix}client"), 404, "board_not_found", "UUID")
    problem(pod.score(pod.game, f"{pod.prefix}%20"), 404, "board_not_found", "UUID")
    with server.client(None) as nobody:
        problem(pod.score(nobody, f"{pod.prefix}nobody"), 401, "key_required")
    stranger = Pod(server, api)
    with stranger.game, stranger.writer, stranger.client:
        problem(pod.score(stranger.game, f"{pod.prefix}stranger"), 404, "board_not_found", "UUID")
    pod.put(prefix=None)
    problem(pod.score(pod.game, f"{pod.prefix}none"), 404, "board_not_found", "UUID")
    listed = pod.game.get("/api/v1/leaderboards").json()["leaderboards"]
    assert listed == []


def test_quota_limits_the_boards_that_scores_create(pod: Pod, api: httpx.Client) -> None:
    pod.put()
    api.patch(pod.path, json={"quotas": {"boards": 2}})
    for name in ("one", "two"):
        assert pod.score(pod.game, f"{pod.prefix}{name}").status_code == 200
    refused = problem(pod.score(pod.game, f"{pod.prefix}three"), 409, "too_many_boards")
    assert "template" in refused["detail"]


def test_longest_prefix_chooses_the_template(pod: Pod) -> None:
    pod.put()
    pod.put("gold", prefix=f"{pod.prefix}gold-", board=BOARD | {"rule": "best"})
    for name, rule in (("silver", "increment"), ("gold-1", "best")):
        pod.score(pod.game, f"{pod.prefix}{name}")
        assert pod.game.get(f"/api/v1/leaderboards/{pod.prefix}{name}").json()["rule"] == rule


def test_scores_that_race_create_one_board_and_all_count(pod: Pod) -> None:
    pod.put()
    board = f"{pod.prefix}race"
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: pod.score(pod.game, board, 1), range(24)))
    assert {each.status_code for each in answers} == {200}
    assert pod.game.get(f"/api/v1/leaderboards/{board}/users/ada/rank").json()["score"] == 24


def test_board_is_created_from_a_template_by_name(pod: Pod) -> None:
    pod.put(prefix=None)
    path = f"{pod.path}/templates/clan/boards"
    made = pod.game.post(path, json={"UUID": f"{pod.prefix}made"})
    assert (made.status_code, made.json()["name"]) == (201, f"Clan {pod.prefix}made")
    assert pod.game.post(path, json={"UUID": f"{pod.prefix}made"}).json()["UUID"] == made.json()["UUID"]
    named = pod.game.post(path, json={"UUID": f"{pod.prefix}named", "name": "Wolves"})
    assert named.json()["name"] == "Wolves"
    problem(pod.writer.post(path, json={"UUID": f"{pod.prefix}x"}), 403, "scope_forbidden")


def test_batch_of_a_full_pod_takes_the_scores_of_its_users(pod: Pod, api: httpx.Client) -> None:
    api.patch(pod.path, json={"quotas": {"users": 1}})
    board = f"{pod.prefix}full"
    pod.put()
    assert pod.score(pod.game, board).status_code == 200

    def statuses() -> list[str]:
        sent = [{"userId": user, "score": 1, "eventId": f"{user}-{pod.prefix}"} for user in ("ada", "bob")]
        answer = pod.game.post(f"/api/v1/leaderboards/{board}/scores", json={"scores": sent})
        assert answer.status_code == 200, answer.text
        return [each["status"] for each in answer.json()["results"]]

    # Users are counted shortly after their scores.
    until(lambda: _refuses_strangers(pod, board), "the pod is full")
    assert statuses()[0] == "accepted"
    assert statuses() == ["duplicate", "refused"]


def _refuses_strangers(pod: Pod, board: str) -> bool:
    body = {"score": 1, "eventId": f"stranger-{uuid.uuid4()}"}
    answer = pod.game.put(f"/api/v1/leaderboards/{board}/users/{uuid.uuid4()}", json=body)
    return answer.status_code == 429
