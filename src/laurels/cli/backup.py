"""`laurels backup` and `laurels restore`: copies of an embedded ledger."""

import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from laurels import __version__
from laurels.cli.options import DataDir
from laurels.cli.progress import show_progress
from laurels.config import ledger_path, read_settings
from laurels.errors import Invalid
from laurels.settings import Settings
from laurels.wiring import back_up, check_backup, restore_backup, rotate_backups, stream_backup

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
STANDARD_OUTPUT = "-"


def backup(
    folder: Annotated[Path, typer.Argument(help="Folder for the backups; `-`: standard output.", metavar="FOLDER")],
    data_dir: DataDir = None,
    every: Annotated[
        str | None,
        typer.Option(help="Make one at this interval, such as 30m, 6h or 1d, until stopped."),
    ] = None,
    keep: Annotated[int | None, typer.Option(min=1, help="Keep only this many backups, the newest.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest of each backup as a line of JSON.")] = False,
) -> None:
    """Copy the SQLite ledger of a data folder, also while a server uses it.

    A backup is one file, with a manifest that has its checksum. It is checked before it gets its name. For PostgreSQL,
    use its own backups.
    """
    source = _embedded(read_settings({"data_dir": data_dir}))
    interval = None if every is None else _seconds(every)
    if str(folder) == STANDARD_OUTPUT:
        if every is not None or keep is not None:
            raise Invalid("wrong_format", "--every and --keep need a folder.", field="FOLDER")
        with tempfile.TemporaryDirectory(prefix="laurels-backup-") as own, show_progress("Copying") as advance:
            stream_backup(source, Path(own), __version__, sys.stdout.buffer, advance)
        return
    while True:
        began = time.monotonic()
        with show_progress("Copying") as advance:
            manifest = back_up(source, folder, __version__, advance)
        _tell(manifest, f"{folder / manifest.file}: {manifest.events:,} events, {manifest.size:,} bytes", json=json)
        for removed in [] if keep is None else rotate_backups(folder, keep):
            typer.echo(f"removed {removed}", err=True)
        if interval is None:
            return
        time.sleep(max(0.0, interval - (time.monotonic() - began)))


def restore(
    backup: Annotated[Path, typer.Argument(help="The file of the backup, or a folder: then its newest backup.")],
    data_dir: DataDir = None,
    only_check: Annotated[bool, typer.Option("--check", help="Only check the backup; restore nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as a line of JSON.")] = False,
) -> None:
    """Put a backup into an empty data folder, after checking it.

    Nothing is overwritten. The admin key is not part of a backup: the next `laurels serve` makes one.
    """
    path = _newest(backup) if backup.is_dir() else backup
    if only_check:
        with show_progress("Checking") as advance:
            manifest = check_backup(path, advance)
        _tell(manifest, f"{path} is complete: {manifest.events:,} events of {manifest.made_at:%F %T} UTC", json=json)
        return
    target = _embedded(read_settings({"data_dir": data_dir}))
    with show_progress("Restoring") as advance:
        manifest = restore_backup(path, target, advance)
    _tell(manifest, f"Restored {manifest.events:,} events of {manifest.made_at:%F %T} UTC into {target}.", json=json)


def _embedded(settings: Settings) -> Path:
    path = ledger_path(settings)
    if path is None:
        raise Invalid(
            "wrong_format",
            "The ledger is PostgreSQL. Use its own backups (pg_dump, or a base backup with its log): see "
            "docs/operations/deployment.md.",
            field="--ledger",
        )
    return path


def _newest(folder: Path) -> Path:
    found = sorted(folder.glob("laurels-*.db"))
    if not found:
        raise Invalid("wrong_format", f"{folder} has no backups.", field="BACKUP")
    return found[-1]


def _seconds(text: str) -> int:
    found = re.fullmatch(r"([1-9]\d{0,5})([smhd])", text)
    if found is None:
        raise Invalid(
            "wrong_format",
            f"{text!r} is no interval such as 30m, 6h or 1d.",
            field="--every",
            rule="a number and s, m, h or d",
        )
    return int(found[1]) * _UNITS[found[2]]


def _tell(manifest: Any, line: str, *, json: bool) -> None:
    echo: Callable[[str], None] = typer.echo
    echo(msgspec.json.encode(manifest).decode() if json else line)
