"""Signing keys of an OAuth 2 provider that come from a URL: cached, fetched again when needed, and bounded."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from laurels.adapters import jwks
from laurels.service.boards import oauth
from support.identity import AUDIENCE, KeyFile
from support.running import RunningServer
from support.waiting import until

TOP = "/api/v1/leaderboards/private/top"


class KeyServer:
    """An HTTP server with a key file, which counts how often it is asked and can be out of order."""

    def __init__(self, folder: Path) -> None:
        self.keys = KeyFile(folder / "jwks.json")
        self.asked = 0
        self.is_away = False
        self.padding = b""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                self.send_response(503 if outer.is_away else 200)
                self.end_headers()
                self.wfile.write(outer.keys.path.read_bytes() + outer.padding)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks.json"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[KeyServer]:
    made = KeyServer(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def server(tmp_path: Path, provider: KeyServer) -> Iterator[RunningServer]:
    settings = {
        "oauth_issuer": KeyFile.ISSUER,
        "oauth_jwks": provider.url,
        "oauth_audience": AUDIENCE,
        "wrong_keys_per_minute": "0",
    }
    with RunningServer(tmp_path / "data", **settings) as running:
        with running.client() as api:
            body = {"UUID": "private", "podId": "default", "name": "Private"}
            assert api.post("/api/v1/leaderboards", json=body).status_code == 201
        yield running


def status_of(server: RunningServer, token: str) -> int:
    with server.client(token) as client:
        return client.get(TOP).status_code


def test_keys_are_cached_and_survive_an_outage_of_the_provider(server: RunningServer, provider: KeyServer) -> None:
    until(lambda: status_of(server, provider.keys.token()) == 200, "the keys are known")
    asked = provider.asked
    assert all(status_of(server, provider.keys.token(algorithm)) == 200 for algorithm in ("RS256", "ES256", "EdDSA"))
    assert provider.asked == asked
    provider.is_away = True
    # A token of a key that is not known makes the server ask.
    unknown = provider.keys.token(headers={"kid": "new"})
    until(lambda: status_of(server, unknown) == 401 and provider.asked > asked, "it asked")
    assert status_of(server, provider.keys.token()) == 200


def test_tokens_of_unknown_keys_make_the_server_ask_at_a_bounded_rate(
    server: RunningServer, provider: KeyServer
) -> None:
    until(lambda: status_of(server, provider.keys.token()) == 200, "the keys are known")
    asked = provider.asked
    with server.client(None) as client:
        for number in range(300):
            token = provider.keys.token("EdDSA", headers={"kid": f"unknown-{number}"})
            assert client.get(TOP, headers={"Authorization": f"Bearer {token}"}).status_code == 401
    # 300 tokens take a few seconds, and the server asks once per REFRESH_AT_MOST_S.
    assert provider.asked - asked <= 3 + 60 // oauth.REFRESH_AT_MOST_S


def test_a_response_that_is_too_large_changes_nothing(server: RunningServer, provider: KeyServer) -> None:
    until(lambda: status_of(server, provider.keys.token()) == 200, "the keys are known")
    old = provider.keys.token()
    asked = provider.asked
    provider.keys.rotate("-2")
    provider.padding = b" " * jwks.MAX_BYTES
    until(lambda: status_of(server, provider.keys.token(suffix="-2")) == 401 and provider.asked > asked, "it asked")
    assert status_of(server, old) == 200
    provider.padding = b""
    until(lambda: status_of(server, provider.keys.token(suffix="-2")) == 200, "the new keys are known")
    until(lambda: status_of(server, old) == 401, "the old keys are gone")
