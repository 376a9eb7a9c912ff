"""Forged, expired and unknown tokens in large numbers: each is refused, and memory stays bounded."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import psutil
import pytest

from support.identity import AUDIENCE, KeyFile
from support.running import RunningServer

MIB = 2**20
API = "/api/v1"
TIMES = 1000


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyFile:
    return KeyFile(tmp_path_factory.mktemp("keys") / "jwks.json")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, keys: KeyFile) -> Iterator[RunningServer]:
    settings = {
        "oauth_issuer": KeyFile.ISSUER,
        "oauth_jwks": str(keys.path),
        "oauth_audience": AUDIENCE,
        "wrong_keys_per_minute": "0",
        "rate_per_player": "0",
    }
    with RunningServer(tmp_path_factory.mktemp("guarded"), **settings) as server:
        yield server


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def unsigned(number: int, _: KeyFile) -> str:
    return f"{encoded({'alg': 'none', 'n': number})}.{encoded({'sub': 'ada', 'laurels_role': 'admin'})}."


def of_unknown_key(number: int, keys: KeyFile) -> str:
    return f"{encoded({'alg': 'RS256', 'kid': f'k{number}'})}.{keys.token().split('.', 1)[1]}"


def expired(number: int, keys: KeyFile) -> str:
    return keys.token("EdDSA", sub=f"player-{number}", exp=int(time.time()) - 600)


def with_the_claims_of_an_admin(number: int, keys: KeyFile) -> str:
    header, _, signature = keys.token("EdDSA").split(".")
    return f"{header}.{encoded({'sub': f'p{number}', 'laurels_role': 'admin', 'exp': 2**40})}.{signature}"


def signed_with_a_password(number: int, _: KeyFile) -> str:
    claims = {"sub": f"p{number}", "laurels_role": "admin", "aud": AUDIENCE, "iss": KeyFile.ISSUER, "exp": 2**40}
    return jwt.encode(claims, "a password that is long enough for HS256", "HS256", {"kid": "EdDSA"})


FORGED: list[Callable[[int, KeyFile], str]] = [
    unsigned,
    of_unknown_key,
    expired,
    with_the_claims_of_an_admin,
    signed_with_a_password,
]


def memory_of(server: RunningServer) -> int:
    return int(psutil.Process(server.pid).memory_info().rss)


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_forged_tokens_are_refused_and_leave_nothing_in_memory(
    guarded: RunningServer, keys: KeyFile, forge: Callable[[int, KeyFile], str]
) -> None:
    with guarded.client(None) as client:

        def send(first: int, count: int) -> None:
            for number in range(first, first + count):
                headers = {"Authorization": f"Bearer {forge(number, keys)}"}
                answer = client.get(f"{API}/leaderboards", headers=headers)
                assert answer.status_code == 401, answer.text
                assert "WWW-Authenticate" in answer.headers

        send(0, TIMES // 10)
        before = memory_of(guarded)
        send(TIMES // 10, TIMES)
        assert memory_of(guarded) - before < 8 * MIB


def test_many_players_leave_little_in_memory(guarded: RunningServer, keys: KeyFile) -> None:
    """The owners of valid tokens are remembered, but not without bound."""
    with guarded.client(None) as client:
        before = memory_of(guarded)
        for number in range(2 * TIMES):
            token = keys.token("EdDSA", sub=f"player-{number}", padding="x" * 3000)
            answer = client.get(f"{API}/leaderboards/default/top", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == 200, answer.text
        assert memory_of(guarded) - before < 16 * MIB


def test_expired_and_revoked_player_tokens_end_live_views(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.client() as api:
        tokens = f"{API}/pods/default/tokens"
        board = {"UUID": "arena", "podId": "default", "name": "Arena"}
        assert api.post(f"{API}/leaderboards", json=board).status_code == 201
        key = api.post(f"{API}/pods/default/keys", json={"role": "server"}).json()["key"]
        with server.client(key) as game:
            short = game.post(tokens, json={"userId": "ada", "expiresInSeconds": 60}).json()["token"]
            with server.client(short) as ada, ada.stream("GET", f"{API}/leaderboards/arena/stream") as stream:
                lines = stream.iter_lines()
                assert next(line for line in lines if line.startswith("event:")) == "event: snapshot"
                assert api.request("DELETE", f"{tokens}/ada").status_code in {200, 204}
                told = [line for line in _until_the_end(lines) if line.startswith("data:")]
                assert "token_revoked" in told[-1] or "token_invalid" in told[-1] or "401" in told[-1], told


def _until_the_end(lines: Iterator[str]) -> Iterator[str]:
    try:
        yield from lines
    except httpx.RemoteProtocolError:
        return
