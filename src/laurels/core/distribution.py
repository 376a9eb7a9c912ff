"""Where the edges of a score distribution lie."""

from collections.abc import Sequence


def bucket_edges(low: float, high: float, buckets: int) -> list[float]:
    """Edges of equal-width buckets from low to high, each greater than the one before.

    Weighting both ends can't overflow as `high - low` would. Scores too close to be told apart give fewer buckets.
    """
    edges = [low]
    for number in range(1, buckets):
        share = number / buckets
        edge = low * (1 - share) + high * share
        if edges[-1] < edge < high:
            edges.append(edge)
    edges.append(high)
    return edges


def decile_offsets(total: int) -> Sequence[int]:
    """Offsets, from the lowest score up, of the nine deciles by nearest rank: ceil(k · total / 10) - 1."""
    return [-(-number * total // 10) - 1 for number in range(1, 10)] if total else []
