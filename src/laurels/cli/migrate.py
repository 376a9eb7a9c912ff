"""`laurels migrate`: the ledger's schema, and everything of an embedded ledger into PostgreSQL."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from laurels.cli.progress import show_progress
from laurels.cli.serve import DataDir, IndexUrl, LedgerUrl
from laurels.config import LEDGER_FILE, Settings, hide_password, read_settings
from laurels.errors import Invalid, Unavailable
from laurels.wiring import build_ledger, take_over


def migrate(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Fill an empty PostgreSQL with all that this data folder holds. No server may be using it."
        ),
    ] = None,
    data_dir: DataDir = None,
    ledger: LedgerUrl = None,
    index: IndexUrl = None,
) -> None:
    """Bring the ledger's schema up to date, which `serve` does by itself; with --from, move to PostgreSQL."""
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
    if settings.ledger_path is not None:
        raise Invalid("missing_field", "Name the PostgreSQL that takes it over with --ledger.", field="--ledger")
    path = folder if folder.is_file() else folder / LEDGER_FILE
    if not path.exists():
        raise Invalid("wrong_format", f"{folder} is no data folder of Laurels: there is no {path}.", field="--from")
    try:
        with show_progress("Taking over rows") as advance:
            rows = asyncio.run(take_over(settings, path, advance))
    except Unavailable as error:
        if error.outcome_unknown:
            error.message += " Perhaps it was done all the same: repeat it, and you will see."
        raise
    typer.echo(
        f"Taken over: pods {rows['pods']}, boards {rows['boards']}, events {rows['events']}, final ranks "
        f"{rows['finals']}, rewards {rows['grants']}, people {rows['profiles']}, acts {rows['acts']}.",
        err=True,
    )
    where = hide_password(settings.ledger)
    typer.echo(f"From now on serve {where}, and not {folder} any more.", err=True)
