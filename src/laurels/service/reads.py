"""What can be asked of a board: top, rank, around, ranks, distribution, history, and all scores of a user."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from laurels.core.board import Board, Guest, Ranking, RankStyle
from laurels.core.limits import SLUG_PATTERN
from laurels.core.order import encode_key
from laurels.core.people import GLOBAL, Hidden, Kind, hidden_on
from laurels.core.windows import Period
from laurels.errors import Invalid, NotFound, Stale, Unavailable
from laurels.ports import Clock, Distribution, Found, Ledger, Page, Place, Ranks, Row, StoredEvent
from laurels.service.boards import Boards
from laurels.service.follower import Follower
from laurels.service.rank_source import RankSource, Shown
from laurels.service.seasons import Seasons

T = TypeVar("T")

ATTEMPTS = 3
# How many regions of a board are told, for how long that is kept, and of how many boards.
REGIONS = 300
REGIONS_S = 10.0
KEPT_REGIONS = 1000
_SEGMENT_ID = re.compile(SLUG_PATTERN)

# What a read is of.
Target = tuple[Period, Ranking]


class Selection(Struct, frozen=True):
    """Which ranking of a board a read is about. None: the board's own choice."""

    window: str | None = None
    period: str | None = None
    segment: str | None = None
    style: RankStyle | None = None
    # Who looks: one who is hidden from the others sees themselves.
    viewer: str | None = None


class Friend(Struct, frozen=True):
    """A user of a subset: the place in the whole ranking, and the position within the subset."""

    place: Place
    position: int


class UserScore(Struct, frozen=True):
    """What a user has on one board in one period. `rank` None: outside the capacity."""

    board: Board
    period: Period
    score: float
    achieved_at: int
    rank: int | None


class Reads:
    def __init__(
        self, ledger: Ledger, source: RankSource, follower: Follower, boards: Boards, seasons: Seasons, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._source = source
        self._follower = follower
        self._boards = boards
        self._seasons = seasons
        self._clock = clock
        # By period: when they were read, and how many are in each.
        self._regions: dict[int, tuple[float, list[tuple[str, int]]]] = {}

    async def counts(self, boards: Sequence[Board]) -> Shown[list[int | None]]:
        """How many are ranked on each board, or were at its end; None: nobody can tell now.

        One query to the ledger for all that have ended, and all others at once from the index.
        """
        self._follower.require_ready()
        try:
            periods = await self._seasons.currents(boards)
        except Unavailable:
            # Of those that go on the index knows all the same.
            now = self._clock.now_us()
            periods = [board.current_period(board.windows[0].name, now) for board in boards]
        counted = await asyncio.gather(*map(self._count_shown, boards, periods))
        return Shown([shown.value for shown in counted], any(shown.degraded for shown in counted))

    async def _count_shown(self, board: Board, period: Period | None) -> Shown[int | None]:
        if period is None or period.is_final:
            return Shown(None if period is None else period.total_users, False)
        target = (period, board.ranking(period.id))
        try:
            shown = await self._read(board, Selection(), lambda r, ranking: r.count(ranking), "count", target)
        except (Unavailable, NotFound):
            return Shown(None, False)
        return Shown(shown.value, shown.degraded)

    async def top(
        self, board: Board, selection: Selection, offset: int, limit: int, target: Target | None = None
    ) -> Shown[Page]:
        style = _style(board, selection)
        return await self._read(
            board,
            selection,
            lambda ranks, ranking: ranks.top(ranking, offset, limit, style),
            ("top", offset, limit, style),
            target,
        )

    async def revision(self, board: Board, selection: Selection) -> tuple[Target, Hashable | None]:
        """What a page of `top` may be kept under: it is the same until this changes. None: don't keep it.

        The page is to be read of the same target: who looks may be hidden in between.
        """
        target = await self._target(board, selection)
        period, ranking = target
        if ranking.guest is not None:
            return target, None
        if period.is_final:
            return target, "final"
        return target, await self._source.revision(board, ranking)

    async def rank(self, board: Board, selection: Selection, user_id: str) -> Shown[Found]:
        style = _style(board, selection)

        async def find(ranks: Ranks, ranking: Ranking) -> Found:
            found = await ranks.find(ranking, user_id, style)
            if found is None:
                raise await self._not_ranked(board, ranks, ranking, user_id)
            return found

        return await self._read(board, selection, find, ("rank", user_id, style))

    async def around(self, board: Board, selection: Selection, user_id: str, above: int, below: int) -> Shown[Page]:
        style = _style(board, selection)

        async def around(ranks: Ranks, ranking: Ranking) -> Page:
            page = await ranks.around(ranking, user_id, above, below, style)
            if page is None:
                raise await self._not_ranked(board, ranks, ranking, user_id)
            return page

        return await self._read(board, selection, around, ("around", user_id, above, below, style))

    async def ranks(
        self, board: Board, selection: Selection, user_ids: Sequence[str]
    ) -> Shown[tuple[list[Friend], list[str]]]:
        """The ranked ones of a set of users in their order, and those who are not ranked, as they were asked for."""
        style = _style(board, selection)
        asked = tuple(dict.fromkeys(user_ids))
        shown = await self._read(
            board, selection, lambda ranks, ranking: ranks.places(ranking, asked, style), ("ranks", asked, style)
        )
        # The order of the subset is the order of the ranking, whatever the style of numbering.
        ordered = sorted(
            (place for place in shown.value if place is not None),
            key=lambda place: encode_key(board.order, board.ties, place.score, place.achieved_at, place.user_id),
        )
        missing = [user for user, place in zip(asked, shown.value, strict=True) if place is None]
        return Shown((number_friends(ordered, style), missing), shown.degraded, shown.period)

    async def regions(self, board: Board, window: str | None) -> tuple[Period, list[tuple[str, int]]]:
        """The regions that somebody is ranked in now, and how many, the largest first; kept for a moment."""
        period, ranking = await self._target(board, Selection(window))
        held = self._regions.get(period.id)
        if held is None or time.monotonic() - held[0] > REGIONS_S:
            if len(self._regions) >= KEPT_REGIONS:
                self._regions.clear()
            found = [] if period.is_final else await self._source.segments(board, ranking)
            prefix = f"{Kind.REGION}:"
            named = sorted(segment for segment in found if segment.startswith(prefix))[:REGIONS]
            rankings = [board.ranking(period.id, segment) for segment in named]
            counts = await asyncio.gather(*(self._count(board, each) for each in rankings))
            sized = sorted(zip(named, counts, strict=True), key=lambda each: (-each[1], each[0]))
            held = self._regions[period.id] = (time.monotonic(), sized)
        return period, held[1]

    async def _count(self, board: Board, ranking: Ranking) -> int:
        shown = await self._source.read(board, ranking, lambda ranks: ranks.count(ranking), "count")
        return shown.value

    async def distribution(self, board: Board, selection: Selection, buckets: int) -> Shown[Distribution]:
        return await self._read(
            board,
            selection,
            lambda ranks, ranking: ranks.distribution(ranking, buckets),
            ("distribution", buckets),
        )

    async def is_hidden(self, board: Board, user_id: str, viewer: str | None) -> bool:
        """Whether somebody who looks may not see a user of a board."""
        hidden = hidden_on(board.id, await self._ledger.people.hides(board.pod_id, user_id))
        return hidden is Hidden.YES or (hidden is Hidden.SHADOW and viewer != user_id)

    async def history(self, board: Board, user_id: str, before_seq: int | None, limit: int) -> list[StoredEvent]:
        events = await self._ledger.user_events(board.id, user_id, before_seq=before_seq, limit=limit)
        if not events and before_seq is None:
            raise NotFound("user_not_found", f"User {user_id!r} has no score on this board.", field="userId")
        return events

    async def events(self, board: Board, after_seq: int, limit: int, *, voided: bool) -> list[StoredEvent]:
        return await self._ledger.board_events(board.id, after_seq=after_seq, limit=limit, voided=voided)

    async def count_events(self, board: Board) -> int:
        return await self._ledger.count_events(board.id)

    async def scores_of_user(
        self, boards: Iterable[Board], user_id: str, viewer: str | None = None
    ) -> Shown[list[UserScore]]:
        """All boards and windows as they are now: one query to the ledger, and all ranks at once from the index.

        Where the user is hidden there is nothing to see, but for themselves.
        """
        self._follower.require_ready()
        now = self._clock.now_us()
        where = {
            period.id: (board, period)
            for board in boards
            for window in board.window_names
            if (period := board.current_period(window, now)) is not None
        }
        rows = [
            row
            for row in sorted(await self._ledger.rows_of_user(list(where), user_id), key=lambda row: row.period_id)
            if row.hidden is Hidden.NO or (row.hidden is Hidden.SHADOW and viewer == user_id)
        ]
        found = await asyncio.gather(*(self._place(where[row.period_id][0], row) for row in rows))
        scores: list[UserScore] = []
        for row, shown in zip(rows, found, strict=True):
            board, period = where[row.period_id]
            place = shown.value
            if place is not None:
                scores.append(UserScore(board, period, place.score, place.achieved_at, place.rank))
            elif row.standing is not None:
                scores.append(UserScore(board, period, row.standing.score, row.standing.achieved_at, None))
        return Shown(scores, any(shown.degraded for shown in found))

    async def _place(self, board: Board, row: Row) -> Shown[Place | None]:
        ranking, style = board.ranking(row.period_id), board.rank_style
        if row.hidden is Hidden.SHADOW and row.standing is not None:
            guest = Guest(row.user_id, row.standing.score, row.standing.achieved_at)
            ranking = replace(ranking, guest=guest)

        async def place(ranks: Ranks) -> Place | None:
            (found,) = await ranks.places(ranking, [row.user_id], style)
            return found

        return await self._source.read(board, ranking, place, ("place", row.user_id, style))

    async def _read(
        self,
        board: Board,
        selection: Selection,
        ask: Callable[[Ranks, Ranking], Awaitable[T]],
        question: Hashable,
        target: Target | None = None,
    ) -> Shown[T]:
        """From the index while a period goes on, and from the final ranks once it has them."""
        for _ in range(ATTEMPTS):
            period, ranking = target or await self._target(board, selection)
            target = None
            try:
                if period.is_final:
                    return Shown(await ask(self._ledger.seasons.finals, ranking), False, period)
                shown = await self._source.read(board, ranking, lambda ranks: ask(ranks, ranking), question)  # noqa: B023
                return Shown(shown.value, shown.degraded, period)
            except Stale:
                # It became final, or was pruned, a moment ago.
                self._seasons.forget(board, period)
                await self._boards.reload([board.id])
                board = self._boards.by_id(board.id)
        raise Unavailable("catching_up", "The board is being changed. Try again in a moment.")

    async def _target(self, board: Board, selection: Selection) -> Target:
        self._follower.require_ready()
        segment = selection.segment or GLOBAL
        _need_segment(board, segment)
        period = await self._seasons.period(board, selection.window, selection.period)
        if period.is_pruned:
            raise NotFound(
                "period_pruned",
                f"The final ranks of {period.name!r} were kept for {board.keep_periods_days} days.",
                field="period",
            )
        ranking = board.ranking(period.id, segment)
        if selection.viewer is not None and not period.is_final:
            ranking = replace(ranking, guest=await self._guest(ranking, selection.viewer))
        return period, ranking

    async def _guest(self, ranking: Ranking, viewer: str) -> Guest | None:
        """Who looks, if hidden from all others, and if this ranking would have them.

        While the ledger can't be reached nobody knows, and everybody is shown what all others see.
        """
        try:
            rows = await self._ledger.rows_of_user([ranking.period_id], viewer)
        except Unavailable:
            return None
        for row in rows:
            if row.hidden is Hidden.SHADOW and row.standing and ranking.segment in {GLOBAL, *row.segments}:
                return Guest(viewer, row.standing.score, row.standing.achieved_at)
        return None

    async def _not_ranked(self, board: Board, ranks: Ranks, ranking: Ranking, user_id: str) -> NotFound:
        flush_ms = board.flush_ms
        outside = await ranks.is_outside(ranking, user_id)
        if not outside and ranking.capacity is not None:
            # The index need not know of everybody.
            rows = await self._ledger.rows_of_user([ranking.period_id], user_id)
            outside = any(row.ranked and ranking.segment in {GLOBAL, *row.segments} for row in rows)
        if outside:
            return NotFound(
                "user_not_ranked",
                f"User {user_id!r} has a score, and the board ranks only the best {ranking.capacity}"
                + ("." if flush_ms is None else f"; a new score is ranked within {flush_ms} ms."),
                field="userId",
            )
        where = "this period" if ranking.segment == GLOBAL else f"{ranking.segment} in this period"
        return NotFound("user_not_found", f"User {user_id!r} has no score in {where}.", field="userId")


def _need_segment(board: Board, segment: str) -> None:
    kind, _, name = segment.partition(":")
    if kind in board.segments and (segment == GLOBAL if kind == GLOBAL else _SEGMENT_ID.match(name)):
        return
    shown = [each if each == GLOBAL else f"{each}:ID" for each in board.segments]
    raise Invalid(
        "segment_not_available",
        f"This board has the segments {', '.join(shown)}; an ID has letters, digits, '.', '_' and '-'.",
        field="segment",
        rule=f"one of {', '.join(shown)}",
    )


def number_friends(places: Sequence[Place], style: RankStyle) -> list[Friend]:
    """Positions within a subset, numbered in the same style as the ranks."""
    friends: list[Friend] = []
    position = 0
    for number, place in enumerate(places, 1):
        tied = bool(friends) and friends[-1].place.score == place.score
        if style is RankStyle.ORDINAL or not tied:
            position = position + 1 if style is RankStyle.DENSE else number
        friends.append(Friend(place, position))
    return friends


def _style(board: Board, selection: Selection) -> RankStyle:
    return selection.style or board.rank_style
