"""Rewards: who gets which prize when a period ends. Pure rules on final ranks."""

from fractions import Fraction
from typing import Any

from msgspec import Struct


class Between(Struct, frozen=True, omit_defaults=True):
    """From one number to another, both included. None: no bound on that side."""

    low: float | None = None
    high: float | None = None

    def contains(self, number: float) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)


class Terms(Struct, frozen=True):
    """What the final ranks of a period are made with, as its board had it when it ended."""

    capacity: int | None
    rewards: "tuple[Reward, ...]"


class Reward(Struct, frozen=True, omit_defaults=True):
    """One rule. Exactly one of `ranks`, `top_percent` and `scores` says who. `windows` empty: all that end."""

    name: str
    prize: Any
    windows: tuple[str, ...] = ()
    ranks: Between | None = None
    top_percent: float | None = None
    scores: Between | None = None

    def is_for(self, window: str) -> bool:
        return not self.windows or window in self.windows

    def is_earned(self, rank: int, score: float, better: int, total: int) -> bool:
        """`better`: how many have a better score, of `total`. The best are always among the best of any percent."""
        if self.ranks is not None:
            return self.ranks.contains(rank)
        if self.scores is not None:
            return self.scores.contains(score)
        assert self.top_percent is not None
        # As it was written: 0.1 percent of 1000 is one, whatever a double makes of it.
        return better * 100 < Fraction(repr(self.top_percent)) * total
