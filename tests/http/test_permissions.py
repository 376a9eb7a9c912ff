"""Every call in every role, on the own and on another pod's boards, gives what docs/permissions.md says."""

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.sync.client import connect

from laurels.http.permissions import NO, OWN, OWN_SCORES, PUBLIC, YES
from laurels.http.routes import ROUTES
from support.identity import AUDIENCE, KeyFile
from support.live import live_url
from support.running import RunningServer

PAGE = Path(__file__).parents[2] / "docs/permissions.md"
SCOPES = ("read", "scores:write", "boards:write", "moderation")
# Refused as a parameter after the permission was checked, so that no call has an effect.
UNKNOWN = {"no-such-parameter": "1"}
ALLOWED = 422


class Documented(NamedTuple):
    method: str
    path: str
    admin: str
    server: str
    scope: str
    client: str
    player: str
    nobody: str


class Callers(NamedTuple):
    pod: str
    other_pod: str
    # By whether the board is in the own pod, and public.
    boards: dict[tuple[bool, bool], str]
    clients: dict[str, httpx.Client]


def documented() -> list[Documented]:
    rows = []
    for line in PAGE.read_text("utf-8").splitlines():
        if found := re.fullmatch(r"\| `([A-Z]+) (/\S+)` \|(.*)\|", line):
            cells = [cell.strip() for cell in found[3].split("|")]
            rows.append(Documented(found[1], found[2], *cells))
    return rows


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> KeyFile:
    """Return the signing keys of an OAuth 2 provider."""
    return KeyFile(tmp_path_factory.mktemp("provider") / "jwks.json")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, provider: KeyFile) -> Iterator[RunningServer]:
    settings = {
        "oauth_issuer": KeyFile.ISSUER,
        "oauth_jwks": str(provider.path),
        "oauth_audience": AUDIENCE,
        # Every call in every role comes from one address.
        "wrong_keys_per_minute": "0",
        "rate_per_address": "0",
        "rate_per_player": "0",
    }
    with RunningServer(tmp_path_factory.mktemp("permissions"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def callers(server: RunningServer, api: httpx.Client, provider: KeyFile) -> Iterator[Callers]:
    pods = {is_own: f"{'own' if is_own else 'other'}-{uuid.uuid4()}" for is_own in (True, False)}
    boards = {}
    for is_own, pod in pods.items():
        assert api.post("/api/v1/pods", json={"podId": pod, "name": "A pod"}).status_code == 201
        for public in (False, True):
            body = {"podId": pod, "name": "A board", "public": public, "playersMayWrite": public}
            boards[is_own, public] = api.post("/api/v1/leaderboards", json=body).json()["UUID"]
    keys = f"/api/v1/pods/{pods[True]}/keys"
    tokens = {
        "admin": api.post("/api/v1/admin-keys", json={"label": "ops"}).json()["key"],
        "server": api.post(keys, json={"role": "server"}).json()["key"],
        "client": api.post(keys, json={"role": "client"}).json()["key"],
        "expired": "lrl_0_wrong",
    }
    for scope in SCOPES:
        tokens[f"server {scope}"] = api.post(keys, json={"role": "server", "scopes": [scope]}).json()["key"]
    for may_write in (False, True):
        body = {"userId": "ada", "mayWrite": may_write}
        issued = api.post(f"/api/v1/pods/{pods[True]}/tokens", json=body)
        tokens["player" if may_write else "reading player"] = issued.json()["token"]
    pod = pods[True]
    tokens |= {
        "oauth admin": provider.token(laurels_role="admin", laurels_pod=None),
        "oauth server": provider.token(laurels_role="server", laurels_pod=pod, scope=_scopes(*SCOPES)),
        "oauth client": provider.token(laurels_role="client", laurels_pod=pod),
        "oauth reading player": provider.token(laurels_pod=pod),
        "oauth player": provider.token(laurels_pod=pod, scope=_scopes("read", "scores:write")),
        "oauth expired": provider.token(laurels_role="admin", laurels_pod=None, exp=1),
    }
    for scope in SCOPES:
        claims: dict[str, Any] = {"laurels_role": "server", "laurels_pod": pod, "scope": _scopes(scope)}
        tokens[f"oauth server {scope}"] = provider.token(**claims)
    clients = {"nobody": server.client(None)} | {name: server.client(token) for name, token in tokens.items()}
    yield Callers(pods[True], pods[False], boards, clients)
    for client in clients.values():
        client.close()


def _scopes(*names: str) -> str:
    return " ".join(f"laurels:{name}" for name in names)


def test_page_lists_every_call() -> None:
    assert [(row.method, row.path) for row in documented()] == [(route.method, route.path) for route in ROUTES]


@pytest.mark.parametrize("row", documented(), ids=lambda row: f"{row.method} {row.path}")
def test_every_role_gets_what_the_page_says(callers: Callers, row: Documented) -> None:
    for (is_own, public), board in callers.boards.items():
        for user in ("ada", "bob"):
            path = row.path.replace("{UUID}", board).replace("{userId}", user).replace("{podId}", callers.pod)
            path = re.sub(r"{\w+}", "x", path)
            for who, client in callers.clients.items():
                answer = client.request(row.method, path, params=UNKNOWN)
                expected = expect(row, who, is_own=is_own, public=public, is_ada=user == "ada")
                assert answer.status_code == expected, (who, is_own, public, user, answer.text)
            if "{userId}" not in row.path:
                break
        if "{UUID}" not in row.path:
            break


NAMED_POD = [row for row in documented() if "{podId}" in row.path]
TAKES_POD = [
    Documented(row.method, row.path, *row[2:])
    for row, route in zip(documented(), ROUTES, strict=True)
    if "{podId}" not in row.path and "pod_id" in getattr(route.endpoint.query_type, "__struct_fields__", ())
]


@pytest.mark.parametrize("row", NAMED_POD, ids=lambda row: f"{row.method} {row.path}")
def test_key_does_not_reach_another_pod_in_the_path(callers: Callers, row: Documented) -> None:
    path = row.path.replace("{podId}", callers.other_pod).replace("{userId}", "ada")
    path = re.sub(r"{\w+}", "x", path)
    for who, client in callers.clients.items():
        answer = client.request(row.method, path, params=UNKNOWN)
        expected = expect(row, who, is_own=True, public=False, is_ada=True)
        if expected == ALLOWED and "admin" not in who:
            expected = 404
        assert answer.status_code == expected, (who, answer.text)


@pytest.mark.parametrize("row", TAKES_POD, ids=lambda row: f"{row.method} {row.path}")
def test_key_does_not_reach_another_pod_in_the_query(callers: Callers, row: Documented) -> None:
    path = re.sub(r"{\w+}", "x", row.path.replace("{userId}", "ada"))
    for who, client in callers.clients.items():
        expected = expect(row, who, is_own=True, public=False, is_ada=True)
        if "admin" in who:
            continue
        if expected == ALLOWED:
            # Without a key, a list shows the public boards of any pod.
            expected = 200 if who == "nobody" else 404
        answer = client.request(row.method, path, params={"podId": callers.other_pod})
        assert answer.status_code == expected, (who, answer.text)


def test_websocket_follows_the_page_in_every_role(server: RunningServer, callers: Callers) -> None:
    (row,) = [row for row in documented() if row.path.endswith("/live")]
    for (is_own, public), board in callers.boards.items():
        for who, client in callers.clients.items():
            expected = expect(row, who, is_own=is_own, public=public, is_ada=True)
            headers = {"Authorization": value} if (value := client.headers.get("Authorization")) else {}
            with connect(live_url(server.url, board), additional_headers=headers) as socket:
                frame = json.loads(socket.recv(20))
            status = ALLOWED if frame["type"] == "snapshot" else frame["problem"]["status"]
            assert status == expected, (who, is_own, public, frame)


def expect(row: Documented, who: str, *, is_own: bool, public: bool, is_ada: bool) -> int:  # noqa: C901, PLR0911 - one rule each
    """Return the status of a call with an invalid parameter according to the page."""
    # A token of the provider allows what a key with its role and its scopes does, and always includes `read`.
    if who.startswith("oauth server ") and row.scope == "`read`":
        who = "server"
    who = who.removeprefix("oauth ")
    has_board = "{UUID}" in row.path
    public = public or row.path.startswith("/v1/")
    reads_public = row.nobody == PUBLIC and (public or not has_board)
    if row.nobody == YES:
        return ALLOWED
    if who == "expired":
        return 401
    if who == "nobody":
        return ALLOWED if reads_public else 401
    if who == "admin":
        return ALLOWED
    if row.path.startswith("/v1/"):
        # The default board belongs to another pod.
        return ALLOWED if reads_public else 403
    if has_board and not is_own:
        return ALLOWED if reads_public else 403 if public else 404
    role, _, scope = who.partition(" ")
    if who == "reading player":
        role = "player"
    cell = getattr(row, role)
    if cell == NO:
        return 403
    if cell == OWN and not is_ada:
        return 403
    if cell == OWN_SCORES:
        return ALLOWED if is_ada and public and who == "player" else 403
    if role == "server" and scope and f"`{scope}`" != row.scope:
        return ALLOWED if reads_public and has_board else 403
    return ALLOWED
