"""SQL files: named statements and numbered migrations.

A statement that both ledgers run is written once, in PostgreSQL's syntax, in adapters/sql/statements. For SQLite it is
converted: `$1` becomes `?1`, casts and row locks are dropped (SQLite has one writer), and `= ANY ($1::text[])` becomes
a lookup in a JSON list. Statements that differ are in the `statements` folder of each adapter.
"""

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

SHARED = "laurels.adapters.sql"
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_ANY = re.compile(r"(= ANY|<> ALL) \(\$(\d+)::\w+\[\]\)")
_LISTS = {"= ANY": "IN (SELECT value FROM json_each($#))", "<> ALL": "NOT IN (SELECT value FROM json_each($#))"}
_CAST = re.compile(r"::[a-z]+(?: precision)?(?:\[\])?")
_LOCK = re.compile(r"\s+FOR (?:NO KEY )?(?:UPDATE|SHARE)\b(?: OF \w+)?")
_PARAMETER = re.compile(r"\$(\d+)")


class Migration(NamedTuple):
    number: int
    name: str
    script: str


def load_statements(package: str, *, sqlite: bool = False) -> dict[str, str]:
    """Return the statements of an adapter and the shared ones, by name.

    Names are unique across all files.
    """
    statements: dict[str, str] = {}
    for folder, render in ((SHARED, sqlite), (package, False)):
        for file in sql_files(folder, "statements"):
            parts = _NAME.split(file.read_text("utf-8"))
            for name, text in zip(parts[1::2], parts[2::2], strict=True):
                assert name not in statements, f"two statements are named {name}"
                statement = text.strip().rstrip(";")
                statements[name] = render_for_sqlite(statement) if render else statement
    return statements


def render_for_sqlite(statement: str) -> str:
    """Convert a statement from PostgreSQL's syntax to SQLite's. Lists are passed as JSON."""
    statement = _ANY.sub(lambda found: _LISTS[found[1]].replace("#", found[2]), statement)
    return _PARAMETER.sub(r"?\1", _LOCK.sub("", _CAST.sub("", statement)))


def load_migrations(package: str) -> list[Migration]:
    """Return the migrations of an adapter, ordered by number."""
    return [
        Migration(int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text("utf-8"))
        for file in sql_files(package, "migrations")
    ]


def sql_files(package: str, folder: str) -> list[Traversable]:
    """Return the SQL files of a folder, ordered by name."""
    found = [file for file in (files(package) / folder).iterdir() if file.name.endswith(".sql")]
    return sorted(found, key=lambda file: file.name)
