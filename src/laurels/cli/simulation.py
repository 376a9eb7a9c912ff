"""Simulated players, who differ in skill and in how often they play, and who have winning streaks.

The same seed produces the same plays.
"""

import itertools
import math
import random
from collections.abc import Iterator
from typing import NamedTuple

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
    def __init__(self, players: int, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - a game, not a secret
        self.players = [Player(number, self._rng) for number in range(1, players + 1)]
        self._eagerness = list(itertools.accumulate(player.eagerness for player in self.players))
        self._online: list[Player] = []

    def plays(self) -> Iterator[Play]:
        """Yield plays in order, forever.

        The first player never leaves.
        """
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
