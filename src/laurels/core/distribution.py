"""Where the edges of a score distribution lie."""

from collections.abc import Sequence
from fractions import Fraction


def bucket_edges(low: float, high: float, buckets: int) -> list[float]:
    """Edges of equal-width buckets from low to high, each greater than the one before.

    Fractions are exact and can't overflow as `high - low` would. Scores too close to be told apart give fewer buckets.
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
    """Offsets, from the lowest score up, of the nine deciles by nearest rank: ceil(k · total / 10) - 1."""
    return [-(-number * total // 10) - 1 for number in range(1, 10)] if total else []
