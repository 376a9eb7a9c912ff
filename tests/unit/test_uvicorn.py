"""What http/protocol.py and server.py rely on in uvicorn.

Run these tests with a new minor version of uvicorn before its upper bound is raised.
"""

import asyncio
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))


def test_installed_uvicorn_is_within_the_declared_bounds() -> None:
    (wanted,) = [each for each in PROJECT["project"]["dependencies"] if each.startswith("uvicorn")]
    lower, upper = wanted.removeprefix("uvicorn>=").split(",<")
    version = tuple(map(int, uvicorn.__version__.split(".")[:2]))
    assert tuple(map(int, lower.split("."))) <= version < tuple(map(int, upper.split(".")))


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (HttpToolsProtocol, "connection_made"),
        (HttpToolsProtocol, "connection_lost"),
        (HttpToolsProtocol, "data_received"),
        (HttpToolsProtocol, "shutdown"),
        (HttpToolsProtocol, "handle_websocket_upgrade"),
        (HttpToolsProtocol, "pause_writing"),
        (HttpToolsProtocol, "resume_writing"),
        (HttpToolsProtocol, "on_message_begin"),
        (HttpToolsProtocol, "on_header"),
        (HttpToolsProtocol, "on_headers_complete"),
        (HttpToolsProtocol, "on_body"),
        (HttpToolsProtocol, "on_message_complete"),
        (HttpToolsProtocol, "on_response_complete"),
        (HttpToolsProtocol, "timeout_keep_alive_handler"),
        (HttpToolsProtocol, "_unset_keepalive_if_required"),
        (WebSocketsSansIOProtocol, "connection_made"),
        (WebSocketsSansIOProtocol, "connection_lost"),
        (WebSocketsSansIOProtocol, "data_received"),
        (WebSocketsSansIOProtocol, "handle_connect"),
        (WebSocketsSansIOProtocol, "keepalive_timeout"),
        (uvicorn.Server, "capture_signals"),
        (uvicorn.Server, "serve"),
    ],
)
def test_overridden_methods_are_defined_by_uvicorn(kind: type, method: str) -> None:
    assert method in vars(kind), f"{kind.__name__} has no {method} any more: http/protocol.py would not be called"


def test_websocket_protocol_has_the_attributes_a_subscriber_uses() -> None:
    source = inspect.getsource(WebSocketsSansIOProtocol)
    for attribute in (
        "self.writable",
        "self.close_sent",
        "self.transport",
        "self.scope",
        "self.conn",
        "self.handshake_initiated",
        "self.handshake_complete",
    ):
        assert attribute in source
    assert "disconnected" in source


def test_http_protocol_begins_a_request_as_the_hot_lane_does() -> None:
    """`on_message_begin` is replaced by one that makes no scope: it must set the same attributes otherwise."""
    source = inspect.getsource(HttpToolsProtocol.on_message_begin)
    assigned = [line.split("=")[0].strip() for line in source.splitlines() if line.strip().startswith("self.")]
    assert assigned == ["self.url", "self.expect_100_continue", "self.headers", "self.scope"]


def test_http_protocol_asks_a_response_only_for_what_the_hot_lane_has() -> None:
    """A response of the hot lane stands in for uvicorn's RequestResponseCycle until it is complete."""
    source = inspect.getsource(HttpToolsProtocol)
    used = set(re.findall(r"self\.cycle\.(\w+)", source)) | set(re.findall(r"existing_cycle\.(\w+)", source))
    # The last two are of a cycle that uvicorn has just made itself.
    assert used == {"response_complete", "disconnected", "message_event", "keep_alive", "body", "more_body"}


def test_http_protocol_has_the_state_that_the_hot_lane_checks() -> None:
    source = inspect.getsource(HttpToolsProtocol)
    for attribute in ("self.cycle", "self.flow", "self.pipeline", "self.server_state", "self.timeout_keep_alive_task"):
        assert attribute in source
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"
    assert uvicorn.server.ServerState().default_headers == []


def test_http_protocol_has_a_scope_before_the_headers_are_complete() -> None:
    """`on_headers_complete` puts the link into `scope["state"]`."""

    async def run() -> None:
        config = uvicorn.Config(lambda: None, lifespan="off", log_config=None)
        config.load()
        state = uvicorn.server.ServerState()
        protocol = HttpToolsProtocol(config, state, {})
        assert isinstance(protocol.loop, asyncio.AbstractEventLoop)
        protocol.on_message_begin()
        assert protocol.scope["state"] == {}

    asyncio.run(run())


def test_uvicorn_server_has_exit_flags_that_default_to_false() -> None:
    server = uvicorn.Server(uvicorn.Config(lambda: None, lifespan="off", log_config=None))
    assert (server.should_exit, server.force_exit) == (False, False)
