"""What can be asked of a board: top, rank, around, ranks, distribution, history, and all scores of a user."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from laurels.core.board import GLOBAL, Board, Ranking, RankStyle
from laurels.core.windows import Period
from laurels.errors import Invalid, NotFound
from laurels.ports import Clock, Distribution, Found, Index, Ledger, Page, Place, StoredEvent
from laurels.service.follower import Follower


class Selection(Struct, frozen=True):
    """Which ranking of a board a read is about. None: the board's own choice."""

    window: str | None = None
    period: str | None = None
    segment: str | None = None
    style: RankStyle | None = None


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
    def __init__(self, ledger: Ledger, index: Index, follower: Follower, clock: Clock) -> None:
        self._ledger = ledger
        self._index = index
        self._follower = follower
        self._clock = clock

    async def count(self, board: Board) -> int:
        return await self._index.count(self._ranking(board, Selection()))

    async def top(self, board: Board, selection: Selection, offset: int, limit: int) -> Page:
        return await self._index.top(self._ranking(board, selection), offset, limit, _style(board, selection))

    def revision(self, board: Board, selection: Selection) -> tuple[Ranking, int]:
        """What a page of `top` may be kept under: it is the same until this changes."""
        ranking = self._ranking(board, selection)
        return ranking, self._index.revision(ranking)

    async def rank(self, board: Board, selection: Selection, user_id: str) -> Found:
        ranking = self._ranking(board, selection)
        found = await self._index.find(ranking, user_id, _style(board, selection))
        if found is None:
            raise await self._not_ranked(ranking, user_id)
        return found

    async def around(self, board: Board, selection: Selection, user_id: str, above: int, below: int) -> Page:
        ranking = self._ranking(board, selection)
        page = await self._index.around(ranking, user_id, above, below, _style(board, selection))
        if page is None:
            raise await self._not_ranked(ranking, user_id)
        return page

    async def ranks(
        self, board: Board, selection: Selection, user_ids: Sequence[str]
    ) -> tuple[list[Friend], list[str]]:
        """The ranked ones of a set of users in their order, and those who are not ranked, as they were asked for."""
        ranking = self._ranking(board, selection)
        style = _style(board, selection)
        asked = list(dict.fromkeys(user_ids))
        # The order of the subset is the order of the ranking, whatever the style of numbering.
        ordinal = await self._index.places(ranking, asked, RankStyle.ORDINAL)
        styled = ordinal if style is RankStyle.ORDINAL else await self._index.places(ranking, asked, style)
        order = sorted((first.rank, place) for first, place in zip(ordinal, styled, strict=True) if first and place)
        missing = [user for user, place in zip(asked, styled, strict=True) if place is None]
        return number_friends([place for _, place in order], style), missing

    async def distribution(self, board: Board, selection: Selection, buckets: int) -> Distribution:
        return await self._index.distribution(self._ranking(board, selection), buckets)

    async def history(self, board: Board, user_id: str, before_seq: int | None, limit: int) -> list[StoredEvent]:
        events = await self._ledger.user_events(board.id, user_id, before_seq=before_seq, limit=limit)
        if not events and before_seq is None:
            raise NotFound("user_not_found", f"User {user_id!r} has no score on this board.", field="userId")
        return events

    async def events(self, board: Board, after_seq: int, limit: int) -> list[StoredEvent]:
        return await self._ledger.board_events(board.id, after_seq=after_seq, limit=limit)

    async def count_events(self, board: Board) -> int:
        return await self._ledger.count_events(board.id)

    async def scores_of_user(self, boards: Iterable[Board], user_id: str) -> list[UserScore]:
        """All boards and windows in one answer: one query to the ledger, and a rank each from the index."""
        self._follower.require_ready()
        where = {period.id: (board, period) for board in boards for period in board.periods}
        rows = await self._ledger.rows_of_user(list(where), user_id)
        scores: list[UserScore] = []
        for row in sorted(rows, key=lambda row: row.period_id):
            board, period = where[row.period_id]
            (place,) = await self._index.places(board.ranking(period.id), [user_id], board.rank_style)
            if place is not None:
                scores.append(UserScore(board, period, place.score, place.achieved_at, place.rank))
            elif row.standing is not None:
                scores.append(UserScore(board, period, row.standing.score, row.standing.achieved_at, None))
        return scores

    def period_of(self, board: Board, selection: Selection) -> Period:
        window = selection.window or board.windows[0]
        if window not in board.windows:
            raise Invalid(
                "window_not_available",
                f"This board has the windows {', '.join(board.windows)}.",
                field="window",
                rule=f"one of {', '.join(board.windows)}",
            )
        if selection.period in {None, "current"}:
            period = board.current_period(window, self._clock.now_us())
        else:
            assert selection.period is not None
            period = board.period_named(selection.period)
        if period is None:
            raise NotFound("period_not_found", f"The board has no period {selection.period!r}.", field="period")
        return period

    def _ranking(self, board: Board, selection: Selection) -> Ranking:
        self._follower.require_ready()
        segment = selection.segment or GLOBAL
        if segment not in board.segments:
            raise Invalid(
                "segment_not_available",
                f"This board has the segments {', '.join(board.segments)}.",
                field="segment",
                rule=f"one of {', '.join(board.segments)}",
            )
        return board.ranking(self.period_of(board, selection).id, segment)

    async def _not_ranked(self, ranking: Ranking, user_id: str) -> NotFound:
        if await self._index.is_outside(ranking, user_id):
            return NotFound(
                "user_not_ranked",
                f"User {user_id!r} has a score, and the board ranks only the best {ranking.capacity}.",
                field="userId",
            )
        return NotFound("user_not_found", f"User {user_id!r} has no score on this board.", field="userId")


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
