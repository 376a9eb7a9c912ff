"""Ranks of neighbouring entries in a rank style."""

from collections.abc import Iterable

from laurels.core.board import RankStyle
from laurels.ports import RankEntry


def number_entries(
    found: Iterable[tuple[str, float, int]], offset: int, first_rank: int, style: RankStyle
) -> list[RankEntry]:
    """Return neighbouring entries with their ranks, from (user, score, time) in the order of the ranking.

    `offset` and `first_rank` are those of the first entry; the first offset of a ranking is 0.
    """
    entries: list[RankEntry] = []
    rank = first_rank
    for number, (user_id, score, achieved_at) in enumerate(found, offset + 1):
        if entries:
            tied = score == entries[-1].score
            if style is RankStyle.ORDINAL or (style is RankStyle.COMPETITION and not tied):
                rank = number
            elif style is RankStyle.DENSE and not tied:
                rank += 1
        entries.append(RankEntry(user_id, score, achieved_at, rank))
    return entries
