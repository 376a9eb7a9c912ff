"""The audit log: every administrative call, who made it, from where, and what it changed."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from laurels.http.handlers import access
from laurels.http.routes import ROUTES
from support.calls import problem
from support.running import ADMIN_KEY, RunningServer, laurels

AUDIT = "/api/v1/audit"
# Calls that change something and are made for every player, by the game's server or by the player.
TRAFFIC = {
    "PUT /api/v1/leaderboards/{UUID}/users/{userId}",
    "POST /api/v1/leaderboards/{UUID}/scores",
    "POST /api/v1/leaderboards/{UUID}/ranks",
    "POST /api/v1/users/{userId}/scores",
    "POST /v1/scores",
    "POST /api/v1/rewards/{rewardId}/claim",
    "PUT /api/v1/users/{userId}",
    "PATCH /api/v1/users/{userId}",
    "POST /api/v1/users",
    "PUT /api/v1/users/{userId}/circles/{circle}",
    "DELETE /api/v1/users/{userId}/circles/{circle}",
    "POST /api/v1/pods/{podId}/tokens",
    # These change nothing.
    "POST /api/v1/leaderboards/{UUID}/void/preview",
    "POST /api/v1/pods/{podId}/schema-trials",
}


class Game:
    """A pod of its own, called by an administrator."""

    def __init__(self, api: httpx.Client, client: httpx.Client) -> None:
        self.api = api
        self.pod = f"audit-{uuid.uuid4()}"
        self.client = client
        self.path = f"/api/v1/pods/{self.pod}"
        assert api.post("/api/v1/pods", json={"podId": self.pod, "name": "A pod"}).status_code == 201

    def entries(self, **query: str) -> list[dict[str, Any]]:
        """Return the entries, oldest first."""
        answer = self.api.get(AUDIT, params={"podId": self.pod} | query)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["entries"]
        return found[::-1]

    def last(self) -> dict[str, Any]:
        return self.entries()[-1]


@pytest.fixture
def game(server: RunningServer, api: httpx.Client) -> Iterator[Game]:
    with server.client(None) as client:
        yield Game(api, client)


def test_every_call_that_changes_something_is_audited_or_traffic() -> None:
    for route in ROUTES:
        name = f"{route.method} {route.path}"
        audited = (route.method != "GET" and name not in TRAFFIC) or name.endswith("/export")
        # Only the calls that read what signs tokens.
        expected = access.reads_digests if name == "GET /api/v1/pods/{podId}/keys" else audited
        assert route.endpoint.traits.audited == expected, name


def test_entry_says_who_did_what_when_and_from_where(game: Game) -> None:
    headers = {"X-Request-Id": "req-7"}
    body = {"podId": game.pod, "name": "Lap times", "UUID": f"b-{uuid.uuid4()}"}
    made = game.api.post("/api/v1/leaderboards", json=body, headers=headers).json()
    entry = game.last()
    assert (entry["route"], entry["status"], entry["error"]) == ("POST /api/v1/leaderboards", 201, None)
    assert (entry["podId"], entry["UUID"], entry["userId"]) == (game.pod, made["UUID"], None)
    assert (entry["keyId"], entry["role"]) == ("admin", "admin")
    assert (entry["address"], entry["requestId"]) == ("127.0.0.1", "req-7")
    assert entry["before"] is None
    assert (entry["after"]["name"], entry["after"]["rule"]) == ("Lap times", "best")
    board = f"/api/v1/leaderboards/{made['UUID']}"
    # Only what differs.
    game.api.patch(board, json={"name": "Laps", "capacity": 10, "public": False})
    entry = game.last()
    assert entry["before"] == {"name": "Lap times", "capacity": None}
    assert entry["after"] == {"name": "Laps", "capacity": 10}
    game.api.delete(board)
    assert (game.last()["before"], game.last()["after"]) == ({"status": "ACTIVE"}, {"status": "ARCHIVED"})


def test_refused_changes_are_listed_with_their_error(game: Game, server: RunningServer) -> None:
    keys = f"{game.path}/keys"
    key = game.api.post(keys, json={"role": "client", "label": "phone"}).json()
    entry = game.last()
    assert entry["after"]["keyId"] == key["keyId"]
    assert key["key"] not in str(entry)
    board = game.api.post("/api/v1/leaderboards", json={"podId": game.pod, "name": "A board"}).json()["UUID"]
    count = len(game.entries())
    problem(
        game.api.patch(f"/api/v1/leaderboards/{board}", json={"endTime": "nonsense"}),
        422,
        "invalid_timestamp",
        "endTime",
    )
    assert len(game.entries()) == count
    body = {"startTime": "2030-01-01T00:00:00Z", "endTime": "2029-01-01T00:00:00Z"}
    problem(game.api.patch(f"/api/v1/leaderboards/{board}", json=body), 422, "bounds_reversed", "endTime")
    assert (game.last()["status"], game.last()["error"], game.last()["after"]) == (422, "bounds_reversed", None)
    # A key that may not do it can't fill the log.
    with server.client(key["key"]) as phone:
        problem(phone.patch(f"/api/v1/leaderboards/{board}", json={"name": "Mine"}), 403, "role_forbidden")
        problem(phone.get(AUDIT), 403, "role_forbidden")
    assert len(game.entries()) == count + 1
    game.api.delete(f"{keys}/{key['keyId']}")
    entry = game.last()
    assert (entry["before"]["label"], entry["after"]) == ("phone", None)
    assert entry["path"] == {"keyId": key["keyId"]}


def test_changes_of_pods_keys_webhooks_and_schemas_are_listed(game: Game) -> None:
    api, path = game.api, game.path
    server_key = api.post(f"{path}/keys", json={"role": "server"}).json()
    api.post(f"{path}/keys/{server_key['keyId']}/rotate", json={"overlapSeconds": 5})
    api.patch(path, json={"allowedOrigins": ["https://game.example"]})
    assert game.last()["after"] == {"allowedOrigins": ["https://game.example"]}
    api.put(f"{path}/webhook", json={"url": "http://127.0.0.1:9/hook"})
    secret = api.post(f"{path}/webhook/rotate", json={}).json()["secret"]
    api.delete(f"{path}/webhook")
    assert (game.last()["before"]["url"], game.last()["after"]) == ("http://127.0.0.1:9/hook", None)
    mappings = {"userId": "a", "score": "b", "UUID": "c"}
    api.put(f"{path}/schemas/1", json={"fieldMappings": mappings})
    assert game.last()["after"]["fieldMappings"]["score"] == "b"
    api.patch(f"{path}/schemas/1", json={"state": "active"})
    assert (game.last()["before"]["state"], game.last()["after"]["state"]) == ("draft", "active")
    api.delete(f"{path}/tokens/ada")
    assert game.last()["userId"] == "ada"
    routes = [entry["route"].split(" ")[1].replace("/api/v1/pods/{podId}", "") for entry in game.entries()]
    assert routes == [
        "/api/v1/pods",
        "/keys",
        "/keys/{keyId}/rotate",
        "",
        "/webhook",
        "/webhook/rotate",
        "/webhook",
        "/schemas/{schemaVersion}",
        "/schemas/{schemaVersion}",
        "/tokens/{userId}",
    ]
    assert secret not in str(game.entries())
    assert server_key["key"] not in str(game.entries())


def test_moderation_is_listed_and_an_erasure_removes_the_name(game: Game, server: RunningServer) -> None:
    key = game.api.post(f"{game.path}/keys", json={"role": "server"}).json()
    uuid_ = game.api.post("/api/v1/leaderboards", json={"podId": game.pod, "name": "A board"}).json()["UUID"]
    board, person = f"/api/v1/leaderboards/{uuid_}", "/api/v1/users/cheater-7"
    with server.client(key["key"]) as team:
        team.put(f"{board}/users/cheater-7", json={"score": 9})
        team.put(f"{board}/users/cheater-7/hidden", json={"shadow": True})
        hidden = game.last()
        assert (hidden["userId"], hidden["keyId"], hidden["role"]) == ("cheater-7", key["keyId"], "server")
        assert (hidden["before"]["hidden"], hidden["after"]["hidden"]) == ("no", "shadow")
        void = team.post(f"{board}/void", json={"match": {"level": 3}, "userId": "cheater-7"}).json()
        assert game.last()["after"] == {"actId": void["actId"], "act": "void", "events": 0}
        assert game.last()["userId"] == "cheater-7"
        assert team.get(f"{person}/export").status_code == 200
        assert game.last()["route"].endswith("/export")
        assert [entry["status"] for entry in game.entries(userId="cheater-7")] == [200, 200, 200]
        for _ in range(2):
            assert team.delete(person, headers={"Idempotency-Key": "once"}).status_code == 200
            assert "cheater-7" not in str(game.entries())


def test_calls_about_another_pod_are_in_no_log(game: Game, server: RunningServer) -> None:
    other = Game(game.api, game.client)
    key = game.api.post(f"{game.path}/keys", json={"role": "server"}).json()["key"]
    before = [len(each.entries()) for each in (game, other)]
    with server.client(key) as team:
        problem(team.delete(f"{other.path}/tokens/victim"), 404, "pod_not_found", "podId")
        hidden = "/api/v1/users/victim/hidden"
        problem(team.put(hidden, json={}, params={"podId": other.pod}), 404, "pod_not_found", "podId")
        problem(team.delete(f"/api/v1/pods/{'x' * 5000}/tokens/victim"), 404, "pod_not_found", "podId")
        problem(team.delete("/api/v1/pods/%00/tokens/victim"), 404, "pod_not_found", "podId")
    # An entry about a user always has a pod, so that an erasure finds it.
    problem(game.api.put(hidden, json={}), 422, "missing_field", "podId")
    assert [len(each.entries()) for each in (game, other)] == before
    assert not game.api.get(AUDIT, params={"userId": "victim"}).json()["entries"]


def test_log_is_paged_and_filtered(game: Game) -> None:
    for name in ("one", "two", "three"):
        game.api.post("/api/v1/leaderboards", json={"podId": game.pod, "name": name})
    first = game.api.get(AUDIT, params={"podId": game.pod, "limit": 3}).json()
    assert [entry["after"]["name"] for entry in first["entries"]] == ["three", "two", "one"]
    rest = game.api.get(AUDIT, params={"podId": game.pod, "limit": 3, "cursor": first["nextCursor"]}).json()
    assert [entry["route"] for entry in rest["entries"]] == ["POST /api/v1/pods"]
    assert rest["nextCursor"] is None
    one = first["entries"][2]
    assert game.entries(UUID=one["UUID"]) == [one]
    assert game.entries(since=one["at"], until=first["entries"][1]["at"]) == [one]
    assert game.entries(keyId="nobody") == []


def test_call_of_a_server_that_was_killed_stays_in_the_log(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.client() as api:
        api.post("/api/v1/pods", json={"podId": "p", "name": "P"})
        # What the command line does is in the log, too.
        assert (
            laurels("keys", "create", "p", "--role", "client", data_dir=tmp_path, admin_key=ADMIN_KEY).returncode == 0
        )
        server.kill()
        server.start()
        routes = [(entry["route"], entry["status"]) for entry in api.get(AUDIT).json()["entries"]]
        assert routes == [("POST /api/v1/pods/{podId}/keys", 201), ("POST /api/v1/pods", 201)]
