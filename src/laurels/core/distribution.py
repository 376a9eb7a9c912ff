"""Bucket edges and deciles of a score distribution."""

from collections.abc import Sequence
from fractions import Fraction


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


def decile_offsets(total: int) -> Sequence[int]:
    """Return the offsets of the nine deciles, counted from the lowest score up; empty if `total` is 0.

    Uses the nearest rank: ceil(k · total / 10) - 1.
    """
    return [-(-number * total // 10) - 1 for number in range(1, 10)] if total else []
