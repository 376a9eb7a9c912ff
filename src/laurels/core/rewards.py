"""Rewards: which users receive which prize when a period ends. Pure rules on final ranks."""

from fractions import Fraction
from typing import Any

from msgspec import Struct

from laurels.core.people import GLOBAL


class Between(Struct, frozen=True, omit_defaults=True):
    """A range of numbers, both ends included. None means no bound on that side."""

    low: float | None = None
    high: float | None = None

    def contains(self, number: float) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)


class Terms(Struct, frozen=True):
    """The capacity and the rewards that the final ranks of a period are written with, fixed when the period ends."""

    capacity: int | None
    rewards: "tuple[Reward, ...]"


class Reward(Struct, frozen=True, omit_defaults=True):
    """One reward rule.

    Exactly one of `ranks`, `top_percent` and `scores` is set and selects the users. If `windows` is empty, the reward
    applies to all windows that end.
    """

    name: str
    prize: Any
    windows: tuple[str, ...] = ()
    ranks: Between | None = None
    top_percent: float | None = None
    scores: Between | None = None
    # The kind of segments whose ranks count: all users, each region, or each circle (only with `ranks`).
    segment: str = GLOBAL

    def is_for(self, window: str) -> bool:
        return not self.windows or window in self.windows

    def is_earned(self, rank: int, score: float, total: int) -> bool:
        """Return True if a user with this rank, out of `total` users, and this score earns the reward.

        With `top_percent`, the first user earns it at any percentage.
        """
        if self.ranks is not None:
            return self.ranks.contains(rank)
        if self.scores is not None:
            return self.scores.contains(score)
        assert self.top_percent is not None
        # Use the decimal as it was written: 0.1 percent of 1000 is exactly one, but not in doubles.
        return (rank - 1) * 100 < Fraction(repr(self.top_percent)) * total
