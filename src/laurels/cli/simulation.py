"""Simulated players of two games. The same seed produces the same plays.

Arena: players differ in skill and in how often they play, and have winning streaks. Chess: ratings between 0 and 6,200
move up and down, and that of player 1 moves all the time.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

NAMES = (
    *("Ada", "Aria", "Bo", "Cleo", "Dae", "Eli", "Eun", "Finn", "Gia", "Haru", "Hana", "Ivy", "Jae", "Jin", "Joon"),
    *("Kai", "Kira", "Leo", "Lumi", "Mina", "Miro", "Nari", "Neo", "Nova", "Oya", "Pax", "Quin", "Rae", "Ren", "Rin"),
    *("Sana", "Sora", "Suji", "Theo", "Uma", "Vera", "Wren", "Yuna", "Yuri", "Zoe"),
)
REGIONS = ("kr", "eu", "us", "jp", "br")

# The share of players that is online at once, and the average number of plays until a player leaves.
ONLINE_SHARE = 0.2
PLAYS_AT_ONCE = 12
POINTS = 10
STREAK_BONUS = 3
LONGEST_STREAK = 10
# Chess: the highest rating, the most that one game changes it, and how often that of player 1 changes.
HIGHEST_RATING = 6200
LARGEST_MOVE = 32
FIRST_EVERY_S = 0.05


class Scenario(StrEnum):
    ARENA = "arena"
    CHESS = "chess"


class Play(NamedTuple):
    user_id: str
    points: int


class Player:
    def __init__(self, number: int, rng: random.Random) -> None:
        self.user_id = f"player-{number}"
        turn, which = divmod(number - 1, len(NAMES))
        self.name = NAMES[which] if turn == 0 else f"{NAMES[which]} {turn + 1}"
        self.region = rng.choice(REGIONS)
        self.skill = rng.gauss(0, 1)
        # A few play a lot, most play rarely.
        self.eagerness = rng.paretovariate(2.5)
        self.streak = 0

    def play(self, rng: random.Random) -> Play | None:
        """Play against an opponent of average skill, and return None if the player loses and earns nothing.

        A winning streak raises the chance to win.
        """
        if rng.random() > 1 / (1 + math.exp(-(self.skill + 0.15 * self.streak))):
            self.streak = 0
            return None
        self.streak = min(LONGEST_STREAK, self.streak + 1)
        return Play(self.user_id, POINTS + STREAK_BONUS * (self.streak - 1) + rng.randrange(5))


class Simulation:
    # The board that is created if it does not exist.
    board: ClassVar[dict[str, Any]] = {
        "name": "Arena",
        "windows": ["daily", "weekly", "all"],
        "segments": ["global", "region"],
    }
    # How often the first player plays besides the others; None: like the others.
    first_every_s: float | None = None
    # True if the game begins with one play of every player, all at once.
    begins_with_all = False

    def __init__(self, players: int, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - a game, not a secret
        self.players = [Player(number, self._rng) for number in range(1, players + 1)]
        self._eagerness = list(itertools.accumulate(player.eagerness for player in self.players))
        self._online: list[Player] = []

    def plays(self, *, adds: bool, before: Mapping[str, float]) -> Iterator[Play]:
        """Yield plays in order, forever. `adds`: the board adds points up. `before`: the scores that players have.

        The first player never leaves.
        """
        del adds, before  # points are points
        rng, first = self._rng, self.players[0]
        wanted = max(1, round(ONLINE_SHARE * len(self.players)))
        while True:
            while len(self._online) < wanted:
                self._online += rng.choices(self.players, cum_weights=self._eagerness)
            which = rng.randrange(-1, wanted)
            player = first if which < 0 else self._online[which]
            if which >= 0 and rng.random() < 1 / PLAYS_AT_ONCE:
                self._online[which] = self._online[-1]
                self._online.pop()
            if (play := player.play(rng)) is not None:
                yield play

    def first_play(self, *, adds: bool) -> Play:
        """Return the next play of the first player, if it plays by itself."""
        raise NotImplementedError


class Chess(Simulation):
    board: ClassVar[dict[str, Any]] = {"name": "Chess", "windows": ["all"], "segments": ["global", "region"]}
    first_every_s = FIRST_EVERY_S
    begins_with_all = True

    def __init__(self, players: int, seed: int) -> None:
        super().__init__(players, seed)
        self._ratings: dict[str, int] = {}

    def plays(self, *, adds: bool, before: Mapping[str, float]) -> Iterator[Play]:
        """Yield a first rating of every player who has none, then changes of ratings, forever.

        A play has the change if the board adds up, otherwise the new rating. All plays of the first player but the
        first one come from `first_play`.
        """
        self._ratings = {user_id: round(score) for user_id, score in before.items()}
        for player in self.players:
            if player.user_id not in before:
                self._ratings[player.user_id] = rating = self._rng.randint(0, HIGHEST_RATING)
                yield Play(player.user_id, rating)
        others = self.players[1:] or self.players
        while True:
            yield self._move(self._rng.choice(others), adds=adds)

    def first_play(self, *, adds: bool) -> Play:
        return self._move(self.players[0], adds=adds)

    def _move(self, player: Player, *, adds: bool) -> Play:
        before = self._ratings.get(player.user_id, 0)
        after = min(HIGHEST_RATING, max(0, before + self._rng.randint(-LARGEST_MOVE, LARGEST_MOVE)))
        self._ratings[player.user_id] = after
        return Play(player.user_id, after - before if adds else after)


SIMULATIONS: dict[Scenario, type[Simulation]] = {Scenario.ARENA: Simulation, Scenario.CHESS: Chess}
