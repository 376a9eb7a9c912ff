"""Reads of a board: top, rank, around, ranks, distribution, history, and all scores of a user. by_score.py has more."""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from laurels.core.board import Board, Ranking, RankStyle, ShadowViewer
from laurels.core.distribution import DECILES
from laurels.core.limits import SLUG_PATTERN
from laurels.core.order import encode_key
from laurels.core.people import GLOBAL, Hidden, SegmentKind, hidden_on
from laurels.core.rewards import Terms
from laurels.core.windows import Period
from laurels.errors import Invalid, NotFound, Stale, Unavailable
from laurels.ports import Clock, Distribution, Found, InstantRanks, Ledger, Page, RankEntry, Ranks, Row, StoredEvent
from laurels.service.boards.boards import Boards
from laurels.service.index.updater import IndexUpdater
from laurels.service.read.rank_source import RankSource, ReadResult
from laurels.service.seasons.seasons import Seasons

T = TypeVar("T")

ATTEMPTS = 3
# The maximum number of regions or circles that are listed, for how long they are cached, and for how many periods.
SEGMENTS = 300
SEGMENTS_S = 10.0
KEPT_SEGMENTS = 1000
_SEGMENT_ID = re.compile(SLUG_PATTERN)

# The period and the ranking that a read uses.
Target = tuple[Period, Ranking]
# How many targets of current periods to cache.
KEPT_TARGETS = 10_000


class Selection(Struct, frozen=True):
    """The ranking of a board that a read selects. None: the board's default."""

    window: str | None = None
    period: str | None = None
    segment: str | None = None
    style: RankStyle | None = None
    # The user who reads: a shadow-banned user sees themselves.
    viewer: str | None = None


class UserRank(Struct, frozen=True):
    """A user's entry. `better` of `total` users have a strictly better score, and `ranked_users` are ranked.

    A user outside the board's capacity is not ranked; the numbers are then those among all users.
    """

    entry: RankEntry
    better: int
    total: int
    ranked_users: int
    is_ranked: bool


class Friend(Struct, frozen=True):
    """A user of a subset: the entry in the whole ranking, and the position within the subset."""

    entry: RankEntry
    position: int


class UserScore(Struct, frozen=True):
    """A user's score on one board in one period. `rank` None: outside the board's capacity."""

    board: Board
    period: Period
    score: float
    achieved_at: int
    rank: int | None
    subscore: int | None = None


class Reads:
    def __init__(
        self, ledger: Ledger, source: RankSource, updater: IndexUpdater, boards: Boards, seasons: Seasons, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._source = source
        self._updater = updater
        self._boards = boards
        self._seasons = seasons
        self._clock = clock
        # Keyed by board id, window and segment: the board, the span in which the target is current, and the target.
        self._targets: dict[tuple[int, str | None, str | None], tuple[Board, float, float, Target]] = {}
        # Keyed by period id and kind: when the segments were read, and each with its number of users.
        self._segments: dict[tuple[int, SegmentKind], tuple[float, list[tuple[str, int]]]] = {}

    async def counts(self, boards: Sequence[Board]) -> ReadResult[list[int | None]]:
        """Return the number of ranked users on each board, now or at its end; None if it is unknown.

        Costs one query to the ledger for all ended boards, and one concurrent index read per other board.
        """
        self._updater.require_ready()
        try:
            periods = await self._seasons.currents(boards)
        except Unavailable:
            # The index still knows the counts of boards that have not ended.
            now = self._clock.now_us()
            periods = [board.current_period(board.windows[0].name, board.opened_at(now)) for board in boards]
        counted = await asyncio.gather(*map(self._count_shown, boards, periods))
        return ReadResult([shown.value for shown in counted], any(shown.degraded for shown in counted))

    async def _count_shown(self, board: Board, period: Period | None) -> ReadResult[int | None]:
        if period is None or period.is_final:
            return ReadResult(None if period is None else period.total_users, False)
        target = (period, board.ranking(period.id))
        try:
            shown = await self.read(board, Selection(), lambda r, ranking: r.count(ranking), "count", target)
        except (Unavailable, NotFound):
            return ReadResult(None, False)
        return ReadResult(shown.value, shown.degraded)

    async def top(
        self, board: Board, selection: Selection, offset: int, limit: int, target: Target | None = None
    ) -> ReadResult[Page]:
        style = style_of(board, selection)
        return await self.read(
            board,
            selection,
            lambda ranks, ranking: ranks.top(ranking, offset, limit, style),
            ("top", offset, limit, style),
            target,
        )

    async def revision(self, board: Board, selection: Selection) -> tuple[Target, Hashable | None]:
        """Return the target and the cache key of a page of `top`; no key (None) if it must not be cached.

        The page stays the same until the key changes. Read the page with the returned target, because the viewer may
        become hidden in between.
        """
        target = await self.target(board, selection)
        period, ranking = target
        if ranking.shadow_viewer is not None:
            return target, None
        if period.is_final:
            return target, "final"
        return target, await self._source.revision(board, ranking)

    async def rank(self, board: Board, selection: Selection, user_id: str) -> ReadResult[UserRank]:
        style = style_of(board, selection)

        async def find(ranks: Ranks, ranking: Ranking) -> UserRank:
            while True:
                found = await ranks.find(ranking, user_id, style)
                if found is not None:
                    return UserRank(found.entry, found.better, found.total, found.total, is_ranked=True)
                outside = await _find_outside(ranks, ranking, user_id)
                if outside is None:
                    raise _not_found(ranking, user_id)
                ranked_users = ranking.limit(outside.total)
                # Otherwise, the user has come into the ranking between the two reads.
                if outside.entry.rank > ranked_users:
                    return UserRank(outside.entry, outside.better, outside.total, ranked_users, is_ranked=False)

        return await self.read(board, selection, find, ("rank", user_id, style))

    async def around(
        self, board: Board, selection: Selection, user_id: str, above: int, below: int, *, fill: bool = False
    ) -> ReadResult[Page]:
        """Return a user's entry and its neighbours. `fill`: see `fill_page`."""
        style = style_of(board, selection)
        # With `fill`, what is missing on one side comes from the other.
        reach = (above + below, above + below) if fill else (above, below)

        async def around(ranks: Ranks, ranking: Ranking) -> Page:
            page = await ranks.around(ranking, user_id, *reach, style)
            if page is not None:
                return fill_page(page, user_id, above, below) if fill else page
            if await _find_outside(ranks, ranking, user_id) is None:
                raise _not_found(ranking, user_id)
            soon = "." if board.flush_ms is None else f"; a new score is ranked within {board.flush_ms} ms."
            raise NotFound(
                "user_not_ranked",
                f"User {user_id!r} has a score but no rank: the board ranks only the best {ranking.capacity}{soon}",
                field="userId",
            )

        return await self.read(board, selection, around, ("around", user_id, above, below, fill, style))

    async def ranks(
        self, board: Board, selection: Selection, user_ids: Sequence[str]
    ) -> ReadResult[tuple[list[Friend], list[str]]]:
        """Return the ranked users of a set in ranking order, and the users without a rank in the requested order."""
        style = style_of(board, selection)
        asked = tuple(dict.fromkeys(user_ids))
        shown = await self.read(
            board, selection, lambda ranks, ranking: ranks.find_many(ranking, asked, style), ("ranks", asked, style)
        )
        # The subset has the order of the ranking, independent of the rank style.
        ordered = sorted(
            (entry for entry in shown.value if entry is not None),
            key=lambda each: encode_key(board.sorting, each.score, each.subscore or 0, each.achieved_at, each.user_id),
        )
        missing = [user for user, entry in zip(asked, shown.value, strict=True) if entry is None]
        return ReadResult((number_friends(ordered, style), missing), shown.degraded, shown.period)

    async def segments(
        self, board: Board, selection: Selection, kind: SegmentKind
    ) -> tuple[Period, list[tuple[str, int]]]:
        """Return the regions or circles that have ranked users with their number, largest first.

        At most SEGMENTS, by name, and cached for SEGMENTS_S seconds.
        """
        need_full(board, kind)
        period, ranking = await self.target(board, selection)
        held = self._segments.get((period.id, kind))
        if held is None or time.monotonic() - held[0] > SEGMENTS_S:
            if len(self._segments) >= KEPT_SEGMENTS:
                self._segments.clear()
            found = await self._read_segments(board, period, ranking, kind)
            held = self._segments[period.id, kind] = (
                time.monotonic(),
                sorted(found, key=lambda each: (-each[1], each[0])),
            )
        return period, held[1]

    async def _read_segments(
        self, board: Board, period: Period, ranking: Ranking, kind: SegmentKind
    ) -> list[tuple[str, int]]:
        if period.is_final:
            return await self._ledger.periods.final_segments(period.id, kind, SEGMENTS)
        found = await self._source.segments(board, ranking)
        named = sorted(segment for segment in found if segment.startswith(f"{kind}:"))[:SEGMENTS]
        counts = await asyncio.gather(*(self._count(board, board.ranking(period.id, each)) for each in named))
        return list(zip(named, counts, strict=True))

    async def _count(self, board: Board, ranking: Ranking) -> int:
        shown = await self._source.read(board, ranking, lambda ranks: ranks.count(ranking), "count")
        return shown.value

    async def distribution(
        self, board: Board, selection: Selection, buckets: int, percentiles: tuple[int, ...] = DECILES
    ) -> ReadResult[Distribution]:
        return await self.read(
            board,
            selection,
            lambda ranks, ranking: ranks.distribution(ranking, buckets, percentiles),
            ("distribution", buckets, percentiles),
        )

    async def metadata(self, board: Board, entries: Sequence[RankEntry]) -> dict[str, str]:
        """Return the metadata of the scores that count, by user: of the event at the time of each score.

        For sums, that is the last event that changed the score. Of several events at that time, the one with the
        smallest id. It is kept when the event is removed after the retention time. Users without metadata are omitted.
        """
        adds = board.adds
        moments = [(entry.user_id, entry.achieved_at, None if adds else entry.score) for entry in entries]
        events = await self._ledger.events_at(board.id, moments) if moments else []
        found = {event.user_id: event.metadata for event in events if event.metadata is not None}
        if board.pruned_before is not None:
            known = {event.user_id for event in events}
            removed = [moment for moment in moments if moment[0] not in known and moment[1] < board.pruned_before]
            found |= await self._ledger.metadata_kept(board.id, removed) if removed else {}
        return found

    async def is_hidden(self, board: Board, user_id: str, viewer: str | None) -> bool:
        """Return True if `viewer` may not see a user of a board."""
        hidden = hidden_on(board.id, await self._ledger.profiles.hides(board.pod_id, user_id))
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
    ) -> ReadResult[list[UserScore]]:
        """Return a user's scores in the current periods of all windows of these boards.

        Leaves out boards on which the user is hidden, but a shadow-banned user sees their own scores. Costs one query
        to the ledger, and one concurrent index read per score.
        """
        self._updater.require_ready()
        now = self._clock.now_us()
        where = {
            period.id: (board, period)
            for board in boards
            for window in board.window_names
            if (period := board.current_period(window, now)) is not None
        }
        for board in {board.id: board for board, _ in where.values()}.values():
            await self._source.settle(board)
        rows = [
            row
            for row in sorted(await self._ledger.rows_of_user(list(where), user_id), key=lambda row: row.period_id)
            if not row.expired and (row.hidden is Hidden.NO or (row.hidden is Hidden.SHADOW and viewer == user_id))
        ]
        found = await asyncio.gather(*(self._find_entry(where[row.period_id][0], row) for row in rows))
        scores: list[UserScore] = []
        for row, shown in zip(rows, found, strict=True):
            board, period = where[row.period_id]
            entry = shown.value
            if entry is not None:
                scores.append(UserScore(board, period, entry.score, entry.achieved_at, entry.rank, entry.subscore))
            elif row.standing is not None:
                standing = row.standing
                subscore = None if board.subscore is None else standing.subscore
                scores.append(UserScore(board, period, standing.score, standing.achieved_at, None, subscore))
        return ReadResult(scores, any(shown.degraded for shown in found))

    async def _find_entry(self, board: Board, row: Row) -> ReadResult[RankEntry | None]:
        ranking, style = board.ranking(row.period_id), board.rank_style
        if row.hidden is Hidden.SHADOW and row.standing is not None:
            standing = row.standing
            viewer = ShadowViewer(row.user_id, standing.score, standing.achieved_at, standing.subscore)
            ranking = replace(ranking, shadow_viewer=viewer)

        async def entry(ranks: Ranks) -> RankEntry | None:
            (found,) = await ranks.find_many(ranking, [row.user_id], style)
            return found

        return await self._source.read(board, ranking, entry, ("entry", row.user_id, style))

    async def read(
        self,
        board: Board,
        selection: Selection,
        ask: Callable[[Ranks, Ranking], Awaitable[T]],
        question: Hashable,
        target: Target | None = None,
    ) -> ReadResult[T]:
        """Read from the final ranks if the period is frozen, otherwise from the index."""
        period, ranking = target or await self.target(board, selection)
        try:
            return await self._read_target(board, period, ranking, ask, question)
        except Stale:
            # The ledger uses timeouts, which need a task, and a call in the hot lane has none.
            again = self._read_again(board, selection, ask, question, period)
            return await asyncio.create_task(again, name="read again")

    async def _read_target(
        self,
        board: Board,
        period: Period,
        ranking: Ranking,
        ask: Callable[[Ranks, Ranking], Awaitable[T]],
        question: Hashable,
    ) -> ReadResult[T]:
        if period.is_final:
            return ReadResult(await ask(self._ledger.periods.finals, ranking), False, period)
        shown = await self._source.read(board, ranking, lambda ranks: ask(ranks, ranking), question)
        return ReadResult(shown.value, shown.degraded, period)

    async def _read_again(
        self,
        board: Board,
        selection: Selection,
        ask: Callable[[Ranks, Ranking], Awaitable[T]],
        question: Hashable,
        period: Period,
    ) -> ReadResult[T]:
        """Reload a board whose period was just frozen or pruned, and read once more."""
        for _ in range(ATTEMPTS - 1):
            board = await self.reload(board, period)
            period, ranking = await self.target(board, selection)
            with contextlib.suppress(Stale):
                return await self._read_target(board, period, ranking, ask, question)
        raise Unavailable("catching_up", "The board is being changed. Try again in a moment.")

    async def reload(self, board: Board, period: Period) -> Board:
        """Return the current version of a board whose period was just frozen or pruned."""
        self._seasons.forget(board, period)
        await self._boards.reload([board.id])
        return self._boards.by_id(board.id)

    def current_target(self, board: Board, window: str | None, segment: str | None) -> Target | None:
        """Return the target of a read of the current period, or None if only the ledger knows it.

        Raises Unavailable while the rankings are loaded, and Invalid if the board lacks the window or the segment.
        """
        self._updater.require_ready()
        now = self._clock.now_us()
        key = (board.id, window, segment)
        held = self._targets.get(key)
        if held is not None and held[0] is board and held[1] <= now < held[2]:
            return held[3]
        _need_segment(board, segment or GLOBAL)
        shown = self._seasons.held_period(board, window, now)
        if shown is None:
            return None
        period, since, until = shown
        target = period, board.ranking(period.id, segment or GLOBAL)
        if len(self._targets) >= KEPT_TARGETS:
            self._targets.clear()
        self._targets[key] = (board, since, until, target)
        return target

    def current_span(self, board: Board, window: str | None) -> tuple[float, float] | None:
        """Return the first and the last instant (exclusive) at which `current_target` returns the same target.

        None if it returns None.
        """
        shown = self._seasons.held_period(board, window, self._clock.now_us())
        return None if shown is None else shown[1:]

    def instant(self, ranking: Ranking) -> InstantRanks | None:
        """Return reads of a ranking that need no await, if there are any: see RankSource."""
        return self._source.instant(ranking)

    async def target(self, board: Board, selection: Selection) -> Target:
        if selection.period is None and selection.viewer is None:
            target = self.current_target(board, selection.window, selection.segment)
            if target is not None:
                return target
        self._updater.require_ready()
        segment = selection.segment or GLOBAL
        _need_segment(board, segment)
        period = await self._seasons.period(board, selection.window, selection.period)
        if period.is_pruned:
            raise NotFound(
                "period_pruned",
                f"The final ranks of {period.name!r} were deleted after {board.keep_periods_days} days.",
                field="period",
            )
        ranking = board.ranking(period.id, segment)
        if period.is_final and period.terms:
            # The board may have another capacity by now.
            ranking = replace(ranking, capacity=msgspec.json.decode(period.terms, type=Terms).capacity)
        if selection.viewer is not None and not period.is_final:
            await self._source.settle(board)
            ranking = replace(ranking, shadow_viewer=await self._shadow_viewer(ranking, selection.viewer))
        return period, ranking

    async def _shadow_viewer(self, ranking: Ranking, viewer: str) -> ShadowViewer | None:
        """Return the viewer if they are shadow-banned and have a score in this ranking, otherwise None.

        While the ledger is unreachable, returns None: the viewer sees what all other users see.
        """
        try:
            rows = await self._ledger.rows_of_user([ranking.period_id], viewer)
        except Unavailable:
            return None
        for row in rows:
            if (
                row.hidden is Hidden.SHADOW
                and not row.expired
                and row.standing
                and ranking.segment in {GLOBAL, *row.segments}
            ):
                standing = row.standing
                return ShadowViewer(viewer, standing.score, standing.achieved_at, standing.subscore)
        return None


async def _find_outside(ranks: Ranks, ranking: Ranking, user_id: str) -> Found | None:
    """Return the entry of a user outside the capacity; None if the user has no score."""
    if ranking.capacity is None:
        return None
    return await ranks.find(replace(ranking, capacity=None), user_id, RankStyle.ORDINAL)


def _not_found(ranking: Ranking, user_id: str) -> NotFound:
    where = "this period" if ranking.segment == GLOBAL else f"{ranking.segment} in this period"
    return NotFound("user_not_found", f"User {user_id!r} has no score in {where}.", field="userId")


def fill_page(page: Page, user_id: str, above: int, below: int) -> Page:
    """Cut a page to `above + below + 1` entries around a user, moved where the ranking begins or ends.

    `page` reaches `above + below` entries to both sides of the user.
    """
    size = above + below + 1
    own = next(number for number, entry in enumerate(page.entries) if entry.user_id == user_id)
    start = max(0, min(own - above, len(page.entries) - size))
    return Page(page.entries[start : start + size], page.total)


def _need_segment(board: Board, segment: str) -> None:
    kind, _, name = segment.partition(":")
    if kind in board.segments and (segment == GLOBAL if kind == GLOBAL else _SEGMENT_ID.match(name)):
        need_full(board, kind)
        return
    shown = [each if each == GLOBAL else f"{each}:ID" for each in board.segments]
    raise Invalid(
        "segment_not_available",
        f"This board has the segments {', '.join(shown)}. An ID consists of letters, digits, '.', '_' and '-'.",
        field="segment",
        rule=f"one of {', '.join(shown)}",
    )


def need_full(board: Board, kind: str) -> None:
    """Raise Unavailable if the rankings of a kind of segments were added to the board and don't have all users yet."""
    if kind in board.filling:
        raise Unavailable("catching_up", f"The segments {kind!r} are being added to this board. Try again in a moment.")


def number_friends(entries: Sequence[RankEntry], style: RankStyle) -> list[Friend]:
    """Return the entries with their positions within the subset, numbered in the same style as the ranks."""
    friends: list[Friend] = []
    position = 0
    for number, entry in enumerate(entries, 1):
        last = friends[-1].entry if friends else None
        tied = last is not None and (last.score, last.subscore) == (entry.score, entry.subscore)
        if style is RankStyle.ORDINAL or not tied:
            position = position + 1 if style is RankStyle.DENSE else number
        friends.append(Friend(entry, position))
    return friends


def style_of(board: Board, selection: Selection) -> RankStyle:
    return selection.style or board.rank_style
