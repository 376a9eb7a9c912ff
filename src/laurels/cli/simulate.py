"""`laurels simulate`: simulated players for a board, and a check that all their scores arrived."""

import asyncio
import contextlib
import itertools
import random
import signal
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote

import typer
from msgspec import UNSET

from laurels.cli.connect import Peer, call
from laurels.cli.options import DataDir, Key, Url, option
from laurels.cli.simulation import SIMULATIONS, Play, Scenario, Simulation
from laurels.client import Score
from laurels.config import read_settings
from laurels.core.ids import new_key_id
from laurels.core.order import Order
from laurels.core.scores import Rule
from laurels.errors import Conflict, LaurelsError
from laurels.settings import Settings

SHOW_EVERY_S = 2.0
TICK_S = 0.05
# Maximum number of concurrent calls. If the server can't keep up, the rate drops.
AT_ONCE = 8
ABOVE, BELOW = 6, 6
WAIT_S = 10.0
PROFILES = 1000


def simulate(
    board: Annotated[
        str | None,
        typer.Option(help="The board's UUID. The board is created if it does not exist. Default: as the scenario."),
    ] = None,
    scenario: Annotated[
        Scenario,
        typer.Option(help="arena: points of matches. chess: ratings that move, and player 1 twenty times a second."),
    ] = Scenario.ARENA,
    players: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of players.")] = 200,
    rate: Annotated[float, typer.Option(min=0.1, max=100_000, help="Scores per second.")] = 20,
    duration: Annotated[float, typer.Option(min=0, help="Duration in seconds; 0 means until Ctrl-C.")] = 20,
    seed: Annotated[int | None, typer.Option(help="The same seed produces the same plays. Default: random.")] = None,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    host: Annotated[str | None, option("host")] = None,
    port: Annotated[int | None, option("port")] = None,
) -> None:
    """Simulate players on a running server, or on a server that this command starts.

    Prints the ranking around player 1 every two seconds.
    At the end, prints how many scores were sent, acknowledged and seen live.
    Exits with code 1 if they don't add up.
    """
    settings = read_settings({"url": url, "key": key, "data_dir": data_dir, "host": host, "port": port})
    chosen = random.randrange(10**6) if seed is None else seed  # noqa: S311 - a game, not a secret
    simulation = SIMULATIONS[scenario](players, chosen)
    if not asyncio.run(_run(settings, simulation, board or scenario.value, rate, duration, chosen)):
        raise typer.Exit(1)


async def _run(settings: Settings, simulation: Simulation, board: str, rate: float, duration: float, seed: int) -> bool:
    from laurels.cli.serving import connect_or_serve

    async with connect_or_serve(settings) as peer:
        try:
            await _prepare(peer, simulation, board)
        except LaurelsError as error:
            raise peer.with_hint(error) from error
        typer.echo(f"Watch it: {peer.url.rstrip('/')}/boards/{board}?me={simulation.players[0].user_id}")
        until = f"for {duration:g} s" if duration else "until Ctrl-C"
        typer.echo(f"{len(simulation.players)} players, {rate:g} scores per second, {until}, seed {seed}.")
        game = Game(peer, simulation, board)
        await game.begin()
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        async with game.watched():
            showing = asyncio.create_task(game.show_again_and_again())
            try:
                await game.play(rate, duration or None, stopped)
            finally:
                showing.cancel()
            return await game.report()


async def _prepare(peer: Peer, simulation: Simulation, board: str) -> None:
    with contextlib.suppress(Conflict):
        await peer.create_board(UUID=board, podId="default", rule="increment", public=True, **simulation.board)
    for first in range(0, len(simulation.players), PROFILES):
        profiles = [
            {"userId": player.user_id, "displayName": player.name, "region": player.region}
            for player in simulation.players[first : first + PROFILES]
        ]
        await peer.set_profiles(profiles, pod_id=(await peer.board(board)).pod_id)


class Game:
    """One run of the simulation, with the scores that were sent, acknowledged and seen live."""

    def __init__(self, peer: Peer, simulation: Simulation, board: str) -> None:
        self._peer = peer
        self._simulation = simulation
        self._board = board
        self._run_id = new_key_id()
        self._limit = min(1000, len(simulation.players))
        self._window = ""
        # By user id: the score before the run, and the points that were acknowledged during it, by their number.
        self._before: dict[str, float] = {}
        self._earned: dict[str, dict[int, int]] = {}
        # The events of the board before the run.
        self._events = 0
        self._began = datetime.now(UTC)
        self.sent = 0
        self.acknowledged = 0
        self.refused = 0
        self.frames = 0
        # Plays of the first player that have no answer yet.
        self._of_first: set[asyncio.Task[None]] = set()
        self._seen: dict[str, float] = {}
        self._looked = asyncio.Event()
        # The board, as the API returns it.
        self._definition: Any = None

    async def begin(self) -> None:
        found = self._definition = await self._peer.board(self._board)
        self._window = "all" if "all" in found.windows else found.periods[0].window
        await self._flushed()
        self._before = await self._scores()
        self._events = await self._count_events()

    async def play(self, rate: float, duration: float | None, stopped: asyncio.Event) -> None:
        adds = self._definition.rule is Rule.INCREMENT
        plays = self._simulation.plays(adds=adds, before=self._before)
        began = time.monotonic()
        calls: set[asyncio.Task[None]] = set()
        first = asyncio.create_task(self._play_first(stopped, adds=adds))
        drawn, opening = 0, len(self._simulation.players) if self._simulation.begins_with_all else 0
        while not stopped.is_set() and (duration is None or time.monotonic() - began < duration):
            passed = min(time.monotonic() - began, duration or float("inf"))
            due = opening + int(rate * passed) - drawn
            if due > 0:
                batch = list(itertools.islice(plays, min(due, 10_000)))
                drawn += len(batch)
                calls.add(asyncio.create_task(self._send(batch)))
            calls = {call for call in calls if not call.done()}
            if len(calls) >= AT_ONCE:
                _, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), TICK_S)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.gather(*calls, *self._of_first)

    async def _play_first(self, stopped: asyncio.Event, *, adds: bool) -> None:
        """Send the plays of the first player, if it plays by itself."""
        every_s = self._simulation.first_every_s
        while every_s is not None and not stopped.is_set():
            await asyncio.sleep(every_s)
            self._of_first = {task for task in self._of_first if not task.done()}
            # If the server can't keep up, the next play waits.
            if len(self._of_first) < AT_ONCE and self.sent:
                self._of_first.add(asyncio.create_task(self._send([self._simulation.first_play(adds=adds)])))

    async def _send(self, plays: list[Play]) -> None:
        first = self.sent
        self.sent += len(plays)
        await self._submit(plays, first)

    async def _submit(self, plays: list[Play], first: int) -> None:
        # Calls can overtake each other, so with the rule `latest` the time says which score is the last.
        stamps = self._definition.rule is Rule.LATEST
        scores = [
            Score(
                play.user_id,
                play.points,
                event_id=f"sim-{self._run_id}-{number}",
                timestamp=self._began + timedelta(microseconds=number) if stamps else UNSET,
            )
            for number, play in enumerate(plays, first)
        ]
        try:
            results = await self._peer.submit_many(self._board, scores)
        except LaurelsError as error:
            self.refused += len(plays)
            typer.echo(f"Not acknowledged: {error.message}", err=True)
            return
        for number, (play, result) in enumerate(zip(plays, results, strict=True), first):
            if result.status == "refused":
                self.refused += 1
            else:
                # Duplicates too: the response to the first attempt was lost, and the event counts once.
                self.acknowledged += 1
                self._earned.setdefault(play.user_id, {})[number] = play.points

    async def show_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(SHOW_EVERY_S)
            with contextlib.suppress(LaurelsError):
                await self._show()

    async def _show(self) -> None:
        """Print the ranking around player 1 as a table."""
        me = self._simulation.players[0].user_id
        users = (await self._peer.around(self._board, me, above=ABOVE, below=BELOW, window=self._window)).users
        lines = [f"{'Rank':>6} | {'Score':>8} | {'User Name':<24} | Id", "-" * 60]
        for user in users:
            name = user.display_name if isinstance(user.display_name, str) else ""
            mark = " <--" if user.user_id == me else ""
            lines.append(f"{user.rank:>6} | {user.score:>8g} | {name:<24} | {user.user_id}{mark}")
        typer.echo("\n".join([*lines, ""]))

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Subscribe to live updates of the board during the run, as a player would."""

        async def look() -> None:
            async for view in self._peer.live(self._board, self._limit, window=self._window):
                self.frames += 1
                self._seen = {entry.user_id: entry.score for entry in view.users}
                self._looked.set()

        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def report(self) -> bool:
        """Print a summary; return whether the board has all acknowledged scores and the live updates showed them."""
        await self._flushed()
        unseen = await self._unseen()
        typer.echo(
            f"Sent: {self.sent}. Acknowledged: {self.acknowledged}. Refused: {self.refused}. "
            f"Seen live: {self.frames} frames of the top {len(self._seen)}."
        )
        added = await self._count_events() - self._events
        if added < self.acknowledged:
            typer.echo(f"It does not add up: the board has {added} of {self.acknowledged} acknowledged events.")
            return False
        if added > self.acknowledged:
            others = added - self.acknowledged
            typer.echo(
                f"It adds up: the board has all acknowledged scores. The totals of the players were not compared, "
                f"because others submitted {others} scores to the board meanwhile."
            )
            return True
        found = await self._scores()
        wrong = [user_id for user_id in self._earned if self._is_wrong(user_id, found.get(user_id))]
        if wrong or unseen:
            typer.echo(f"It does not add up for {', '.join(sorted({*wrong, *unseen})[:10])}.")
            return False
        typer.echo(f"It adds up: {len(found)} players have all acknowledged scores, and the live updates showed them.")
        return True

    async def _flushed(self) -> None:
        """Wait until a buffered board has ranked the scores that were submitted before."""
        await asyncio.sleep((self._definition.flush_ms or 0) * 2 / 1000)

    def _is_wrong(self, user_id: str, found: float | None) -> bool:
        """Return True if a player's score does not follow from the scores before the run and those of the run."""
        board = self._definition
        points = self._earned[user_id]
        before = self._before.get(user_id)
        own = next((each for each in board.windows if getattr(each, "window", each) == self._window), None)
        is_capped = board.capacity is not None or getattr(own, "capacity", None) is not None
        if is_capped and (found is None or before is None):
            # Outside the capacity, now or before the run, so the score is unknown.
            return False
        match board.rule:
            case Rule.INCREMENT:
                expected = (before or 0) + sum(points.values())
            case Rule.LATEST:
                expected = points[max(points)]
            case _:
                every = [*points.values(), *([] if before is None else [before])]
                expected = max(every) if board.order is Order.DESC else min(every)
        return found != expected

    async def _unseen(self) -> list[str]:
        """Return the players whose scores the live updates did not show within WAIT_S."""
        mine = {player.user_id for player in self._simulation.players}
        ends = time.monotonic() + WAIT_S
        while True:
            self._looked.clear()
            best = await self._peer.top(self._board, self._limit, window=self._window)
            shown = {entry.user_id: entry.score for entry in best.users}
            differing = [each for each in mine if shown.get(each) != self._seen.get(each)]
            if not differing or time.monotonic() > ends:
                return differing
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._looked.wait(), 1.0)

    async def _count_events(self) -> int:
        path = f"/api/v1/leaderboards/{quote(self._board, safe='')}/events"
        return int((await call(self._peer, "GET", path, params={"limit": 1, "voided": True}))["totalEvents"])

    async def _scores(self) -> dict[str, float]:
        mine = {player.user_id for player in self._simulation.players}
        entries = self._peer.each_entry(self._board, window=self._window)
        return {entry.user_id: entry.score async for entry in entries if entry.user_id in mine}
