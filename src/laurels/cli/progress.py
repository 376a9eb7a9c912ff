"""The progress of long work: a bar on a terminal, plain lines elsewhere, both on standard error."""

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
    """Yield a function to call with the amount that is done and the total, or None if the total is not known."""
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
