"""Ranks out: top, rank, around, ranks, distribution, history, and all scores of a user."""

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from laurels.core.instants import to_datetime
from laurels.errors import Invalid, NotFound
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
    RankAnswer,
    RanksAnswer,
    Region,
    RegionsAnswer,
    SearchAnswer,
    TopAnswer,
    UserScoreEntry,
    UserScoresAnswer,
)
from laurels.http.call import Call, Encoded
from laurels.http.decode import decode_cursor, encode_cursor
from laurels.http.entries import read_selection, show_entry
from laurels.http.requests import (
    AroundQuery,
    DistributionQuery,
    EventsQuery,
    HistoryQuery,
    RanksRequest,
    RegionsQuery,
    SearchQuery,
    SelectionQuery,
    TopQuery,
    UserScoresQuery,
)
from laurels.ports import Place, Role
from laurels.service.people import NOBODY

# Pages of `top` are kept as bytes up to the one field that is new each time, which is the last.
RETRIEVED_AT = b',"retrievedAt":'


async def get_top(call: Call[TopQuery, None]) -> Encoded[TopAnswer]:
    """The best users, from an offset on"""
    board = call.board
    selection, offset, limit = read_selection(call.query), call.query.offset, call.query.limit
    revision: Hashable | None
    target, revision = await call.laurels.reads.revision(board, selection)
    key = (target[1], selection.style, offset, limit)
    if revision is not None:
        # The names may change while the ranks don't.
        revision = (revision, call.laurels.people.revision)
    now = to_datetime(call.laurels.clock.now_us())
    kept = None if revision is None else call.pages.get(key, revision)
    if kept is None:
        page = call.show(await call.laurels.reads.top(board, selection, offset, limit, target))
        users = await _entries(call, page.places)
        answer = TopAnswer(uuid=board.uuid, **call.told_of, users=users, total_users=page.total, retrieved_at=now)
        kept = msgspec.json.encode(answer).rpartition(RETRIEVED_AT)[0]
        if revision is not None and not call.degraded:
            call.pages.put(key, revision, kept)
    return Encoded(b"%b%b%b}" % (kept, RETRIEVED_AT, msgspec.json.encode(now)))


async def get_rank(call: Call[SelectionQuery, None]) -> RankAnswer:
    """A user's rank, score and percentile"""
    board = call.board
    found = call.show(await call.laurels.reads.rank(board, read_selection(call.query), call.user_id))
    return RankAnswer(
        uuid=board.uuid,
        **call.told_of,
        user_id=found.place.user_id,
        rank=found.place.rank,
        score=found.place.score,
        timestamp=to_datetime(found.place.achieved_at),
        percentile=100 * (found.total - found.better) / found.total,
        total_users=found.total,
    )


async def get_around(call: Call[AroundQuery, None]) -> AroundAnswer:
    """A user's own row and its neighbours, in order"""
    board = call.board
    query = call.query
    page = call.show(
        await call.laurels.reads.around(board, read_selection(query), call.user_id, query.above, query.below)
    )
    return AroundAnswer(
        uuid=board.uuid, **call.told_of, users=await _entries(call, page.places), total_users=page.total
    )


async def post_ranks(call: Call[SelectionQuery, RanksRequest]) -> RanksAnswer:
    """The ranks of a set of users, such as friends

    `rank` is the place in the whole ranking, `position` the place among the users asked for. Both are numbered in
    the same style.
    """
    board = call.board
    friends, missing = call.show(await call.laurels.reads.ranks(board, read_selection(call.query), call.body.user_ids))
    entries = await _entries(call, [friend.place for friend in friends])
    return RanksAnswer(
        uuid=board.uuid,
        **call.told_of,
        users=[
            FriendEntry(**msgspec.structs.asdict(entry), position=friend.position)
            for entry, friend in zip(entries, friends, strict=True)
        ],
        missing=missing,
    )


async def get_regions(call: Call[RegionsQuery, None]) -> RegionsAnswer:
    """The regions of a board that somebody is ranked in, the largest first

    In the current period; up to 300, and up to ten seconds old.
    """
    period, regions = await call.laurels.reads.regions(call.board, call.query.window)
    return RegionsAnswer(
        uuid=call.board.uuid,
        window=period.window,
        period=period.name,
        regions=[Region(segment=segment, total_users=count) for segment, count in regions],
    )


async def get_search(call: Call[SearchQuery, None]) -> SearchAnswer:
    """Find users of a ranking by name

    The user with that id, and those whose display name begins so, whatever its case; of the first 1,000 by name those
    who are ranked: the one with that id, then the best.
    """
    board, query = call.board, call.query
    asked = (query.q or "").strip()
    if not asked:
        raise Invalid(
            "missing_field", "Say whom to find: q is a user id, or how a name begins.", field="q", rule="required"
        )
    users = await call.laurels.people.search(board.pod_id, asked)
    friends, _ = call.show(await call.laurels.reads.ranks(board, read_selection(query), users))
    # The one with that very id comes first, the others by their rank.
    places = sorted((friend.place for friend in friends), key=lambda place: place.user_id != asked)
    entries = await _entries(call, places[: query.limit])
    return SearchAnswer(uuid=board.uuid, **call.told_of, users=entries)


async def get_distribution(call: Call[DistributionQuery, None]) -> DistributionAnswer:
    """How the scores are spread

    Exact counts in buckets of equal width from the lowest to the highest score, and the deciles. Scores too close to
    be told apart give fewer buckets than asked for.
    """
    board = call.board
    spread = call.show(await call.laurels.reads.distribution(board, read_selection(call.query), call.query.buckets))
    return DistributionAnswer(
        uuid=board.uuid,
        **call.told_of,
        buckets=[
            Bucket(from_=low, to=high, count=count)
            for (low, high), count in zip(pairwise(spread.edges), spread.counts, strict=False)
        ],
        deciles=spread.deciles,
        total_users=sum(spread.counts),
    )


async def get_history(call: Call[HistoryQuery, None]) -> HistoryAnswer:
    """A user's events on a board, last arrived first

    Of a hidden user only for server keys, and for the `viewer` who is not to notice.
    """
    board = call.board
    if call.caller.role is Role.CLIENT and await call.laurels.reads.is_hidden(board, call.user_id, call.query.viewer):
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
            )
            for event in events
        ],
        next_cursor=encode_cursor(events[-1].seq) if len(events) == limit else None,
    )


async def get_events(call: Call[EventsQuery, None]) -> EventsAnswer:
    """All events of a board in the order of arrival: for export"""
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
            )
            for event in events
        ],
        total_events=await call.laurels.reads.count_events(board) if call.query.cursor is None else None,
        next_cursor=encode_cursor(events[-1].seq) if len(events) == limit else None,
    )


async def get_user_scores(call: Call[UserScoresQuery, None]) -> UserScoresAnswer:
    """All scores of a user in a pod: every board and window in one answer

    The pod is the key's own; an admin names it as `podId`.
    """
    pod_id = call.caller.require_pod(call.query.pod_id)
    boards = [board for board in call.laurels.boards.all() if board.pod_id == pod_id]
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
            )
            for score in scores
        ],
    )


async def _entries(call: Call[Any, Any], places: Sequence[Place]) -> list[Entry]:
    """Places as they are shown, with names: from the cache, or one query for all of them."""
    names = await call.laurels.people.names(call.board.pod_id, [place.user_id for place in places])
    return [show_entry(place, names.get(place.user_id, NOBODY)) for place in places]


def _metadata(text: str | None) -> dict[str, Any] | None:
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
