"""`laurels watch`: a board in the terminal, as it changes. Rows walk to their places, one line at a time."""

import asyncio
import contextlib
import io
import json
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from laurels.cli.admin import AsJson, Key, Url, reach
from laurels.cli.connect import Peer, connect
from laurels.cli.serve import DataDir
from laurels.client import Entry, LiveView, asks
from laurels.config import Settings
from laurels.errors import LaurelsError

FRAME_S = 0.08
MARKED_S = 4.0
LIST_EVERY_S = 1.0
LISTED_ROWS = 1000


class Signs(NamedTuple):
    live: str
    up: str
    down: str
    more: str


SIGNS = Signs("● live", "▲", "▼", "…")
# For terminals that know no others.
PLAIN = Signs("live", "+", "-", "...")


def watch(
    board: Annotated[str, typer.Argument(help="The board's UUID.")] = "default",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many of the best.")] = 20,
    me: Annotated[str | None, typer.Option(help="A user to highlight, and to show with the neighbours.")] = None,
    window: Annotated[str | None, typer.Option(help="Default: the board's first one.")] = None,
    segment: Annotated[str | None, typer.Option(help="global, region:ID or circle:ID.")] = None,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a board as it changes, until Ctrl-C. With --json, or where there is no terminal, a line of JSON a change."""
    ask = asks.live(board, limit, user_id=me, window=window, segment=segment)
    settings = reach(url, key, data_dir)
    with contextlib.suppress(KeyboardInterrupt):
        if as_json or not sys.stdout.isatty():
            asyncio.run(_print(settings, ask))
        else:
            asyncio.run(_show(settings, ask, me))


async def _print(settings: Settings, ask: asks.Ask[None]) -> None:
    async with connect(settings) as peer, _hinting(peer):
        async for view in peer.follow(ask):
            told = {
                "board": view.board,
                "users": view.users,
                "around": view.around,
                "totalUsers": view.total_users,
            }
            typer.echo(json.dumps(json.loads(msgspec.json.encode(told)), ensure_ascii=False))


async def _show(settings: Settings, ask: asks.Ask[None], me: str | None) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A player may have a name that the terminal can't show.
        sys.stdout.reconfigure(errors="replace")
    console = Console()
    picture = Picture(me, PLAIN if not console.encoding.lower().startswith("utf") else SIGNS)
    async with connect(settings) as peer, _hinting(peer):
        picture.url = peer.url

        async def follow() -> None:
            async for view in peer.follow(ask, lost=picture.lose):
                picture.take(view)

        following = asyncio.create_task(follow())
        if console.is_dumb_terminal:
            await _list(console, picture, following)
        else:
            with Live(console=console, auto_refresh=False, screen=True) as live:
                while not following.done():
                    live.update(picture.draw(console.height), refresh=True)
                    picture.walk()
                    await asyncio.sleep(FRAME_S)
        await following


async def _list(console: Console, picture: "Picture", following: "asyncio.Task[None]") -> None:
    """On a terminal that can't move its cursor: the whole board again when it has changed."""
    shown = ""
    while not following.done():
        with console.capture() as capture:
            console.print(picture.draw(LISTED_ROWS, ticking=False))
        if capture.get() != shown:
            shown = capture.get()
            console.out(shown)
        picture.settle()
        await asyncio.sleep(LIST_EVERY_S)


@contextlib.asynccontextmanager
async def _hinting(peer: Peer) -> AsyncIterator[None]:
    try:
        yield
    except LaurelsError as error:
        raise peer.with_hint(error) from error


class Picture:
    """What is on the terminal: rows in an order that nears the real one, a step at a time."""

    def __init__(self, me: str | None, signs: Signs = SIGNS) -> None:
        self._me = me
        self._signs = signs
        self.url = ""
        self._view: LiveView | None = None
        self._entries: dict[str, Entry] = {}
        self._order: list[str] = []
        # By user: by how much the rank is better, and until when that is shown.
        self._marks: dict[str, tuple[int, float]] = {}
        # Why there is no connection.
        self._lost = ""

    def take(self, view: LiveView) -> None:
        now = time.monotonic()
        for entry in view.users:
            before = self._entries.get(entry.user_id)
            if before is not None and before.rank != entry.rank:
                self._marks[entry.user_id] = (before.rank - entry.rank, now + MARKED_S)
        self._view = view
        self._lost = ""
        self._entries = {entry.user_id: entry for entry in view.users}
        self._marks = {user_id: mark for user_id, mark in self._marks.items() if mark[1] > now}
        kept = dict.fromkeys(user_id for user_id in self._order if user_id in self._entries)
        self._order = [*kept, *(user_id for user_id in self._entries if user_id not in kept)]

    def lose(self, reason: str) -> None:
        self._lost = reason

    def walk(self) -> None:
        """Neighbours who are in the wrong order change places: one pass a frame, so that a move can be seen."""
        places = {user_id: number for number, user_id in enumerate(self._entries)}
        order = self._order
        for lower in range(len(order) - 1, 0, -1):
            if places[order[lower - 1]] > places[order[lower]]:
                order[lower - 1], order[lower] = order[lower], order[lower - 1]

    def settle(self) -> None:
        """Put all rows where they belong, at once."""
        self._order = list(self._entries)

    def draw(self, height: int, *, ticking: bool = True) -> RenderableType:
        """`ticking`: with what changes by itself, such as the time that is left."""
        view = self._view
        if view is None or view.board is None:
            return Text(f"Connecting to {self.url} {self._signs.more}\n{self._lost}", style="dim")
        below: list[RenderableType] = []
        if self._me is not None:
            mine = next((entry for entry in view.around if entry.user_id == self._me), None)
            told = f"{self._me} has no score here yet." if mine is None else _name(mine)
            below = [Text(f"\n{told}", style="bold"), *([self._table(view.around)] if mine else [])]
        # One's own rows come first; the best get what is left of the terminal.
        used = 2 + (0 if not below else 2 + (1 + len(view.around) if len(below) > 1 else 0))
        rows = [self._entries[user_id] for user_id in self._order][: max(3, height - used - 1)]
        nobody = Text("Nobody has a score yet.", style="dim")
        return Group(self._title(view, ticking=ticking), self._table(rows) if rows else nobody, *below)

    def _title(self, view: LiveView, *, ticking: bool) -> Text:
        assert view.board is not None, "the first frame tells of the board"
        lost = f"reconnecting{self._signs.more} ({self._lost})"
        state = (lost, "bold red") if self._lost else (self._signs.live, "green")
        title = Text.assemble((view.board.name, "bold"), "  ", state, f"  {view.board.period}")
        title.append(f"  {view.total_users:,} players", "dim")
        if view.board.end_time is not None and ticking:
            left = max(0, int((view.board.end_time - datetime.now(UTC)).total_seconds()))
            days, rest = divmod(left, 86_400)
            clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
            title.append(f"  resets in {f'{days}d ' if days else ''}{clock}", "dim")
        return title

    def _table(self, rows: list[Entry]) -> Table:
        table = Table(box=None, pad_edge=False)
        for column in ("rank", "", "player", "score"):
            table.add_column(column, justify="right" if column in {"rank", "score"} else "left")
        now = time.monotonic()
        for entry in rows:
            by, until = self._marks.get(entry.user_id, (0, 0.0))
            mark = Text("")
            if by and until > now:
                up, down = self._signs.up, self._signs.down
                mark = Text(f"{up}{by}", "green") if by > 0 else Text(f"{down}{-by}", "red")
            # As Text: a player may be called "[bold]".
            style = "reverse" if entry.user_id == self._me else ""
            table.add_row(str(entry.rank), mark, Text(_name(entry)), _number(entry.score), style=style)
        return table


def _name(entry: Entry) -> str:
    return entry.display_name if isinstance(entry.display_name, str) else entry.user_id


def _number(score: float) -> str:
    """Every digit of it; whole numbers without a fraction."""
    return f"{int(score):,}" if score.is_integer() and abs(score) < 1e15 else f"{score:,}"
