"""Writes the tables in docs/ that derive from the code: settings, metrics, error codes, calls and commands.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. `make docs` writes all of them; a test checks that
nothing differs.
"""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer.main
from prometheus_client import REGISTRY

from laurels.cli import app
from laurels.errors import CODES
from laurels.http.permissions import permissions_of
from laurels.http.routes import ROUTES
from laurels.settings import SETTINGS, Setting, Settings

ROOT = Path(__file__).parents[1]
_TABLE = re.compile(r"(<!-- table: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def render(text: str) -> str:
    """Return a page with its tables regenerated from the code."""
    return _TABLE.sub(lambda found: found[1] + _table(found[2]) + found[4], text)


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def _table(name: str) -> str:
    kind, _, part = name.partition(" ")
    return TABLES[kind](part)


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def settings(group: str) -> str:
    assert hasattr(Settings(), group), f"there is no group of settings {group}"
    flags = _flags()
    return _rows(
        ("flag", "variable", "default", "meaning"),
        [
            (
                f"`{each.flag}`" if each.flag in flags else "",
                f"`{each.variable}`",
                f"`{each.shown_default}`" if each.shown_default else "",
                each.help + _limits(each),
            )
            for each in SETTINGS.values()
            if each.group == group
        ],
    )


def _limits(setting: Setting) -> str:
    return "" if setting.minimum is None else f" ({setting.minimum} to {setting.maximum})"


def _flags() -> set[str]:
    return {flag for _, command in commands_of(app) for parameter in command.params for flag in parameter.opts}


def commands_of(typer_app: Any) -> list[tuple[str, Any]]:
    """Return all commands with their full names."""
    found = []
    for name, command in typer.main.get_command(typer_app).commands.items():  # type: ignore[attr-defined]
        nested = getattr(command, "commands", None)
        found += [(name, command)] if nested is None else [(f"{name} {each}", nested[each]) for each in nested]
    return found


def commands(_part: str) -> str:
    rows = []
    for name, command in commands_of(app):
        summary = (command.help or "").split("\n\n")[0].replace("\n", " ")
        rows.append((f"`laurels {' '.join([name, *_arguments(command)])}`", summary))
    return _rows(("command", "what it does"), rows)


def _arguments(command: Any) -> list[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    names = [(each.metavar or each.name.upper(), each.required) for each in arguments]
    return [name if required else f"[{name}]" for name, required in names]


def metrics(_part: str) -> str:
    families = sorted((each for each in REGISTRY.collect() if each.name.startswith("laurels_")), key=lambda e: e.name)
    return _rows(
        ("metric", "meaning"),
        [(f"`{each.name}{'_total' if each.type == 'counter' else ''}`", each.documentation) for each in families],
    )


def errors(_part: str) -> str:
    return _rows(("code", "meaning"), [(f"`{code}`", text) for code, text in CODES.items()])


def calls(tag: str) -> str:
    rows = [(f"`{each.method} {each.path}`", each.endpoint.summary + ".") for each in ROUTES if each.tag == tag]
    assert rows, f"no call has the tag {tag}"
    return _rows(("call", "what it does"), rows)


def permissions(_part: str) -> str:
    return _rows(
        ("call", "admin", "server key", "scope", "client key", "player token", "no key"),
        [(f"`{each.method} {each.path}`", *permissions_of(each.endpoint)) for each in ROUTES],
    )


TABLES: dict[str, Callable[[str], str]] = {
    "settings": settings,
    "metrics": metrics,
    "errors": errors,
    "calls": calls,
    "permissions": permissions,
    "commands": commands,
}


def main() -> None:
    for page in pages():
        text = page.read_text("utf-8")
        written = render(text)
        if written != text:
            page.write_text(written, "utf-8")
            print(f"wrote the tables of {page.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
