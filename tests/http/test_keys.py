"""Keys: scopes, expiry, last use, rotation, and admin keys."""

import uuid
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from support.calls import NewBoard, problem
from support.running import RunningServer
from support.waiting import until


@pytest.fixture
def keys(api: httpx.Client) -> str:
    """Return the path of the keys of a new pod."""
    pod = f"keys-{uuid.uuid4()}"
    assert api.post("/api/v1/pods", json={"podId": pod, "name": "Keys"}).status_code == 201
    return f"/api/v1/pods/{pod}/keys"


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def test_key_with_scopes_is_limited_to_them(server: RunningServer, api: httpx.Client, keys: str) -> None:
    made = api.post(keys, json={"role": "server", "scopes": ["scores:write"]}).json()
    assert made["scopes"] == ["scores:write"]
    body = {"podId": keys.split("/")[4], "name": "A board"}
    board = f"/api/v1/leaderboards/{api.post('/api/v1/leaderboards', json=body).json()['UUID']}"
    with server.client(made["key"]) as game:
        assert game.put(f"{board}/users/ada", json={"score": 1}).status_code == 200
        problem(game.get(f"{board}/top"), 403, "scope_forbidden")
        problem(game.patch(board, json={"name": "Mine"}), 403, "scope_forbidden")
        problem(game.delete(f"{board}/users/ada"), 403, "scope_forbidden")
        # The hot lane has seen a call that is allowed; the others must not profit from it.
        problem(game.get(f"{board}/users/ada/rank"), 403, "scope_forbidden")
    problem(api.post(keys, json={"role": "client", "scopes": ["read"]}), 422, "out_of_range", "scopes")
    problem(api.post(keys, json={"role": "server", "scopes": ["fly"]}), 422, "not_a_choice", "scopes[0]")


def test_key_stops_working_when_it_expires(server: RunningServer, api: httpx.Client, keys: str) -> None:
    made = api.post(keys, json={"role": "server", "expiresAt": in_seconds(2)}).json()
    body = {"podId": keys.split("/")[4], "name": "A board"}
    board = f"/api/v1/leaderboards/{api.post('/api/v1/leaderboards', json=body).json()['UUID']}"
    with server.client(made["key"]) as game:
        assert game.put(f"{board}/users/ada", json={"score": 1}).status_code == 200
        assert game.get(f"{board}/top").status_code == 200
        # Also in the hot lane, which remembers what a key may do.
        until(lambda: game.get(f"{board}/top").status_code == 401, "the key expires")
        problem(game.get(f"{board}/top"), 401, "token_expired")
        problem(game.put(f"{board}/users/ada", json={"score": 1}), 401, "token_expired")
    problem(api.post(keys, json={"role": "server", "expiresAt": in_seconds(-1)}), 422, "out_of_range", "expiresAt")


def test_key_list_shows_when_a_key_was_used(server: RunningServer, api: httpx.Client, keys: str) -> None:
    made = api.post(keys, json={"role": "client"}).json()
    assert [key["lastUsedAt"] for key in api.get(keys).json()["keys"]] == [None]
    with server.client(made["key"]) as game:
        assert game.get("/api/v1/leaderboards").status_code == 200
    (shown,) = api.get(keys).json()["keys"]
    assert shown["lastUsedAt"] > shown["createdAt"]


def test_rotated_key_overlaps_with_its_successor(server: RunningServer, api: httpx.Client, keys: str) -> None:
    old = api.post(keys, json={"role": "server", "label": "match", "scopes": ["read"]}).json()
    new = api.post(f"{keys}/{old['keyId']}/rotate", json={"overlapSeconds": 2}).json()
    assert (new["role"], new["label"], new["scopes"], new["expiresAt"]) == ("server", "match", ["read"], None)
    with server.client(old["key"]) as before, server.client(new["key"]) as after:
        assert before.get("/api/v1/leaderboards").status_code == 200
        assert after.get("/api/v1/leaderboards").status_code == 200
        until(lambda: before.get("/api/v1/leaderboards").status_code == 401, "the key expires")
        assert after.get("/api/v1/leaderboards").status_code == 200
    assert [key["expiresAt"] is None for key in api.get(keys).json()["keys"]] == [False, True]
    problem(api.post(f"{keys}/000000000000/rotate"), 404, "key_not_found", "keyId")


def test_rotation_never_extends_the_life_of_a_key(server: RunningServer, api: httpx.Client, keys: str) -> None:
    old = api.post(keys, json={"role": "server", "expiresAt": in_seconds(2)}).json()
    for _ in range(2):
        assert api.post(f"{keys}/{old['keyId']}/rotate", json={"overlapSeconds": 3600}).status_code == 201
    with server.client(old["key"]) as before:
        until(lambda: before.get("/api/v1/leaderboards").status_code == 401, "the old key expires")


def test_admin_keys_are_created_rotated_and_revoked(server: RunningServer, api: httpx.Client) -> None:
    path = "/api/v1/admin-keys"
    made = api.post(path, json={"label": "ada"}).json()
    assert (made["role"], made["label"]) == ("admin", "ada")
    with server.client(made["key"]) as ada:
        assert ada.get("/api/v1/pods").status_code == 200
        rotated = ada.post(f"{path}/{made['keyId']}/rotate", json={"overlapSeconds": 60}).json()
        with server.client(rotated["key"]) as again:
            assert again.delete(f"{path}/{made['keyId']}").status_code == 200
            problem(ada.get("/api/v1/pods"), 401, "key_unknown")
            assert rotated["keyId"] in [key["keyId"] for key in again.get(path).json()["keys"]]
    problem(api.delete(f"{path}/{made['keyId']}"), 404, "key_not_found", "keyId")
    problem(api.delete(f"/api/v1/pods/default/keys/{rotated['keyId']}"), 404, "key_not_found", "keyId")
    assert api.delete(f"{path}/{rotated['keyId']}").status_code == 200


def test_only_what_everybody_may_see_is_cached(api: httpx.Client, new_board: NewBoard) -> None:
    board = f"/api/v1/leaderboards/{new_board(public=True, segments=['global', 'circle'])}"
    api.patch("/api/v1/users/ada", params={"podId": "default"}, json={"circles": ["red"]})
    assert api.put(f"{board}/users/ada", json={"score": 1}).status_code == 200
    private = f"/api/v1/leaderboards/{new_board()}"
    for path, is_private in (
        (f"{board}/top", False),
        (f"{board}/users/ada/rank", False),
        (f"{board}/top?segment=circle:red", True),
        (f"{board}/users/ada/around?segment=circle:red", True),
        (f"{board}/top?viewer=ada", True),
        (f"{private}/top", True),
    ):
        answer = api.get(path)
        assert answer.status_code == 200, answer.text
        assert (answer.headers.get("cache-control") == "no-store") == is_private, path
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_responses_with_personal_data_are_not_cached(api: httpx.Client, keys: str) -> None:
    for path in (keys, "/api/v1/pods", "/api/v1/leaderboards", "/api/v1/no-such-address"):
        headers = api.get(path).headers
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff"), path
    for path in ("/docs", "/"):
        headers = api.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff", path
    assert api.get("/openapi.json").headers["x-content-type-options"] == "nosniff"


def test_refused_calls_are_counted_by_code(server: RunningServer, api: httpx.Client) -> None:
    def count() -> float:
        lines = api.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith('laurels_refused_calls_total{code="key_unknown"}')]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    before = count()
    with server.client("lrl_0_wrong") as stranger:
        assert [stranger.get("/api/v1/pods").status_code for _ in range(3)] == [401] * 3
    assert count() == before + 3
