"""Bucket edges and percentiles of a score distribution."""

from collections.abc import Sequence
from fractions import Fraction

# Percentiles are integers of this many units per percent, so that their offsets are exact.
PER_PERCENT = 10_000
DECILES = tuple(10 * number * PER_PERCENT for number in range(1, 10))


def bucket_edges(low: float, high: float, buckets: int) -> list[float]:
    """Return the edges of equal-width buckets from `low` to `high`, each greater than the one before.

    Uses fractions, because they are exact and can't overflow as `high - low` would. Returns fewer buckets if the scores
    are too close together for doubles to separate the edges.
    """
    edges = [low]
    width = Fraction(high) - Fraction(low)
    for number in range(1, buckets):
        edge = float(Fraction(low) + width * number / buckets)
        if edges[-1] < edge < high:
            edges.append(edge)
    edges.append(high)
    return edges


def percentile_offsets(total: int, percentiles: Sequence[int]) -> list[int]:
    """Return the offsets of percentiles, counted from the lowest score up; empty if `total` is 0.

    Percentiles are in units of 1 / PER_PERCENT percent. Uses the nearest rank: ceil(p · total / 100) - 1.
    """
    return [max(0, -(-each * total // (100 * PER_PERCENT)) - 1) for each in percentiles] if total else []
