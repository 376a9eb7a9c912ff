"""Ranks of neighbouring entries, numbered in a style, for those who know the first one's."""

from collections.abc import Iterable

from laurels.core.board import RankStyle
from laurels.ports import Place


def number_places(
    entries: Iterable[tuple[str, float, int]], offset: int, first_rank: int, style: RankStyle
) -> list[Place]:
    """Entries are (user, score, time) in the order of the ranking, from `offset` on; 0 is the first."""
    places: list[Place] = []
    rank = first_rank
    for number, (user_id, score, achieved_at) in enumerate(entries, offset + 1):
        if places:
            tied = score == places[-1].score
            if style is RankStyle.ORDINAL or (style is RankStyle.COMPETITION and not tied):
                rank = number
            elif style is RankStyle.DENSE and not tied:
                rank += 1
        places.append(Place(user_id, score, achieved_at, rank))
    return places
