"""Copies of a SQLite ledger: made while a server uses it, checked, and put into an empty data folder.

A copy is one file with a manifest beside it, which has its checksum. It is taken in one read transaction, so it is the
ledger of one moment; writers don't wait for it. Files appear under their names only when they are complete and on the
disk.
"""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from laurels.adapters.sql.files import load_migrations
from laurels.errors import Conflict, Invalid, Unavailable

PREFIX = "laurels-"
SUFFIX = ".db"
MANIFEST = ".json"
PART = ".part"
CHUNK = 1024 * 1024
WATCH_S = 0.25
# A part that was not written for so long belongs to no running command.
STALE_S = 3600

# Called with the bytes that are done, and all of them.
Advance = Callable[[int, int], None]


class Manifest(Struct, rename="camel"):
    """What a backup holds."""

    file: str
    sha256: str
    size: int
    made_at: datetime
    laurels: str
    schema: int
    ledger_id: str
    boards: int
    events: int


def back_up(source: Path, folder: Path, version: str, advance: Advance) -> Manifest:
    """Copy the ledger of a data folder into `folder`, check the copy, and return its manifest.

    `version`: that of this program.
    """
    if not source.exists():
        raise Invalid("wrong_format", f"There is no ledger at {source}.", field="--data-dir")
    made_at = datetime.now(UTC)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for stale in folder.glob(f"{PREFIX}*{PART}"):
        # Another command was interrupted.
        _remove_if_unused(stale)
    target = folder / f"{PREFIX}{made_at:%Y%m%dT%H%M%S%fZ}{SUFFIX}"
    part = target.with_name(target.name + PART)
    try:
        _created(part).close()
        _copy(source, part, advance)
        manifest = describe(part, target.name, made_at, version)
        _put_manifest(target, manifest)
        part.rename(target)
        _sync_folder(folder)
    except sqlite3.Error as error:
        part.unlink(missing_ok=True)
        raise Unavailable("ledger_unavailable", f"{source} could not be copied: {error}.") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return manifest


def stream(source: Path, folder: Path, version: str, out: BinaryIO, advance: Advance) -> Manifest:
    """Copy a ledger to a stream. `folder` holds the copy until it is complete and checked."""
    manifest = back_up(source, folder, version, advance)
    path = folder / manifest.file
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                out.write(chunk)
        out.flush()
    finally:
        path.unlink(missing_ok=True)
        manifest_of(path).unlink(missing_ok=True)
    return manifest


def rotate(folder: Path, keep: int) -> list[str]:
    """Remove all but the newest backups of a folder, and return the names of those that were removed."""
    complete = sorted(path for path in folder.glob(f"{PREFIX}*{SUFFIX}") if manifest_of(path).exists())
    removed = complete[: max(0, len(complete) - keep)]
    for path in removed:
        path.unlink()
        manifest_of(path).unlink(missing_ok=True)
    return [path.name for path in removed]


def check(path: Path, advance: Advance) -> Manifest:
    """Return the manifest of a backup that is complete and undamaged; raise Invalid otherwise."""
    if not path.is_file():
        raise Invalid("wrong_format", f"There is no backup at {path}.", field="BACKUP")
    beside = manifest_of(path)
    if not beside.exists():
        # A stream, or a copy that was made in another way: SQLite's own check must do.
        return describe(path, path.name, datetime.fromtimestamp(path.stat().st_mtime, UTC))
    try:
        manifest = msgspec.json.decode(beside.read_bytes(), type=Manifest)
    except msgspec.MsgspecError as error:
        raise Invalid("wrong_format", f"{beside} is no manifest of a backup: {error}.", field="BACKUP") from None
    found = _digest(path, advance)
    if (manifest.sha256, manifest.size) != (found, path.stat().st_size):
        raise Invalid(
            "wrong_format", f"{path} is damaged: its checksum is not the one in {beside.name}.", field="BACKUP"
        )
    describe(path, path.name, manifest.made_at)
    return manifest


def restore(backup: Path, target: Path, advance: Advance) -> Manifest:
    """Put a checked backup into an empty data folder. `target`: the ledger to be."""
    for suffix in ("", "-wal", "-shm"):
        path = target.with_name(target.name + suffix)
        if path.exists():
            raise Conflict(
                "wrong_format",
                f"{path} exists. Restore into an empty folder, and move the old one away: nothing is overwritten.",
                field="--data-dir",
            )
    manifest = check(backup, advance)
    newest = load_migrations("laurels.adapters.sqlite")[-1].number
    if manifest.schema > newest:
        raise Invalid(
            "wrong_format",
            f"The backup was made by a newer Laurels ({manifest.laurels}, schema {manifest.schema}; this one knows "
            f"{newest}). Upgrade this Laurels.",
            field="BACKUP",
        )
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(target.name + PART)
    try:
        with backup.open("rb") as source, _created(part) as copy:
            done = 0
            while chunk := source.read(CHUNK):
                copy.write(chunk)
                done += len(chunk)
                advance(done, manifest.size)
            copy.flush()
            os.fsync(copy.fileno())
        part.rename(target)
        _sync_folder(target.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return manifest


def manifest_of(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(SUFFIX) + MANIFEST)


def describe(path: Path, name: str, made_at: datetime, version: str = "") -> Manifest:
    """Check a ledger with SQLite's own means, and return what it holds. `version`: what made it, "" if unknown."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            (state,) = connection.execute("PRAGMA quick_check").fetchone()
            if state != "ok":
                raise Invalid("wrong_format", f"{path} is damaged: {state}.", field="BACKUP")
            (schema,) = connection.execute("PRAGMA user_version").fetchone()
            (ledger_id,) = connection.execute("SELECT value FROM facts WHERE name = 'ledger_id'").fetchone()
            (boards,) = connection.execute("SELECT count(*) FROM boards").fetchone()
            (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
    except (sqlite3.Error, TypeError) as error:
        raise Invalid("wrong_format", f"{path} is no Laurels ledger: {error}.", field="BACKUP") from None
    digest = _digest(path, lambda _done, _total: None)
    return Manifest(name, digest, path.stat().st_size, made_at, version, schema, ledger_id, boards, events)


def _copy(source: Path, part: Path, advance: Advance) -> None:
    with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as ledger:
        (pages,) = ledger.execute("PRAGMA page_count").fetchone()
        (size,) = ledger.execute("PRAGMA page_size").fetchone()
        done = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(part, pages * size, advance, done), name="progress", daemon=True
        )
        watcher.start()
        try:
            with closing(sqlite3.connect(part)) as copy:
                # All pages in one step, because a step that comes after a write would start over.
                ledger.backup(copy)
                # One file, which needs no log beside it.
                copy.execute("PRAGMA journal_mode = DELETE")
        finally:
            done.set()
            watcher.join()
    with part.open("rb") as file:
        os.fsync(file.fileno())


def _watch(part: Path, total: int, advance: Advance, done: threading.Event) -> None:
    while not done.wait(WATCH_S):
        advance(min(total, part.stat().st_size if part.exists() else 0), total)


def _created(path: Path) -> BinaryIO:
    """Create a file that only its owner can read."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")


def _remove_if_unused(part: Path) -> None:
    # A running command writes to its part all the time.
    if datetime.now(UTC).timestamp() - part.stat().st_mtime > STALE_S:
        part.unlink(missing_ok=True)


def _put_manifest(target: Path, manifest: Manifest) -> None:
    part = manifest_of(target).with_name(manifest_of(target).name + PART)
    with _created(part) as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    part.rename(manifest_of(target))


def _digest(path: Path, advance: Advance) -> str:
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            advance(done, total)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
