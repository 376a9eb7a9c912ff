"""Reads: top, rank, around, ranks, regions, search, distribution, history, events, and all scores of a user."""

from collections.abc import Hashable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import UNSET

from laurels.core.board import Board, PublicField, Ranking, RankStyle
from laurels.core.checks import exact_score
from laurels.core.distribution import DECILES, PER_PERCENT
from laurels.core.instants import to_datetime
from laurels.core.people import SegmentKind
from laurels.errors import Forbidden, Invalid, NotFound
from laurels.http.answers import (
    AroundAnswer,
    BoardEvent,
    Bucket,
    DistributionAnswer,
    Entry,
    EventsAnswer,
    FriendEntry,
    HistoryAnswer,
    HistoryEvent,
    Percentile,
    RangeAnswer,
    RankAnswer,
    RanksAnswer,
    Region,
    RegionsAnswer,
    ScorePlaceAnswer,
    SearchAnswer,
    TopAnswer,
    UserScoreEntry,
    UserScoresAnswer,
)
from laurels.http.board_parts import read_range
from laurels.http.call import Call, Encoded, ShownRanking, need_circle
from laurels.http.decode import decode_cursor, encode_cursor
from laurels.http.entries import read_selection, show_entries
from laurels.http.queries import (
    AroundQuery,
    Direction,
    DistributionQuery,
    EntriesQuery,
    EventsQuery,
    HistoryQuery,
    RangeQuery,
    RegionsQuery,
    ScorePlaceQuery,
    SearchQuery,
    SelectionQuery,
    TopQuery,
    UserScoresQuery,
)
from laurels.http.requests import RanksRequest
from laurels.ports import Found, RankEntry
from laurels.service.boards.boards import unknown_board
from laurels.service.read.reads import Selection, UserRank

# Pages of `top` are cached without their last field, the only one that differs in each response.
RETRIEVED_AT = b',"retrievedAt":'


async def get_top(call: Call[TopQuery, None]) -> Encoded[TopAnswer]:
    """Return the best users, starting at an offset.

    `percent` limits the pages to the users with less than this percentage of the ranked users ahead of them, as in
    rewards with `topPercent`; the first user is always among them. `order=reverse` starts at the worst user.
    """
    board, query = call.board, call.query
    selection, offset, limit = read_selection(query), query.offset, query.limit
    if query.percent is not None and query.ranking is RankStyle.DENSE:
        raise Invalid(
            "not_a_choice",
            "percent needs ranks that count users: ordinal or competition.",
            field="ranking",
            rule="ordinal or competition",
        )
    _included(call)
    revision: Hashable | None
    target, revision = await call.laurels.reads.revision(board, selection)
    key = page_key(target[1], query)
    if revision is not None:
        # Names can change while ranks don't.
        revision = (revision, call.laurels.profiles.revision)
    now = to_datetime(call.laurels.clock.now_us())
    kept = None if revision is None else call.pages.get(key, revision)
    if kept is None:
        page = call.show(
            await call.laurels.score_reads.top(
                board, selection, offset, limit, query.percent, target, reverse=query.order is Direction.REVERSE
            )
        )
        users = await _entries(call, page.entries)
        answer = TopAnswer(uuid=board.uuid, **call.shown_ranking, users=users, total_users=page.total, retrieved_at=now)
        kept = msgspec.json.encode(answer).rpartition(RETRIEVED_AT)[0]
        if revision is not None and not call.degraded:
            call.pages.put(key, revision, kept)
    return Encoded(b"%b%b%b}" % (kept, RETRIEVED_AT, msgspec.json.encode(now)))


def page_key(ranking: Ranking, query: TopQuery) -> str:
    """Return the key of a page in the cache. It is a str, because a str caches its hash."""
    page = f"{query.offset} {query.limit} {query.percent} {query.order} {query.include}"
    return f"{ranking.period_id} {ranking.segment} {ranking.capacity} {query.ranking} {page}"


async def get_rank(call: Call[SelectionQuery, None]) -> RankAnswer:
    """Return the rank, score and percentile of a user.

    A user outside the board's capacity has no rank, but an exact percentile among all users.
    """
    board = call.board
    found = call.show(await call.laurels.reads.rank(board, read_selection(call.query), call.user_id))
    answer = rank_answer(board, call.shown_ranking, found)
    if not found.is_ranked:
        answer.rank, answer.rank_state, answer.total_users = None, "outside_capacity", found.ranked_users
    return answer


def rank_answer(board: Board, shown_ranking: ShownRanking, found: Found | UserRank) -> RankAnswer:
    entry, total = found.entry, found.total
    return RankAnswer(
        uuid=board.uuid,
        **shown_ranking,
        user_id=entry.user_id,
        rank=entry.rank,
        score=entry.score,
        timestamp=to_datetime(entry.achieved_at),
        percentile=100 * (total - found.better) / total,
        total_users=total,
        subscore=UNSET if entry.subscore is None else entry.subscore,
    )


async def get_around(call: Call[AroundQuery, None]) -> AroundAnswer:
    """Return a user's entry and its neighbours, in order.

    With `fill`, the page has `above + below + 1` entries also for the first and the last users, if there are as many.
    """
    board = call.board
    query = call.query
    page = call.show(
        await call.laurels.reads.around(
            board, read_selection(query), call.user_id, query.above, query.below, fill=query.fill
        )
    )
    return AroundAnswer(
        uuid=board.uuid, **call.shown_ranking, users=await _entries(call, page.entries), total_users=page.total
    )


async def get_score_place(call: Call[ScorePlaceQuery, None]) -> ScorePlaceAnswer:
    """Return the rank that a score would have, and the users around it.

    The rank is that of a new user who reached the score now: after equal scores, unless the board's ties are `latest`.
    """
    board, query = call.board, call.query
    if query.score is None:
        raise Invalid("missing_field", "Send the score: ?score=100.", field="score", rule="required")
    score = exact_score(query.score, "score")
    place = call.show(
        await call.laurels.score_reads.place(board, read_selection(query), score, query.above, query.below)
    )
    return ScorePlaceAnswer(
        uuid=board.uuid,
        **call.shown_ranking,
        score=score,
        rank=place.rank,
        percentile=100 * (place.total - place.better) / place.total if place.total else 100.0,
        users=await _entries(call, place.entries),
        total_users=place.ranked_users,
    )


async def get_range(call: Call[RangeQuery, None]) -> RangeAnswer:
    """Return the users whose scores are in a range, and their number.

    Both bounds are included, and a missing one sets no limit. The ranks are those in the whole ranking.
    """
    board, query = call.board, call.query
    scores = read_range(board, query.min_score, query.max_score)
    reverse = query.order is Direction.REVERSE
    page = call.show(
        await call.laurels.score_reads.in_range(
            board, read_selection(query), scores, query.offset, query.limit, reverse=reverse
        )
    )
    return RangeAnswer(
        uuid=board.uuid,
        **call.shown_ranking,
        users=await _entries(call, page.entries),
        count=page.count,
        total_users=page.total,
    )


async def post_ranks(call: Call[EntriesQuery, RanksRequest]) -> RanksAnswer:
    """Return the ranks of a set of users, such as friends.

    `rank` is the rank in the whole ranking, and `position` the rank among the requested users. Both are numbered in the
    same style. `missing` lists the users who are not ranked.
    """
    board = call.board
    friends, missing = call.show(await call.laurels.reads.ranks(board, read_selection(call.query), call.body.user_ids))
    entries = await _entries(call, [friend.entry for friend in friends])
    return RanksAnswer(
        uuid=board.uuid,
        **call.shown_ranking,
        users=[
            FriendEntry(**msgspec.structs.asdict(entry), position=friend.position)
            for entry, friend in zip(entries, friends, strict=True)
        ],
        missing=missing,
    )


async def get_regions(call: Call[RegionsQuery, None]) -> RegionsAnswer:
    """List the regions or the circles of a board that have ranked users, largest first.

    At most 300, the first ones by name. The result may be up to ten seconds old.
    """
    query = call.query
    selection, kind = Selection(query.window, query.period), SegmentKind(query.kind)
    if kind is SegmentKind.CIRCLE:
        need_circle(call.caller, call.board)
    period, segments = await call.laurels.reads.segments(call.board, selection, kind)
    return RegionsAnswer(
        uuid=call.board.uuid,
        window=period.window,
        period=period.name,
        regions=[Region(segment=segment, total_users=count) for segment, count in segments],
    )


async def get_search(call: Call[SearchQuery, None]) -> SearchAnswer:
    """Find ranked users by id or display name.

    Matches the user with the id `q` and users whose display name begins with `q`, ignoring case. Of the first 1,000
    users by name, returns those who are ranked: the user with that id first, then by rank.
    """
    board, query = call.board, call.query
    asked = (query.q or "").strip()
    if not asked:
        raise Invalid(
            "missing_field", "Send q: a user id, or the beginning of a display name.", field="q", rule="required"
        )
    user_ids = await call.laurels.profiles.search(board.pod_id, asked)
    friends, _ = call.show(await call.laurels.reads.ranks(board, read_selection(query), user_ids))
    # The user with exactly this id comes first, then the others by rank.
    found = sorted((friend.entry for friend in friends), key=lambda entry: entry.user_id != asked)
    users = await _entries(call, found[: query.limit])
    return SearchAnswer(uuid=board.uuid, **call.shown_ranking, users=users)


async def get_distribution(call: Call[DistributionQuery, None]) -> DistributionAnswer:
    """Return the distribution of scores.

    Returns exact counts in buckets of equal width from the lowest to the highest score, and the deciles. If scores are
    too close to each other to divide, there are fewer buckets than requested.
    """
    board, query = call.board, call.query
    selection = read_selection(query)
    texts = [] if query.percentiles is None else query.percentiles.split(",")
    wanted = tuple(round(Fraction(text) * PER_PERCENT) for text in texts)
    spread = call.show(await call.laurels.reads.distribution(board, selection, query.buckets, DECILES + wanted))
    answer = DistributionAnswer(
        uuid=board.uuid,
        **call.shown_ranking,
        buckets=[
            Bucket(from_=low, to=high, count=count)
            for (low, high), count in zip(pairwise(spread.edges), spread.counts, strict=False)
        ],
        deciles=spread.percentiles[: len(DECILES)],
        total_users=sum(spread.counts),
    )
    if texts:
        found = zip(texts, spread.percentiles[len(DECILES) :], strict=False)
        answer.percentiles = [Percentile(percentile=float(text), score=score) for text, score in found]
    if query.sum:
        count, answer.sum = await call.laurels.score_reads.sum(board, selection)
        answer.mean = answer.sum / count if count else None
    return answer


async def get_history(call: Call[HistoryQuery, None]) -> HistoryAnswer:
    """List a user's events on a board, last received first.

    A player token reads the events of its own player, unless the player is hidden. A shadow-banned player notices
    nothing.
    """
    board = call.board
    if call.caller.player is not None and await call.laurels.reads.is_hidden(board, call.user_id, call.query.viewer):
        raise NotFound("user_not_found", f"User {call.user_id!r} has no score on this board.", field="userId")
    before, limit = decode_cursor(call.query.cursor), call.query.limit
    events = await call.laurels.reads.history(board, call.user_id, before, limit)
    return HistoryAnswer(
        uuid=board.uuid,
        user_id=call.user_id,
        events=[
            HistoryEvent(
                event_id=event.event_id,
                score=event.score,
                timestamp=to_datetime(event.at),
                received_at=to_datetime(event.received_at),
                voided=event.voided,
                metadata=_metadata(event.metadata),
                subscore=UNSET if board.subscore is None else event.subscore,
                operation=event.operation or UNSET,
            )
            for event in events
        ],
        next_cursor=encode_cursor(events[-1].seq) if len(events) == limit else None,
    )


async def get_events(call: Call[EventsQuery, None]) -> EventsAnswer:
    """List all events of a board in order of arrival, for export."""
    board = call.board
    after, limit = decode_cursor(call.query.cursor) or 0, call.query.limit
    events = await call.laurels.reads.events(board, after, limit, voided=call.query.voided)
    return EventsAnswer(
        uuid=board.uuid,
        events=[
            BoardEvent(
                event_id=event.event_id,
                user_id=event.user_id,
                score=event.score,
                timestamp=to_datetime(event.at),
                metadata=_metadata(event.metadata),
                stamped=event.stamped,
                voided=event.voided,
                subscore=UNSET if board.subscore is None else event.subscore,
                operation=event.operation or UNSET,
            )
            for event in events
        ],
        total_events=await call.laurels.reads.count_events(board) if call.query.cursor is None else None,
        next_cursor=encode_cursor(events[-1].seq) if len(events) == limit else None,
    )


async def get_user_scores(call: Call[UserScoresQuery, None]) -> UserScoresAnswer:
    """Return the current scores of a user on every window of all boards of a pod, or of some boards.

    The pod is that of the key; an admin key sets `podId`.
    """
    pod_id = call.caller.require_pod(call.query.pod_id)
    named = None if call.query.boards is None else set(call.query.boards.split(","))
    boards = [
        board
        for board in call.laurels.boards.all()
        if board.pod_id == pod_id and (named is None or board.uuid in named)
    ]
    if named is not None and (missing := sorted(named - {board.uuid for board in boards})):
        raise unknown_board(missing[0], "boards")
    scores = call.show(await call.laurels.reads.scores_of_user(boards, call.user_id, call.query.viewer))
    return UserScoresAnswer(
        user_id=call.user_id,
        scores=[
            UserScoreEntry(
                uuid=score.board.uuid,
                name=score.board.name,
                window=score.period.window,
                period=score.period.name,
                score=score.score,
                rank=score.rank,
                timestamp=to_datetime(score.achieved_at),
                subscore=UNSET if score.subscore is None else score.subscore,
            )
            for score in scores
        ],
    )


async def _entries(call: Call[Any, Any], entries: Sequence[RankEntry]) -> list[Entry]:
    """Return entries with names, which come from the cache or from one query for all missing ones."""
    user_ids = [entry.user_id for entry in entries]
    shown = show_entries(entries, await call.laurels.profiles.names(call.board.pod_id, user_ids))
    included = _included(call)
    if "metadata" in included:
        found = await call.laurels.reads.metadata(call.board, entries)
        for each in shown:
            each.metadata = _metadata(found.get(each.user_id))
    if "attributes" in included:
        profiles = {each.user_id: each for each in await call.laurels.profiles.profiles(call.board.pod_id, user_ids)}
        for each in shown:
            each.attributes = _metadata(profile.attributes if (profile := profiles.get(each.user_id)) else None)
    return shown


def _included(call: Call[Any, Any]) -> Sequence[str]:
    """Return what entries have besides names; raise Forbidden if the caller may not see it."""
    included: str | None = getattr(call.query, "include", None)
    if included is None:
        return ()
    caller, board = call.caller, call.board
    for kind in included.split(","):
        public = PublicField.SCORE_METADATA if kind == "metadata" else PublicField.ATTRIBUTES
        if public not in board.public_fields and (caller.is_from_outside or not caller.belongs_to(board)):
            caller.require_key()
            raise Forbidden(
                "role_forbidden",
                f"This needs a server key of the board's pod, unless the board's publicFields have {public.value!r}.",
                field="include",
            )
    return included.split(",")


def _metadata(text: str | None) -> dict[str, Any] | None:
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
