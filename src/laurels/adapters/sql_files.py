"""SQL kept in files: named statements, and migrations numbered in their order."""

import re
from importlib.resources import files
from typing import NamedTuple

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Migration(NamedTuple):
    number: int
    name: str
    script: str


def load_queries(package: str, file: str = "queries.sql") -> dict[str, str]:
    """The statements of a file, each under its `-- name:` line."""
    parts = _NAME.split(load_text(package, file))
    return {name: text.strip().rstrip(";") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def load_migrations(package: str) -> list[Migration]:
    scripts = sorted(
        (entry for entry in (files(package) / "migrations").iterdir() if entry.name.endswith(".sql")),
        key=lambda entry: entry.name,
    )
    return [
        Migration(int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text("utf-8")) for entry in scripts
    ]


def load_text(package: str, name: str) -> str:
    return (files(package) / name).read_text("utf-8")
