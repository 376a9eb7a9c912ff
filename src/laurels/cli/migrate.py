"""`laurels migrate`: update the ledger's schema, or copy an embedded ledger to PostgreSQL."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from laurels.cli.options import DataDir, IndexUrl, LedgerUrl
from laurels.cli.progress import show_progress
from laurels.config import LEDGER_FILE, hide_password, ledger_path, ledger_url, read_settings
from laurels.errors import Invalid, Unavailable
from laurels.settings import Settings
from laurels.wiring import build_ledger, take_over


def migrate(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Data folder to copy into an empty PostgreSQL database. No server may be using it."
        ),
    ] = None,
    data_dir: DataDir = None,
    ledger: LedgerUrl = None,
    index: IndexUrl = None,
) -> None:
    """Update the ledger's schema; with --from, copy an embedded ledger to PostgreSQL.

    `laurels serve` also updates the schema when it starts.
    """
    settings = read_settings({"data_dir": data_dir, "ledger": ledger, "index": index})
    if folder is not None:
        _take_over(settings, folder)
        return
    for name in asyncio.run(_migrate(settings)):
        typer.echo(f"applied {name}")
    typer.echo("The schema is up to date.")


async def _migrate(settings: Settings) -> list[str]:
    ledger, _ = build_ledger(settings)
    try:
        return await ledger.open()
    finally:
        await ledger.close()


def _take_over(settings: Settings, folder: Path) -> None:
    if ledger_path(settings) is not None:
        raise Invalid("missing_field", "Name the PostgreSQL database to copy into with --ledger.", field="--ledger")
    path = folder if folder.is_file() else folder / LEDGER_FILE
    if not path.exists():
        raise Invalid("wrong_format", f"{folder} is not a Laurels data folder: {path} does not exist.", field="--from")
    try:
        with show_progress("Copying rows") as advance:
            rows = asyncio.run(take_over(settings, path, advance))
    except Unavailable as error:
        if error.outcome_unknown:
            error.message += " The copy may have completed: repeat the command to find out. It never copies twice."
        raise
    typer.echo(
        f"Copied: pods {rows['pods']}, boards {rows['boards']}, events {rows['events']}, final ranks "
        f"{rows['finals']}, grants {rows['grants']}, profiles {rows['profiles']}, moderation actions {rows['acts']}.",
        err=True,
    )
    where = hide_password(ledger_url(settings))
    typer.echo(f"From now on, serve {where}, and no longer {folder}.", err=True)
