"""`laurels serve` and `laurels ingest`."""

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from laurels.cli.progress import show_progress
from laurels.cli.workers import Workers
from laurels.config import SETTINGS, Settings, hide_password, read_admin_key, read_settings
from laurels.errors import Invalid
from laurels.server import Server, address_of, configure_logs, inherit, listen


def option(name: str) -> Any:
    setting = SETTINGS[name]
    default = "" if setting.default is None else f" Default: {setting.default}."
    return typer.Option(setting.flag, help=f"{setting.help}{default} Variable: {setting.variable}.", show_default=False)


DataDir = Annotated[Path | None, option("data_dir")]
LedgerUrl = Annotated[str | None, option("ledger")]
IndexUrl = Annotated[str | None, option("index")]
Kafka = Annotated[str | None, option("kafka")]
KafkaConfig = Annotated[Path | None, option("kafka_config")]
LogLevel = Annotated[str | None, option("log_level")]


def serve(
    host: Annotated[str | None, option("host")] = None,
    port: Annotated[int | None, option("port")] = None,
    data_dir: DataDir = None,
    ledger: LedgerUrl = None,
    index: IndexUrl = None,
    spool: Annotated[Path | None, option("spool")] = None,
    kafka: Kafka = None,
    kafka_config: KafkaConfig = None,
    ingest: Annotated[bool, typer.Option("--ingest", help="Take scores from Kafka as well.")] = False,
    workers: Annotated[int | None, option("workers")] = None,
    log_level: LogLevel = None,
) -> None:
    """Start the server. Everything it needs is made at the first start."""
    settings = read_settings(
        {
            "kafka": kafka,
            "kafka_config": kafka_config,
            "ingest": 1 if ingest else None,
            "host": host,
            "port": port,
            "data_dir": data_dir,
            "ledger": ledger,
            "index": index,
            "spool": spool,
            "workers": workers,
            "log_level": log_level,
        }
    )
    configure_logs(settings.log_level)
    if settings.workers > 1:
        raise typer.Exit(_serve_with_workers(settings))
    uvloop.run(_serve(settings))


def ingest(
    kafka: Kafka = None,
    kafka_config: KafkaConfig = None,
    ledger: LedgerUrl = None,
    index: IndexUrl = None,
    data_dir: DataDir = None,
    host: Annotated[str | None, option("host")] = None,
    port: Annotated[int | None, option("ingest_port")] = None,
    log_level: LogLevel = None,
) -> None:
    """Take scores from Kafka, beside servers on the same PostgreSQL and Redis. Serves its health and metrics."""
    settings = read_settings(
        {
            "kafka": kafka,
            "kafka_config": kafka_config,
            "ingest": 1,
            "ledger": ledger,
            "index": index,
            "data_dir": data_dir,
            "host": host,
            "ingest_port": port,
            "log_level": log_level,
        }
    )
    if not settings.is_shared:
        raise Invalid(
            "wrong_format",
            "A SQLite ledger is for one process: start `laurels serve --ingest` instead, or set LAURELS_LEDGER "
            "(--ledger) to postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
            field="LAURELS_LEDGER",
        )
    configure_logs(settings.log_level)
    uvloop.run(_ingest(settings))


async def _serve(settings: Settings) -> None:
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


def _serve_with_workers(settings: Settings) -> int:
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
