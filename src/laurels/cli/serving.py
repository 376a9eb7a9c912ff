"""Servers that run in this process, for `laurels serve` and for commands that find no running server.

Other commands don't import this module, which halves their start time.
"""

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import typer
import uvloop

from laurels.cli.connect import OWN, Peer, client_of, connect, find_admin_key
from laurels.cli.progress import show_progress
from laurels.cli.workers import Workers
from laurels.client.tls import tls_for
from laurels.config import hide_password, is_shared, ledger_path, ledger_url, read_admin_key
from laurels.core.ids import new_secret
from laurels.errors import Unavailable
from laurels.server import Server, address_of, allow_connections, inherit, listen, switch_threads_often
from laurels.settings import Settings
from laurels.wiring import running_server


def serve(settings: Settings) -> None:
    uvloop.run(_serve(settings))


def ingest(settings: Settings) -> None:
    uvloop.run(_ingest(settings))


async def _serve(settings: Settings) -> None:
    allow_connections()
    switch_threads_often()
    fd = settings.server.fd
    listening = listen(settings.server.host, settings.server.port) if fd is None else inherit(fd)
    address = address_of(listening)
    admin_key = read_admin_key(settings, _host_of(listening))
    with ExitStack() as stack:
        advance = stack.enter_context(show_progress("Loading ranks"))

        def ready() -> None:
            stack.close()
            if settings.server.fd is None:
                _welcome(settings, address)

        await _serve_until_stopped(Server(settings, admin_key, advance, ready), settings, listening)


async def _ingest(settings: Settings) -> None:
    fd = settings.server.fd
    listening = listen(settings.server.host, settings.kafka.ingest_port) if fd is None else inherit(fd)
    address = address_of(listening)

    def ready() -> None:
        if fd is None:
            _welcome_ingest(settings, address)

    server = Server(
        settings, read_admin_key(settings, _host_of(listening)), lambda _done, _total: None, ready, probes_only=True
    )
    await _serve_until_stopped(server, settings, listening)


async def _serve_until_stopped(server: Server, settings: Settings, listening: socket.socket) -> None:
    """Serve until a signal. A worker also stops when its parent process has ended."""
    server.stop_on_signals()
    parent = settings.server.parent
    orphaned = None if parent is None else asyncio.create_task(_stop_when_orphaned(server, parent))
    await server.serve(listening, address_of(listening))
    if orphaned is not None:
        orphaned.cancel()
    else:
        typer.echo("Laurels has stopped.", err=True)


def serve_with_workers(settings: Settings) -> int:
    return _run_workers("serve", settings, settings.server.port, _welcome)


def ingest_with_workers(settings: Settings) -> int:
    return _run_workers("ingest", settings, settings.kafka.ingest_port, _welcome_ingest)


def _run_workers(command: str, settings: Settings, port: int, welcome: Callable[[Settings, str], None]) -> int:
    listening = listen(settings.server.host, port)
    listening.set_inheritable(True)
    address = address_of(listening)
    read_admin_key(settings)
    code = asyncio.run(Workers(command, settings, listening, address, lambda: welcome(settings, address)).run())
    typer.echo("Laurels has stopped.", err=True)
    return code


def _host_of(listening: socket.socket) -> str | None:
    """Return the address of a socket that the server inherited or opened; None for a local one."""
    name = listening.getsockname()
    return str(name[0]) if isinstance(name, tuple) else None


async def _stop_when_orphaned(server: Server, parent: int) -> None:
    """Stop the server when its parent process has ended, because nothing else would stop it."""
    while os.getppid() == parent:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(1)
    server.stop()


def _welcome_ingest(settings: Settings, address: str) -> None:
    workers = settings.server.workers
    processes = f" with {workers} processes" if workers > 1 else ""
    brokers = settings.kafka.kafka
    typer.echo(f"Laurels is reading scores from {brokers}{processes}  (health: {address}/readyz)", err=True)


def _welcome(settings: Settings, address: str) -> None:
    where = "LAURELS_ADMIN_KEY" if settings.server.admin_key else settings.server.admin_key_path.resolve()
    path = ledger_path(settings)
    typer.echo(f"Laurels is ready at {address}  (API: {address}/docs)", err=True)
    typer.echo(f"  ledger     {hide_password(ledger_url(settings)) if path is None else path.resolve()}", err=True)
    if is_shared(settings):
        typer.echo(f"  index      {hide_password(settings.storage.index)}", err=True)
        typer.echo(f"  workers    {settings.server.workers}", err=True)
        typer.echo(f"  spool      {settings.storage.spool.resolve() if settings.storage.spool else 'none'}", err=True)
    if settings.kafka.kafka:
        taken = "scores are read from it" if settings.kafka.ingest else "scores are published to it, not read from it"
        typer.echo(f"  kafka      {settings.kafka.kafka} ({taken})", err=True)
    typer.echo(f"  admin key  {where}", err=True)


@contextlib.asynccontextmanager
async def own_server(settings: Settings) -> AsyncIterator[Peer]:
    path = ledger_path(settings)
    if path is not None and not path.exists():
        raise Unavailable(
            "ledger_unavailable",
            f"There is no ledger at {path}. Name a server with --url or a data folder with --data-dir.",
        )
    admin_key = find_admin_key(settings) or new_secret()
    with tempfile.TemporaryDirectory(prefix="laurels-") as folder:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(Path(folder) / "socket"))
        listening.listen()
        transport = httpx.AsyncHTTPTransport(uds=str(Path(folder) / "socket"), verify=tls_for(f"http://{OWN}"))
        client = client_of(f"http://{OWN}", settings.client.key or admin_key, transport)
        async with _serving(settings, admin_key, listening, ""), client:
            yield client


@contextlib.asynccontextmanager
async def connect_or_serve(settings: Settings) -> AsyncIterator[Peer]:
    """Connect to the running server; without one, start a server and stop it at the end.

    The server listens on the address in the settings.
    """
    running = running_server(settings)
    if settings.client.url or running is not None:
        if not settings.client.url and running and not running.endswith(f":{settings.server.port}"):
            used = f"Using the server that has {settings.server.data_dir} open: {running}."
            typer.echo(f"{used} --port and LAURELS_PORT have no effect.", err=True)
        async with connect(settings) as client:
            yield client
        return
    listening = listen(settings.server.host, settings.server.port)
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
