"""Ranks of neighbouring entries in a rank style."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from laurels.core.board import RankStyle
from laurels.ports import RankEntry


def number_entries(
    users: Sequence[str],
    scores: Sequence[float],
    times: Sequence[int],
    offset: int,
    first_rank: int,
    style: RankStyle,
) -> list[RankEntry]:
    """Return neighbouring entries with their ranks. The columns are in the order of the ranking.

    `offset` and `first_rank` are those of the first entry; the first offset of a ranking is 0.
    """
    ranks: Sequence[int]
    if style is RankStyle.ORDINAL:
        ranks = range(offset + 1, offset + 1 + len(users))
    else:
        ranks = _shared_ranks(scores, offset, first_rank, style)
    return list(map(RankEntry, users, scores, times, ranks))


def _shared_ranks(scores: Sequence[float], offset: int, first_rank: int, style: RankStyle) -> list[int]:
    """Return the ranks of neighbouring scores in a style in which equal scores share a rank."""
    ranks = [first_rank][: len(scores)]
    for number, (before, score) in enumerate(pairwise(scores), offset + 2):
        rank = ranks[-1]
        if score != before:
            rank = number if style is RankStyle.COMPETITION else rank + 1
        ranks.append(rank)
    return ranks


class RangeBounds(NamedTuple):
    """A range of scores as offsets, and the offsets of the entries to read: `start` is included, `stop` is not."""

    before: int
    after: int
    start: int
    stop: int


def range_bounds(before: int, after: int, total: int, skip: int, limit: int, *, from_end: bool) -> RangeBounds:
    """Return which entries `Ranks.in_range` reads, of `total` ranked users.

    `before` users are better than the range, and the first user worse than it is at the offset `after`. Both may count
    users who are not ranked.
    """
    before = min(before, total)
    after = max(before, min(after, total))
    first = (after if from_end else before) + skip
    return RangeBounds(before, after, max(0, first), min(total, first + limit))
