"""`laurels serve` and `laurels migrate`."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from laurels.cli.progress import show_progress
from laurels.config import SETTINGS, Settings, read_admin_key, read_settings
from laurels.server import Server, configure_logs, listen
from laurels.wiring import build_ledger


def option(name: str) -> Any:
    setting = SETTINGS[name]
    default = "" if setting.default is None else f" Default: {setting.default}."
    return typer.Option(setting.flag, help=f"{setting.help}{default} Variable: {setting.variable}.", show_default=False)


DataDir = Annotated[Path | None, option("data_dir")]
LedgerUrl = Annotated[str | None, option("ledger")]


def serve(
    host: Annotated[str | None, option("host")] = None,
    port: Annotated[int | None, option("port")] = None,
    data_dir: DataDir = None,
    ledger: LedgerUrl = None,
    index: Annotated[str | None, option("index")] = None,
    workers: Annotated[int | None, option("workers")] = None,
    log_level: Annotated[str | None, option("log_level")] = None,
) -> None:
    """Start the server. Everything it needs is made at the first start."""
    settings = read_settings(
        {
            "host": host,
            "port": port,
            "data_dir": data_dir,
            "ledger": ledger,
            "index": index,
            "workers": workers,
            "log_level": log_level,
        }
    )
    configure_logs(settings.log_level)
    uvloop.run(_serve(settings))


def migrate(data_dir: DataDir = None, ledger: LedgerUrl = None) -> None:
    """Bring the ledger's schema up to date. `serve` does this by itself."""
    settings = read_settings({"data_dir": data_dir, "ledger": ledger})
    applied = asyncio.run(_migrate(settings))
    for name in applied:
        typer.echo(f"applied {name}")
    typer.echo("The schema is up to date.")


async def _serve(settings: Settings) -> None:
    listening = listen(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    admin_key = read_admin_key(settings)
    with ExitStack() as stack:
        advance = stack.enter_context(show_progress("Loading ranks"))

        def ready() -> None:
            stack.close()
            _welcome(settings, address)

        server = Server(settings, admin_key, advance, ready)
        server.stop_on_signals()
        await server.serve(listening, address)
        typer.echo("Laurels has stopped.", err=True)


def _welcome(settings: Settings, address: str) -> None:
    where = "LAURELS_ADMIN_KEY" if settings.admin_key else settings.admin_key_path.resolve()
    typer.echo(f"Laurels is ready at {address}  (API: {address}/docs)", err=True)
    typer.echo(f"  ledger     {settings.ledger_path.resolve()}", err=True)
    typer.echo(f"  admin key  {where}", err=True)


async def _migrate(settings: Settings) -> list[str]:
    ledger = build_ledger(settings)
    try:
        return await ledger.open()
    finally:
        await ledger.close()
