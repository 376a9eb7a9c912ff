"""Authorization: roles, isolation of pods, public boards, keys stored as hashes."""

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import httpx
import pytest

from support.calls import problem
from support.running import RunningServer


class Tenants(NamedTuple):
    """Two pods with a private and a public board each, and clients with every kind of key."""

    private: str
    public: str
    others_private: str
    others_public: str
    clients: dict[str, httpx.Client]


@pytest.fixture(scope="module")
def tenants(server: RunningServer, api: httpx.Client) -> Iterator[Tenants]:
    boards, clients = [], {"admin": api, "nobody": server.client(None), "wrong": server.client("lrl_0_wrong")}
    for name in ("own", "other"):
        pod = f"{name}-{uuid.uuid4()}"
        assert api.post("/api/v1/pods", json={"podId": pod, "name": name}).status_code == 201
        for role in ("server", "client"):
            made = api.post(f"/api/v1/pods/{pod}/keys", json={"role": role})
            assert made.status_code == 201
            clients[f"{name} {role}"] = server.client(made.json()["key"])
        for public in (False, True):
            body = {"podId": pod, "name": "A board", "public": public}
            board = api.post("/api/v1/leaderboards", json=body).json()["UUID"]
            assert api.put(f"/api/v1/leaderboards/{board}/users/ada", json={"score": 1}).status_code == 200
            boards.append(board)
    private, public, others_private, others_public = boards
    yield Tenants(private, public, others_private, others_public, clients)
    for client in clients.values():
        if client is not api:
            client.close()


READS: dict[str, Callable[[httpx.Client, str], httpx.Response]] = {
    "read": lambda c, b: c.get(f"/api/v1/leaderboards/{b}"),
    "top": lambda c, b: c.get(f"/api/v1/leaderboards/{b}/top"),
    "rank": lambda c, b: c.get(f"/api/v1/leaderboards/{b}/users/ada/rank"),
    "around": lambda c, b: c.get(f"/api/v1/leaderboards/{b}/users/ada/around"),
    "ranks": lambda c, b: c.post(f"/api/v1/leaderboards/{b}/ranks", json={"userIds": ["ada"]}),
    "distribution": lambda c, b: c.get(f"/api/v1/leaderboards/{b}/distribution"),
    "rank of a score": lambda c, b: c.get(f"/api/v1/leaderboards/{b}/rank?score=5"),
    "range": lambda c, b: c.get(f"/api/v1/leaderboards/{b}/range?minScore=1"),
    "sum": lambda c, b: c.get(f"/api/v1/leaderboards/{b}/distribution?sum=true&percentiles=50"),
    "periods": lambda c, b: c.get(f"/api/v1/leaderboards/{b}/periods"),
}
OWN_READS: dict[str, Callable[[httpx.Client, str], httpx.Response]] = {
    "history": lambda c, b: c.get(f"/api/v1/leaderboards/{b}/users/ada/history"),
}
WRITES: dict[str, Callable[[httpx.Client, str], httpx.Response]] = {
    "put": lambda c, b: c.put(f"/api/v1/leaderboards/{b}/users/ada", json={"score": 1}),
    "batch": lambda c, b: c.post(f"/api/v1/leaderboards/{b}/scores", json={"scores": [{"userId": "ada", "score": 1}]}),
    "change": lambda c, b: c.patch(f"/api/v1/leaderboards/{b}", json={"name": "A board"}),
    "events": lambda c, b: c.get(f"/api/v1/leaderboards/{b}/events"),
}


@pytest.mark.parametrize("call", READS)
def test_board_reads_depend_on_key_and_board_visibility(tenants: Tenants, call: str) -> None:
    expected = {
        "admin": (200, 200, 200),
        "own server": (200, 200, 404),
        "own client": (200, 200, 404),
        "nobody": (401, 200, 401),
        "wrong": (401, 401, 401),
    }
    for who, statuses in expected.items():
        client = tenants.clients[who]
        asked = (tenants.private, tenants.public, tenants.others_private)
        assert tuple(READS[call](client, board).status_code for board in asked) == statuses, who
    assert READS[call](tenants.clients["own client"], tenants.others_public).status_code == 200


@pytest.mark.parametrize("call", [*OWN_READS, *WRITES])
def test_writes_and_private_reads_require_a_key_of_the_same_pod(tenants: Tenants, call: str) -> None:
    expected = {
        "admin": (200, 200, 200, 200),
        "own server": (200, 200, 404, 403),
        "own client": (403, 403, 404, 403),
        "nobody": (401, 401, 401, 401),
        "wrong": (401, 401, 401, 401),
    }
    for who, statuses in expected.items():
        client = tenants.clients[who]
        boards = (tenants.private, tenants.public, tenants.others_private, tenants.others_public)
        assert tuple((OWN_READS | WRITES)[call](client, board).status_code for board in boards) == statuses, who


@pytest.mark.parametrize("who", ["own server", "own client", "nobody"])
def test_forbidden_private_board_looks_like_a_missing_board(tenants: Tenants, who: str) -> None:
    client = tenants.clients[who]
    for call in (READS | OWN_READS | WRITES).values():
        hidden, missing = call(client, tenants.others_private), call(client, "no-such-board")
        assert hidden.status_code == missing.status_code
        assert without(hidden, tenants.others_private) == without(missing, "no-such-board")
        assert {*hidden.headers} == {*missing.headers}


def without(response: httpx.Response, name: str) -> dict[str, Any]:
    return {key: str(value).replace(name, "BOARD") for key, value in response.json().items()}


def test_board_list_shows_only_boards_visible_to_the_key(tenants: Tenants) -> None:
    def listed(who: str, query: str = "") -> set[str]:
        boards: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = tenants.clients[who].get(f"/api/v1/leaderboards?limit=2{query}{cursor}").json()
            boards += page["leaderboards"]
            if page["nextCursor"] is None:
                return {board["UUID"] for board in boards}
            cursor = f"&cursor={page['nextCursor']}"

    assert listed("own server") == listed("own client") == {tenants.private, tenants.public}
    assert {tenants.private, tenants.others_private} < listed("admin")
    assert {tenants.public, tenants.others_public, "default"} <= listed("nobody")
    assert not {tenants.private, tenants.others_private} & listed("nobody")
    other_pod = tenants.clients["admin"].get(f"/api/v1/leaderboards/{tenants.others_public}").json()["podId"]
    assert listed("admin", f"&podId={other_pod}") == {tenants.others_private, tenants.others_public}
    answer = tenants.clients["own server"].get(f"/api/v1/leaderboards?podId={other_pod}")
    assert (answer.status_code, answer.json()["code"]) == (404, "pod_not_found")


def test_pod_and_key_management_requires_the_admin_key(tenants: Tenants) -> None:
    calls: list[Callable[[httpx.Client], httpx.Response]] = [
        lambda c: c.get("/api/v1/pods"),
        lambda c: c.post("/api/v1/pods", json={"podId": "x", "name": "x"}),
        lambda c: c.post("/api/v1/pods/default/keys", json={"role": "server"}),
        lambda c: c.get("/api/v1/pods/default/keys"),
        lambda c: c.delete("/api/v1/pods/default/keys/abc"),
        lambda c: c.get("/api/v1/verify"),
    ]
    for call in calls:
        for who in ("own server", "own client"):
            assert call(tenants.clients[who]).status_code == 403
        assert call(tenants.clients["nobody"]).status_code == 401


def test_server_key_creates_boards_only_in_its_own_pod(tenants: Tenants) -> None:
    server, client = tenants.clients["own server"], tenants.clients["own client"]
    own = tenants.clients["admin"].get(f"/api/v1/leaderboards/{tenants.private}").json()["podId"]
    made = server.post("/api/v1/leaderboards", json={"name": "Mine"})
    assert (made.status_code, made.json()["podId"]) == (201, own)
    assert server.post("/api/v1/leaderboards", json={"name": "Theirs", "podId": "default"}).status_code == 404
    assert client.post("/api/v1/leaderboards", json={"name": "Mine"}).status_code == 403


def test_user_scores_include_only_boards_of_the_same_pod(tenants: Tenants) -> None:
    scores = tenants.clients["own server"].get("/api/v1/users/ada/scores").json()["scores"]
    assert {score["UUID"] for score in scores} == {tenants.private, tenants.public}
    problem(tenants.clients["own client"].get("/api/v1/users/ada/scores"), 403, "player_token_required")
    assert tenants.clients["nobody"].get("/api/v1/users/ada/scores").status_code == 401
    assert tenants.clients["admin"].get("/api/v1/users/ada/scores").json()["code"] == "missing_field"
    assert tenants.clients["own server"].get("/api/v1/users/ada/scores?podId=default").status_code == 404


def test_api_key_is_accepted_in_either_header(server: RunningServer) -> None:
    key = "an-admin-key-for-tests-of-all-kinds"
    for headers in ({"X-API-Key": key}, {"Authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key}"}):
        assert httpx.get(server.url + "/api/v1/pods", headers=headers).status_code == 200
    assert httpx.get(server.url + "/api/v1/pods", headers={"X-API-Key": ""}).status_code == 401
    assert httpx.get(server.url + "/healthz", headers={"Authorization": "Basic abc"}).status_code == 200
    for authorization in ("Basic abc", "Bearer", key):
        answer = httpx.get(server.url + "/api/v1/pods", headers={"Authorization": authorization})
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


def test_revoked_key_is_refused_at_once_and_only_key_hashes_are_stored(
    server: RunningServer, api: httpx.Client
) -> None:
    made = api.post("/api/v1/pods/default/keys", json={"role": "server", "label": "ci"}).json()
    with server.client(made["key"]) as client:
        assert client.get("/api/v1/leaderboards").status_code == 200
        listed = api.get("/api/v1/pods/default/keys").json()["keys"]
        assert {"keyId": made["keyId"], "role": "server", "label": "ci"}.items() <= listed[-1].items()
        assert "key" not in listed[-1]
        assert api.delete(f"/api/v1/pods/default/keys/{made['keyId']}").status_code == 200
        assert client.get("/api/v1/leaderboards").json()["code"] == "key_unknown"
    assert api.delete(f"/api/v1/pods/default/keys/{made['keyId']}").json()["code"] == "key_not_found"
    with closing(sqlite3.connect(server.data_dir / "laurels.db")) as ledger:
        dump = "\n".join(map(str, ledger.execute("SELECT * FROM keys").fetchall()))
    secret = made["key"].split("_", 2)[2]
    assert made["keyId"] in dump
    assert secret not in dump


def test_missing_pod_id_error_says_where_to_send_it(api: httpx.Client) -> None:
    told = problem(api.put("/api/v1/users/ada", json={"region": "eu"}), 422, "missing_field", "podId")
    assert "query string (?podId=POD)" in told["detail"]
    told = problem(api.put("/api/v1/users/ada", json={"podId": "default"}), 422, "unknown_field", "podId")
    assert "add ?podId=POD to the URL" in told["detail"]
    told = problem(api.post("/api/v1/leaderboards", json={"name": "A board"}), 422, "missing_field", "podId")
    assert "the body" in told["detail"]
    assert api.put("/api/v1/users/ada?podId=default", json={"region": "eu"}).status_code == 200
