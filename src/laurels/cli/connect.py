"""How commands reach Laurels: a server that is named, the one that serves the data folder, or one of their own.

There is only one way in, the HTTP API; where nobody serves the data folder, the command does so itself for as long
as it runs, on a socket in a private temporary folder.
"""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec

from laurels.cli.progress import show_progress
from laurels.client import Ask, AsyncClient
from laurels.config import Settings, read_admin_key
from laurels.core.ids import new_secret
from laurels.errors import Invalid, LaurelsError, Unauthenticated, Unavailable
from laurels.server import Server, address_of, listen
from laurels.wiring import running_server

TIMEOUT_S = 60
OWN = "laurels"


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator["Peer"]:
    own = running_server(settings)
    url = settings.url or own
    if url:
        # The folder's key is for the server that holds the folder, and for nobody else.
        key = settings.key or (_admin_key(settings) if _same_server(url, own) else None)
        async with _client(url, key) as client:
            yield client
    elif url is None:
        async with _own_server(settings) as client:
            yield client
    else:
        raise Unavailable("ledger_unavailable", f"{settings.data_dir} is in use by another laurels command.")


class Peer(AsyncClient):
    """A Laurels that a command talks to. `key_option`: how its key is given."""

    key_option = "--key or LAURELS_KEY"

    @property
    def url(self) -> str:
        return str(self.http.base_url)

    def with_hint(self, error: LaurelsError) -> LaurelsError:
        """An error, with how a key is given where that is what it wants."""
        if not isinstance(error, Unauthenticated):
            return error
        where = "" if self.http.base_url.host == OWN else f" of {self.url}"
        hint = f"{error.message} The key{where} is given with {self.key_option}."
        return Unauthenticated(error.code, hint, field=error.field)


def reach_other(url: str, key: str | None) -> Peer:
    """Another Laurels than the one that the settings name."""
    if not url.startswith(("http://", "https://")):
        raise Invalid("wrong_format", f"--from {url!r} must begin with http:// or https://.", field="--from")
    other = _client(url, key)
    other.key_option = "--from-key"
    return other


async def call(
    peer: Peer,
    method: str,
    path: str,
    *,
    tries: int = 3,
    params: Mapping[str, Any] | None = None,
    json: Any = None,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """The answer's JSON. What can be tried again is, a few times; other problems are raised as what they are."""
    body = msgspec.json.encode(json) if json is not None else content
    sent = ({"Content-Type": "application/json"} if body is not None else {}) | dict(headers or {})
    try:
        return await peer.call(Ask(method, path, Any, dict(params or {}), body, sent), tries=tries)
    except LaurelsError as error:
        raise peer.with_hint(error) from error


def _admin_key(settings: Settings) -> str | None:
    if settings.admin_key:
        return settings.admin_key
    try:
        return settings.admin_key_path.read_text("utf-8").strip() or None
    except OSError:
        return None


def _same_server(url: str, own: str | None) -> bool:
    return own is not None and own != "" and httpx.URL(url) == httpx.URL(own)


def _client(url: str, key: str | None, transport: httpx.AsyncHTTPTransport | None = None) -> Peer:
    # Without any key there are still the public boards.
    return Peer(url, key, timeout_s=TIMEOUT_S, transport=transport)


@contextlib.asynccontextmanager
async def _own_server(settings: Settings) -> AsyncIterator[Peer]:
    if settings.ledger_path is not None and not settings.ledger_path.exists():
        raise Unavailable(
            "ledger_unavailable",
            f"There is no ledger at {settings.ledger_path}, and no server was named with --url.",
        )
    admin_key = _admin_key(settings) or new_secret()
    with tempfile.TemporaryDirectory(prefix="laurels-") as folder:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(Path(folder) / "socket"))
        listening.listen()
        transport = httpx.AsyncHTTPTransport(uds=str(Path(folder) / "socket"))
        client = _client(f"http://{OWN}", settings.key or admin_key, transport)
        async with _serving(settings, admin_key, listening, ""), client:
            yield client


@contextlib.asynccontextmanager
async def connect_or_serve(settings: Settings) -> AsyncIterator[Peer]:
    """Where there is no server, one is started on the address that the settings name, for as long as this lasts."""
    if settings.url or running_server(settings) is not None:
        async with connect(settings) as client:
            yield client
        return
    listening = listen(settings.host, settings.port)
    address = address_of(listening)
    admin_key = read_admin_key(settings)
    async with _serving(settings, admin_key, listening, address), _client(address, admin_key) as client:
        yield client


@contextlib.asynccontextmanager
async def _serving(settings: Settings, admin_key: str, listening: socket.socket, address: str) -> AsyncIterator[None]:
    ready = asyncio.Event()
    with show_progress("Loading ranks") as advance:
        server = Server(settings, admin_key, advance, ready.set)
        serving = asyncio.create_task(server.serve(listening, address))
        loaded = asyncio.create_task(ready.wait())
        await asyncio.wait({serving, loaded}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if serving.done():
            await serving
            raise Unavailable("stopping", "The server stopped before it was ready.")
        yield
    finally:
        loaded.cancel()
        server.stop()
        await serving
