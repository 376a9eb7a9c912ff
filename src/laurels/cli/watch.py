"""`laurels watch`: a live board in the terminal.

Rows move to their new positions one line at a time.
"""

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

from laurels.cli.connect import Peer, connect
from laurels.cli.options import AsJson, with_server
from laurels.client import Entry, LiveView, endpoints
from laurels.errors import LaurelsError
from laurels.settings import Settings

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
# For terminals without Unicode.
PLAIN = Signs("live", "+", "-", "...")


@with_server
def watch(
    settings: Settings,
    board: Annotated[str, typer.Argument(help="The board's UUID.")] = "default",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of top users to show.")] = 20,
    me: Annotated[str | None, typer.Option(help="User id to highlight and to show with the neighbours.")] = None,
    window: Annotated[str | None, typer.Option(help="Window to show. Default: the board's first window.")] = None,
    segment: Annotated[str | None, typer.Option(help="Segment to show: global, region:ID or circle:ID.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a board with live updates, until Ctrl-C.

    With --json, or if standard output is not a terminal, prints one line of JSON per update.
    """
    ask = endpoints.live(board, limit, user_id=me, window=window, segment=segment)
    with contextlib.suppress(KeyboardInterrupt):
        if as_json or not sys.stdout.isatty():
            asyncio.run(_print(settings, ask))
        else:
            asyncio.run(_show(settings, ask, me))


async def _print(settings: Settings, ask: endpoints.Request[None]) -> None:
    async with connect(settings) as peer, _hinting(peer):
        async for view in peer.follow(ask):
            told = {
                "board": view.board,
                "users": view.users,
                "around": view.around,
                "totalUsers": view.total_users,
            }
            typer.echo(json.dumps(json.loads(msgspec.json.encode(told)), ensure_ascii=False))


async def _show(settings: Settings, ask: endpoints.Request[None], me: str | None) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A display name may contain characters that the terminal can't encode.
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
    """Print the whole board each time it has changed, for terminals that can't move the cursor."""
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
    """The drawing of a board on the terminal, whose rows approach the real order one step per frame."""

    def __init__(self, me: str | None, signs: Signs = SIGNS) -> None:
        self._me = me
        self._signs = signs
        self.url = ""
        self._view: LiveView | None = None
        self._entries: dict[str, Entry] = {}
        self._order: list[str] = []
        # By user id: the number of ranks gained, and until when to show it.
        self._marks: dict[str, tuple[int, float]] = {}
        # Why the connection was lost; empty while connected.
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
        """Swap neighbours that are in the wrong order, one pass per frame, so that moves are visible."""
        positions = {user_id: number for number, user_id in enumerate(self._entries)}
        order = self._order
        for lower in range(len(order) - 1, 0, -1):
            if positions[order[lower - 1]] > positions[order[lower]]:
                order[lower - 1], order[lower] = order[lower], order[lower - 1]

    def settle(self) -> None:
        """Put all rows into their real order at once."""
        self._order = list(self._entries)

    def draw(self, height: int, *, ticking: bool = True) -> RenderableType:
        """Draw the board for a terminal of this height; without `ticking`, leave out the countdown."""
        view = self._view
        if view is None or view.board is None:
            return Text(f"Connecting to {self.url} {self._signs.more}\n{self._lost}", style="dim")
        below: list[RenderableType] = []
        if self._me is not None:
            mine = next((entry for entry in view.around if entry.user_id == self._me), None)
            told = f"{self._me} has no score here yet." if mine is None else _name(mine)
            below = [Text(f"\n{told}", style="bold"), *([self._table(view.around)] if mine else [])]
        # Reserve the lines of the user's own rows; the top rows get the rest of the terminal.
        used = 2 + (0 if not below else 2 + (1 + len(view.around) if len(below) > 1 else 0))
        rows = [self._entries[user_id] for user_id in self._order][: max(3, height - used - 1)]
        nobody = Text("Nobody has a score yet.", style="dim")
        return Group(self._title(view, ticking=ticking), self._table(rows) if rows else nobody, *below)

    def _title(self, view: LiveView, *, ticking: bool) -> Text:
        assert view.board is not None, "the first frame has the board"
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
            # Text disables Rich markup: a user may be named "[bold]".
            style = "reverse" if entry.user_id == self._me else ""
            table.add_row(str(entry.rank), mark, Text(_name(entry)), _number(entry.score), style=style)
        return table


def _name(entry: Entry) -> str:
    return entry.display_name if isinstance(entry.display_name, str) else entry.user_id


def _number(score: float) -> str:
    """Format a score with all its digits, whole numbers without a fraction."""
    return f"{int(score):,}" if score.is_integer() and abs(score) < 1e15 else f"{score:,}"
