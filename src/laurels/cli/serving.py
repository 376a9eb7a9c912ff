"""Servers that run in this process, for `laurels serve` and for commands that find none. Only those load it: the others
start in half the time.
"""

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import typer
import uvloop

from laurels.cli.connect import OWN, Peer, client_of, connect, find_admin_key
from laurels.cli.progress import show_progress
from laurels.cli.workers import Workers
from laurels.config import Settings, hide_password, read_admin_key
from laurels.core.ids import new_secret
from laurels.errors import Unavailable
from laurels.server import Server, address_of, allow_connections, inherit, listen
from laurels.wiring import running_server


def serve(settings: Settings) -> None:
    uvloop.run(_serve(settings))


def ingest(settings: Settings) -> None:
    uvloop.run(_ingest(settings))


async def _serve(settings: Settings) -> None:
    allow_connections()
    listening = listen(settings.host, settings.port) if settings.fd is None else inherit(settings.fd)
    address = address_of(listening)
    admin_key = read_admin_key(settings)
    with ExitStack() as stack:
        advance = stack.enter_context(show_progress("Loading ranks"))

        def ready() -> None:
            stack.close()
            if settings.fd is None:
                _welcome(settings, address)

        server = Server(settings, admin_key, advance, ready)
        server.stop_on_signals()
        parent = settings.parent
        orphaned = None if parent is None else asyncio.create_task(_stop_when_orphaned(server, parent))
        await server.serve(listening, address)
        if orphaned is not None:
            orphaned.cancel()
        else:
            typer.echo("Laurels has stopped.", err=True)


async def _ingest(settings: Settings) -> None:
    listening = listen(settings.host, settings.ingest_port)
    address = address_of(listening)
    server = Server(
        settings,
        read_admin_key(settings),
        lambda _done, _total: None,
        lambda: typer.echo(f"Laurels takes scores from {settings.kafka}  (health: {address}/readyz)", err=True),
        probes_only=True,
    )
    server.stop_on_signals()
    await server.serve(listening, address)
    typer.echo("Laurels has stopped.", err=True)


def serve_with_workers(settings: Settings) -> int:
    listening = listen(settings.host, settings.port)
    listening.set_inheritable(True)
    address = address_of(listening)
    read_admin_key(settings)
    code = asyncio.run(Workers(settings, listening, address, lambda: _welcome(settings, address)).run())
    typer.echo("Laurels has stopped.", err=True)
    return code


async def _stop_when_orphaned(server: Server, parent: int) -> None:
    """Without the process that started it, nobody would stop it."""
    while os.getppid() == parent:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(1)
    server.stop()


def _welcome(settings: Settings, address: str) -> None:
    where = "LAURELS_ADMIN_KEY" if settings.admin_key else settings.admin_key_path.resolve()
    path = settings.ledger_path
    typer.echo(f"Laurels is ready at {address}  (API: {address}/docs)", err=True)
    typer.echo(f"  ledger     {hide_password(settings.ledger) if path is None else path.resolve()}", err=True)
    if settings.is_shared:
        typer.echo(f"  index      {hide_password(settings.index)}", err=True)
        typer.echo(f"  workers    {settings.workers}", err=True)
        typer.echo(f"  spool      {settings.spool.resolve() if settings.spool else 'none'}", err=True)
    if settings.kafka:
        taken = "scores are taken from it" if settings.ingest else "it is told of scores; none are taken from it"
        typer.echo(f"  kafka      {settings.kafka} ({taken})", err=True)
    typer.echo(f"  admin key  {where}", err=True)


@contextlib.asynccontextmanager
async def own_server(settings: Settings) -> AsyncIterator[Peer]:
    if settings.ledger_path is not None and not settings.ledger_path.exists():
        raise Unavailable(
            "ledger_unavailable",
            f"There is no ledger at {settings.ledger_path}, and no server was named with --url.",
        )
    admin_key = find_admin_key(settings) or new_secret()
    with tempfile.TemporaryDirectory(prefix="laurels-") as folder:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(Path(folder) / "socket"))
        listening.listen()
        transport = httpx.AsyncHTTPTransport(uds=str(Path(folder) / "socket"))
        client = client_of(f"http://{OWN}", settings.key or admin_key, transport)
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
    async with _serving(settings, admin_key, listening, address), client_of(address, admin_key) as client:
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
