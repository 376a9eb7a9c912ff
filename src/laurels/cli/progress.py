"""Long work shows a bar on a terminal and plain lines elsewhere. Both go to standard error."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY_S = 2.0

Advance = Callable[[int, int | None], None]


@contextlib.contextmanager
def show_progress(title: str) -> Iterator[Advance]:
    """Gives a function to call with how much is done and, if known, of how much."""
    if sys.stderr.isatty():
        with Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        lines = _PlainLines(title)
        yield lines.advance


class _PlainLines:
    def __init__(self, title: str) -> None:
        self._title = title
        self._last = time.monotonic()

    def advance(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._last >= PLAIN_EVERY_S:
            self._last = now
            typer.echo(f"{self._title}: {done}{f' of {total}' if total else ''}", err=True)
