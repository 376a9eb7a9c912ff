"""How commands reach Laurels: a server that is named, the one that serves the data folder, or one of their own.

There is only one way in, the HTTP API; where nobody serves the data folder, the command does so itself for as long
as it runs, on a socket in a private temporary folder.
"""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from laurels.cli.progress import show_progress
from laurels.config import Settings
from laurels.core.ids import new_secret
from laurels.errors import OUTSIDE, Invalid, LaurelsError, Unavailable
from laurels.server import Server
from laurels.wiring import running_server

TIMEOUT_S = 60
OWN = "laurels"


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    url = settings.url or running_server(settings)
    if url:
        async with _client(url, settings.key or _admin_key(settings)) as client:
            yield client
    elif url is None:
        async with _own_server(settings) as client:
            yield client
    else:
        raise Unavailable("ledger_unavailable", f"{settings.data_dir} is in use by another laurels command.")


class Peer(httpx.AsyncClient):
    """A Laurels that a command talks to. `key_option`: how its key is given."""

    key_option = "--key or LAURELS_KEY"


def reach_other(url: str, key: str | None) -> Peer:
    """Another Laurels than the one that the settings name."""
    if not url.startswith(("http://", "https://")):
        raise Invalid("wrong_format", f"--from {url!r} must begin with http:// or https://.", field="--from")
    other = _client(url, key)
    other.key_option = "--from-key"
    return other


async def call(client: httpx.AsyncClient, method: str, path: str, *, tries: int = 3, **rest: Any) -> Any:
    """The answer's JSON. What can be tried again is, a few times; other problems are raised as what they are."""
    for number in range(tries):
        try:
            response = await client.request(method, path, **rest)
        except httpx.TransportError:
            if number == tries - 1:
                raise
        else:
            if response.is_success:
                return response.json()
            if response.status_code not in {429, 503} or number == tries - 1:
                raise error_of(response, client)
        await asyncio.sleep(0.1 * 2**number)
    raise AssertionError("unreachable")


def error_of(response: httpx.Response, client: httpx.AsyncClient) -> LaurelsError:
    """The error that a problem was made of."""
    kinds = {outside.http_status: kind for kind, outside in OUTSIDE.items()}
    try:
        problem = response.json()
        if response.status_code == 401 and isinstance(client, Peer):
            where = "" if client.base_url.host == OWN else f" of {client.base_url}"
            problem["detail"] += f" The key{where} is given with {client.key_option}."
        return kinds[problem["status"]](problem["code"], problem["detail"], field=problem.get("field"))
    except (ValueError, KeyError, TypeError):
        return Unavailable("internal", f"The server answered {response.status_code}: {response.text[:200]}")


def _admin_key(settings: Settings) -> str | None:
    if settings.admin_key:
        return settings.admin_key
    try:
        return settings.admin_key_path.read_text("utf-8").strip() or None
    except OSError:
        return None


def _client(url: str, key: str | None, transport: httpx.AsyncHTTPTransport | None = None) -> Peer:
    # Without any key there are still the public boards.
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return Peer(base_url=url, headers=headers, timeout=TIMEOUT_S, transport=transport)


@contextlib.asynccontextmanager
async def _own_server(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    if settings.ledger_path is not None and not settings.ledger_path.exists():
        raise Unavailable(
            "ledger_unavailable",
            f"There is no ledger at {settings.ledger_path}, and no server was named with --url.",
        )
    admin_key = _admin_key(settings) or new_secret()
    ready = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="laurels-") as folder:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(Path(folder) / "socket"))
        listening.listen()
        with show_progress("Loading ranks") as advance:
            server = Server(settings, admin_key, advance, ready.set)
            serving = asyncio.create_task(server.serve(listening, ""))
            loaded = asyncio.create_task(ready.wait())
            await asyncio.wait({serving, loaded}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if serving.done():
                await serving
                raise Unavailable("stopping", "The server stopped before it was ready.")
            transport = httpx.AsyncHTTPTransport(uds=str(Path(folder) / "socket"))
            async with _client(f"http://{OWN}", settings.key or admin_key, transport) as client:
                yield client
        finally:
            loaded.cancel()
            server.stop()
            await serving
