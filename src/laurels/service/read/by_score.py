"""Reads by score: users in a range of scores, the rank of a score, the best percent, and pages from the end."""

import asyncio
import contextlib
import time
from collections.abc import Hashable
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from laurels.core.board import Board, Ranking, RankStyle
from laurels.core.order import Ties
from laurels.errors import Stale, Unavailable
from laurels.ports import Ledger, Page, RangePage, RankEntry, Ranks, ScoreRange
from laurels.service.read.rank_source import ReadResult
from laurels.service.read.reads import ATTEMPTS, Reads, Selection, Target, style_of

# For how long a sum is kept, and for how many rankings.
SUM_S = 10.0
KEPT_SUMS = 1000


class ScorePlace(Struct, frozen=True):
    """Where a new score would stand, and the entries around it.

    `rank` is None outside the board's capacity. `better` of `total` users have a better score: of the ranked users or,
    outside the capacity, of all users.
    """

    rank: int | None
    better: int
    total: int
    ranked_users: int
    entries: list[RankEntry]


class ScoreReads:
    def __init__(self, reads: Reads, ledger: Ledger) -> None:
        self._reads = reads
        self._ledger = ledger
        # When a sum was asked for, and its result.
        self._sums: dict[Ranking, tuple[float, asyncio.Task[tuple[int, float]]]] = {}

    async def place(
        self, board: Board, selection: Selection, score: float, above: int, below: int
    ) -> ReadResult[ScorePlace]:
        """Return the rank that a user would have who reached a score now. O(log n + above + below).

        On a board with subscores, with the worst of them.
        """
        style = style_of(board, selection)
        # A new score comes after the equal ones, unless the latest is ahead.
        from_end = board.ties is not Ties.LATEST or board.subscore is not None

        async def ask(ranks: Ranks, ranking: Ranking) -> ScorePlace:
            scores = ScoreRange(score, score)
            # At least one entry on each side, because an equal score has the same rank.
            more = max(1, above), max(1, below)
            span = await ranks.in_range(ranking, scores, -more[0], sum(more), style, from_end=from_end)
            offset = span.before + (span.count if from_end else 0)
            ahead = min(offset, more[0])
            entries = span.entries[max(0, ahead - above) : ahead + below]
            # With the worst subscore, it shares its rank with nobody.
            is_tied = board.subscore is None
            if ranking.capacity is not None and offset >= ranking.capacity:
                whole = await ranks.in_range(replace(ranking, capacity=None), scores, 0, 0, style)
                better = whole.before if is_tied else whole.before + whole.count
                return ScorePlace(None, better, whole.total, span.total, entries)
            rank = _rank(score, offset, span, ahead, style, is_tied=is_tied)
            return ScorePlace(rank, span.before if is_tied else offset, span.total, span.total, entries)

        question: Hashable = ("place", score, above, below, style)
        return await self._reads.read(board, selection, ask, question)

    async def in_range(
        self, board: Board, selection: Selection, scores: ScoreRange, offset: int, limit: int, *, reverse: bool
    ) -> ReadResult[RangePage]:
        """Return a page of the users whose scores are in a range, best first or, with `reverse`, worst first."""
        style = style_of(board, selection)

        async def ask(ranks: Ranks, ranking: Ranking) -> RangePage:
            skip = -(offset + limit) if reverse else offset
            span = await ranks.in_range(ranking, scores, skip, limit, style, from_end=reverse)
            first, last = span.before, span.before + span.count
            # Where the page would begin if the ranking had no first row.
            begin = last + skip if reverse else first + skip
            entries = span.entries[max(0, first - max(0, begin)) : max(0, min(last, begin + limit) - max(0, begin))]
            return replace(span, entries=entries[::-1] if reverse else entries)

        return await self._reads.read(board, selection, ask, ("range", scores, offset, limit, reverse, style))

    async def top(
        self,
        board: Board,
        selection: Selection,
        offset: int,
        limit: int,
        percent: float | None,
        target: Target | None = None,
        *,
        reverse: bool,
    ) -> ReadResult[Page]:
        """Return a page of the best or, with `reverse`, of the worst users; with `percent` only of that share.

        A user is in the best x percent if less than x percent of the users have a better rank, as for rewards.
        """
        if not reverse:
            shown = await self._reads.top(board, selection, offset, limit, target)
            page = shown.value
            if percent is not None:
                share = Fraction(repr(percent)) * page.total
                page = Page([each for each in page.entries if (each.rank - 1) * 100 < share], page.total)
            return replace(shown, value=page)
        style = style_of(board, selection)

        async def ask(ranks: Ranks, ranking: Ranking) -> Page:
            found = await ranks.in_range(ranking, ScoreRange(), -(offset + limit), limit, style, from_end=True)
            entries = found.entries[: max(0, found.total - offset - found.start)][::-1]
            if percent is not None:
                share = Fraction(repr(percent)) * found.total
                entries = [each for number, each in enumerate(entries, offset) if number * 100 < share]
            return Page(entries, found.total)

        return await self._reads.read(board, selection, ask, ("reverse", offset, limit, percent, style), target)

    async def sum(self, board: Board, selection: Selection) -> tuple[int, float]:
        """Return the number of ranked users and the sum of their scores, from the ledger. O(n).

        Callers share the result for SUM_S seconds, because anybody may ask for it.
        """
        _, ranking = await self._reads.target(board, selection)
        key = replace(ranking, shadow_viewer=None)
        held = self._sums.get(key)
        if held is None or (held[1].done() and time.monotonic() > held[0] + SUM_S):
            if len(self._sums) >= KEPT_SUMS:
                self._sums.clear()
            task = asyncio.create_task(self._sum(board, selection), name="sum")
            task.add_done_callback(lambda done: self._forget_failed(key, done))
            held = self._sums[key] = (time.monotonic(), task)
        return await asyncio.shield(held[1])

    def _forget_failed(self, key: Ranking, task: "asyncio.Task[tuple[int, float]]") -> None:
        # Reading the exception avoids a warning if all callers are gone.
        if task.cancelled() or task.exception() is not None:
            self._sums.pop(key, None)

    async def _sum(self, board: Board, selection: Selection) -> tuple[int, float]:
        for _ in range(ATTEMPTS):
            period, ranking = await self._reads.target(board, selection)
            with contextlib.suppress(Stale):
                found = await self._ledger.sum_scores(ranking, final=period.is_final)
                # The rows are removed, or the final ranks pruned, in steps: then the sum may lack some.
                if period.is_final:
                    await self._ledger.periods.finals.count(ranking)
                    return found
                stored = await self._ledger.periods.find_period(board.id, period.name)
                if stored is not None and not stored.is_final:
                    return found
            board = await self._reads.reload(board, period)
        raise Unavailable("catching_up", "The board is being changed. Try again in a moment.")


def _rank(score: float, offset: int, span: RangePage, ahead: int, style: RankStyle, *, is_tied: bool) -> int:
    """Return the rank of a new score at an offset. `ahead` of the entries of the span are before it.

    `is_tied`: it shares its rank with equal scores, in styles in which they do.
    """
    if style is RankStyle.ORDINAL or (style is RankStyle.COMPETITION and not is_tied):
        return offset + 1
    if style is RankStyle.COMPETITION:
        return span.before + 1
    near = span.entries[max(0, ahead - 1) : ahead + 1]
    equal = next((entry.rank for entry in near if is_tied and entry.score == score), None)
    if equal is not None:
        return equal
    return span.entries[ahead - 1].rank + 1 if ahead else 1
