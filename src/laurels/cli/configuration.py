"""`laurels config`: every setting with its value and where it comes from; `laurels config check` for scripts."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from laurels.cli.options import ConfigFile
from laurels.config import read_sourced_settings, shown_value
from laurels.settings import SETTINGS

config = typer.Typer(help="Show and check the settings.", invoke_without_command=True)

_EXAMPLE_HEAD = "# Settings of Laurels. Lines with # have the defaults. Flags and variables take precedence."


@config.callback()
def show(
    context: typer.Context,
    file: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every setting with its value, where it comes from, and what it means. Secrets are hidden."""
    if context.invoked_subcommand is not None:
        return
    settings, sources = read_sourced_settings({"config": file})
    rows = [
        {
            "section": setting.group,
            "name": setting.name,
            "value": shown_value(setting, settings),
            "source": sources.get(setting.name, "default"),
            "variable": setting.variable,
            "help": setting.help,
        }
        for setting in SETTINGS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("section", "name", "value", "source", "help"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(row[title] for title in ("section", "name", "value", "source", "help")))
    Console().print(table)


@config.command()
def check(file: ConfigFile = None) -> None:
    """Check the settings without starting anything, and report all mistakes. Exit code 2 if there are any."""
    _, sources = read_sourced_settings({"config": file})
    typer.echo(f"The settings are valid. {len(sources)} are set, the others have their defaults.")


@config.command()
def example() -> None:
    """Print a configuration file with every setting and its default, to start from."""
    lines = [_EXAMPLE_HEAD]
    group = None
    for setting in SETTINGS.values():
        if setting.name in {"fd", "parent"}:
            # Between processes of one server.
            continue
        if setting.group != group:
            group = setting.group
            lines += ["", f"[{group}]"]
        default = setting.default
        shown = str(default) if isinstance(default, int) else json.dumps("" if default is None else str(default))
        lines += [f"# {setting.help}", f"#{setting.name} = {shown}"]
    typer.echo("\n".join(lines))
