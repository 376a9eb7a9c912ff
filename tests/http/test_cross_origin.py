"""Calls from pages of other origins: only the origins that the pod allows, also for WebSockets."""

import uuid

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect
from websockets.typing import Origin

from support.calls import problem
from support.running import RunningServer

GAME = "https://game.example"
OTHER = "https://other.example"
ALLOW = "access-control-allow-origin"


@pytest.fixture
def board(api: httpx.Client) -> str:
    """Return the path of a public board in a pod that allows the origin GAME."""
    pod = f"web-{uuid.uuid4()}"
    api.post("/api/v1/pods", json={"podId": pod, "name": "Web"})
    changed = api.patch(f"/api/v1/pods/{pod}", json={"allowedOrigins": [GAME, GAME]})
    assert changed.json()["allowedOrigins"] == [GAME]
    made = api.post("/api/v1/leaderboards", json={"podId": pod, "name": "A board", "public": True})
    return f"/api/v1/leaderboards/{made.json()['UUID']}"


def test_only_allowed_origins_may_read_responses(api: httpx.Client, board: str) -> None:
    for path in (f"{board}/top", board, f"{board}/users/nobody/rank"):
        answer = api.get(path, headers={"Origin": GAME})
        assert (answer.headers[ALLOW], answer.headers["vary"]) == (GAME, "Origin"), path
        assert "access-control-allow-credentials" not in answer.headers
        assert "ratelimit" in answer.headers["access-control-expose-headers"].split(", ")
        assert ALLOW not in api.get(path, headers={"Origin": OTHER}).headers
        # A cache must not keep a response without the header for pages that need it.
        alone = api.get(path)
        assert (ALLOW in alone.headers, alone.headers["vary"]) == (False, "Origin")
    # A board of a pod that allows nothing.
    assert ALLOW not in api.get("/api/v1/leaderboards/default/top", headers={"Origin": GAME}).headers


def test_preflight_lists_methods_and_headers(api: httpx.Client, board: str) -> None:
    asked = {"Origin": GAME, "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization"}
    answer = httpx.options(f"{api.base_url}{board}/users/ada", headers=asked)
    assert (answer.status_code, answer.headers[ALLOW]) == (204, GAME)
    assert "PUT" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]
    problem(httpx.options(f"{api.base_url}{board}/top", headers=asked | {"Origin": OTHER}), 403, "origin_forbidden")
    # The pod is unknown before the key is: the origin of any pod is allowed to ask.
    users = httpx.options(f"{api.base_url}/api/v1/users/ada/scores", headers=asked)
    assert (users.status_code, users.headers[ALLOW]) == (204, GAME)
    problem(httpx.options(f"{api.base_url}{board}/top"), 405, "method_not_allowed")


def test_preflight_does_not_tell_which_private_boards_exist(api: httpx.Client, board: str) -> None:
    asked = {"Origin": "https://nobody.example", "Access-Control-Request-Method": "GET"}
    assert api.patch(board, json={"public": False}).status_code == 200
    told = httpx.options(f"{api.base_url}{board}/top", headers=asked)
    unknown = httpx.options(f"{api.base_url}/api/v1/leaderboards/nosuch/top", headers=asked)
    assert (told.status_code, told.json()["code"]) == (unknown.status_code, unknown.json()["code"])
    # The origin of the pod may still ask.
    assert httpx.options(f"{api.base_url}{board}/top", headers=asked | {"Origin": GAME}).status_code == 204


def test_error_is_readable_by_an_allowed_origin(server: RunningServer, board: str) -> None:
    answer = httpx.get(f"{server.url}{board}/users/ada/history", headers={"Origin": GAME})
    assert (answer.status_code, answer.headers[ALLOW]) == (401, GAME)


def test_event_stream_is_readable_by_an_allowed_origin(server: RunningServer, board: str) -> None:
    for origin, allowed in ((GAME, GAME), (OTHER, None)):
        with httpx.stream("GET", f"{server.url}{board}/stream", headers={"Origin": origin}) as stream:
            assert (stream.status_code, stream.headers.get(ALLOW)) == (200, allowed)


def test_websocket_of_another_origin_is_closed(server: RunningServer, board: str) -> None:
    url = f"{server.url.replace('http', 'ws')}{board}/live"
    for origin in (None, GAME, server.url):
        with connect(url, origin=None if origin is None else Origin(origin)) as socket:
            assert '"snapshot"' in str(socket.recv())
    with connect(url, origin=Origin(OTHER)) as socket:
        assert "origin_forbidden" in str(socket.recv())
        with pytest.raises(ConnectionClosedError) as closed:
            socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4403


@pytest.mark.parametrize("origin", ["game.example", "https://game.example/", "https://a b", "https://a,b", ""])
def test_malformed_origin_is_refused(api: httpx.Client, origin: str) -> None:
    answer = api.patch("/api/v1/pods/default", json={"allowedOrigins": [origin]})
    assert (answer.status_code, answer.json()["field"]) == (422, "allowedOrigins[0]")


def test_any_origin_may_be_allowed(api: httpx.Client, board: str) -> None:
    pod = api.get(board).json()["podId"]
    assert api.patch(f"/api/v1/pods/{pod}", json={"allowedOrigins": ["*"]}).status_code == 200
    assert api.get(f"{board}/top", headers={"Origin": OTHER}).headers[ALLOW] == OTHER


def test_public_board_shows_metadata_rewards_and_circles_only_if_it_says_so(
    server: RunningServer, api: httpx.Client
) -> None:
    reward = {"name": "gold", "prize": {"coins": 5}, "ranks": {"from": 1, "to": 1}}
    body = {
        "podId": "default",
        "name": "A board",
        "public": True,
        "metadata": {"secret": 1},
        "rewards": [reward],
        "segments": ["global", "circle"],
    }
    path = f"/api/v1/leaderboards/{api.post('/api/v1/leaderboards', json=body).json()['UUID']}"
    with server.client(None) as nobody:
        shown = nobody.get(path).json()
        assert (shown["metadata"], shown["rewards"]) == (None, [])
        problem(nobody.get(f"{path}/top", params={"segment": "circle:red"}), 401, "key_required")
        listed = {
            board["UUID"]: board for board in nobody.get("/api/v1/leaderboards?limit=1000").json()["leaderboards"]
        }
        assert listed[shown["UUID"]]["metadata"] is None
        assert api.get(path).json()["metadata"] == {"secret": 1}
        change = {"publicFields": ["metadata", "rewards", "circles"]}
        assert api.patch(path, json=change).json()["publicFields"] == change["publicFields"]
        shown = nobody.get(path).json()
        assert (shown["metadata"], shown["rewards"][0]["prize"]) == ({"secret": 1}, {"coins": 5})
        assert nobody.get(f"{path}/top", params={"segment": "circle:red"}).status_code == 200
