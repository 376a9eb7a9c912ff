"""Ranks of neighbouring entries in a rank style."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from laurels.core.board import RankStyle
from laurels.core.order import Heads
from laurels.ports import RankEntry


def number_entries(
    users: Sequence[str], heads: Heads, offset: int, first_rank: int, style: RankStyle
) -> list[RankEntry]:
    """Return neighbouring entries with their ranks. The columns are in the order of the ranking.

    `offset` and `first_rank` are those of the first entry; the first offset of a ranking is 0.
    """
    scores, subscores, times = heads
    ranks: Sequence[int]
    if style is RankStyle.ORDINAL:
        ranks = range(offset + 1, offset + 1 + len(users))
    else:
        ranks = _shared_ranks(
            scores if subscores is None else list(zip(scores, subscores, strict=True)), offset, first_rank, style
        )
    if subscores is None:
        return list(map(RankEntry, users, scores, times, ranks))
    return list(map(RankEntry, users, scores, times, ranks, subscores))


def _shared_ranks(ties: Sequence[Any], offset: int, first_rank: int, style: RankStyle) -> list[int]:
    """Return the ranks of neighbours in a style in which equal ones share a rank."""
    ranks = [first_rank][: len(ties)]
    for number, (before, tie) in enumerate(pairwise(ties), offset + 2):
        rank = ranks[-1]
        if tie != before:
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
