"""What commands print: tables on a terminal, JSON for scripts; and the question before something is destroyed."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from laurels.core.scores import EXACT_LIMIT
from laurels.errors import Invalid

# Wider than any line: output that goes to a file or another program is not wrapped.
UNLIMITED = 100_000
RIGHT = {"rank", "score", "subscore", "totalUsers"}


def show(rows: Sequence[Mapping[str, Any]], columns: list[str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    if not rows:
        typer.echo("Nothing found.", err=True)
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in RIGHT else "left", overflow="fold")
    for row in rows:
        # Text disables Rich markup: a user may be named "[bold]".
        table.add_row(*(Text(shown(row.get(column))) for column in columns))
    _console().print(table)


def show_one(fields: Mapping[str, Any], as_json: bool) -> None:
    """Print one thing: a line for each field."""
    if as_json:
        typer.echo(json.dumps(fields, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, Text(shown(value)))
    _console().print(table)


def shown(value: Any) -> str:
    """Return a value as a cell of a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < EXACT_LIMIT else repr(value)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False) if value else ""
    return str(value)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed; end the command unless the answer is yes.

    Raises `Invalid` if nobody can answer.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Invalid("not_confirmed", f"{question} Add --yes to do it.", field="--yes", rule="required")
    typer.confirm(question, abort=True, err=True)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else UNLIMITED)
