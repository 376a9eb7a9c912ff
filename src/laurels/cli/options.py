"""Options and arguments that several commands have."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from laurels.cli.completion import complete_boards, complete_periods, complete_pods
from laurels.config import read_settings
from laurels.settings import SETTINGS, Settings

P = ParamSpec("P")
T = TypeVar("T")


def option(name: str) -> Any:
    setting = SETTINGS[name]
    default = f" Default: {setting.shown_default}." if setting.shown_default else ""
    return typer.Option(setting.flag, help=f"{setting.help}{default} Variable: {setting.variable}.", show_default=False)


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Configuration file (TOML): see `laurels config`. Variable: LAURELS_CONFIG.",
        show_default=False,
    ),
]
DataDir = Annotated[Path | None, option("data_dir")]
LedgerUrl = Annotated[str | None, option("ledger")]
IndexUrl = Annotated[str | None, option("index")]
Url = Annotated[str | None, option("url")]
Key = Annotated[str | None, option("key")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
Reason = Annotated[str | None, typer.Option(help="Note for the audit log that says why.")]

PodId = Annotated[str, typer.Argument(help="The pod's id.", autocompletion=complete_pods)]
OfPod = Annotated[
    str | None,
    typer.Option(
        "--pod", help="The pod. Default: that of the key; needed with an admin key.", autocompletion=complete_pods
    ),
]
BoardId = Annotated[str, typer.Argument(help="The board's UUID.", autocompletion=complete_boards)]
OnBoard = Annotated[str | None, typer.Option("--board", help="Only this board.", autocompletion=complete_boards)]
PeriodName = Annotated[
    str,
    typer.Argument(help="The period's name, as shown by `laurels seasons list`.", autocompletion=complete_periods),
]
UserId = Annotated[str, typer.Argument(help="The user's id.")]


def with_server(command: Callable[Concatenate[Settings, P], T]) -> Callable[..., T]:
    """Give a command the options that say which server to call; it receives the settings that they make."""

    @functools.wraps(command)
    def run(*args: Any, url: Any = None, key: Any = None, data_dir: Any = None, **kwargs: Any) -> T:
        return command(read_settings({"url": url, "key": key, "data_dir": data_dir}), *args, **kwargs)

    # Typer reads a command's options from its signature.
    signature = inspect.signature(command)
    _, *own = signature.parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (("url", Url), ("key", Key), ("data_dir", DataDir))
    ]
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    run.__signature__ = signature.replace(parameters=[*named, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in [*named, *added]}
    return run
