"""Query parameters. The OpenAPI document is built from these types."""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from laurels.core import limits
from laurels.core.board import RankStyle, Status
from laurels.core.reviews import ReviewState
from laurels.http.fields import (
    BoardUuid,
    Body,
    Moment,
    PodId,
    Reason,
    Score,
    UserId,
)


class BoardsScoreQuery(Body):
    pod_id: PodId | None = None
    rank: Annotated[bool, Meta(description="Return ranks. Default: if one of the boards does.")] | None = None


class ScoreQuery(Body):
    rank: Annotated[bool, Meta(description="Return ranks. Default: as the board's `rankOnWrite` says.")] | None = None


class BatchQuery(ScoreQuery):
    previous: Annotated[bool, Meta(description="Return the rank and the score before this batch, too.")] = False


class KeysQuery(Body):
    digests: Annotated[
        bool, Meta(description="Include the SHA-256 of each key, to import it into another Laurels installation.")
    ] = False


Viewer = Annotated[UserId, Meta(description="The user who is looking. A shadow-banned viewer sees themselves.")]


class NoQuery(Body):
    pass


class SelectionQuery(Body):
    window: str | None = None
    period: Annotated[str, Meta(description="The name of a period, `current` or `previous`.")] | None = None
    segment: Annotated[str, Meta(max_length=100, description="`global`, `region:ID` or `circle:ID`.")] | None = None
    viewer: Viewer | None = None
    ranking: (
        Annotated[RankStyle, Meta(description="How equal scores are numbered: 1,2,3 or 1,1,3 or 1,1,2.")] | None
    ) = None


class EntriesQuery(SelectionQuery):
    include: (
        Annotated[
            str,
            Meta(
                pattern=limits.INCLUDE_PATTERN,
                description="What entries have besides names: `metadata` (of the event at the time of the score), "
                "`attributes` (of the user), or both, separated by a comma.",
            ),
        ]
        | None
    ) = None


class Direction(StrEnum):
    """From the best user down, or from the worst one up."""

    FORWARD = "forward"
    REVERSE = "reverse"


class PagedQuery(EntriesQuery):
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ENTRIES)] = 10
    offset: Annotated[int, Meta(ge=0, le=limits.OFFSET)] = 0
    order: Annotated[Direction, Meta(description="`reverse`: from the worst user up. Ranks stay the same.")] = (
        Direction.FORWARD
    )


class TopQuery(PagedQuery):
    percent: (
        Annotated[
            float,
            Meta(gt=0, le=100, description="Only the best (with `reverse`: the worst) share of the users."),
        ]
        | None
    ) = None


class RangeQuery(PagedQuery):
    min_score: Score | None = None
    max_score: Score | None = None


Neighbours = Annotated[int, Meta(ge=0, le=limits.AROUND_ENTRIES)]


class AroundQuery(EntriesQuery):
    above: Neighbours = 4
    below: Neighbours = 4
    fill: Annotated[
        bool,
        Meta(description="Where the ranking begins or ends, take the missing entries from the other side."),
    ] = False


class ScorePlaceQuery(EntriesQuery):
    # Required; see the handler.
    score: Score | None = None
    above: Neighbours = 0
    below: Neighbours = 0


class LiveQuery(SelectionQuery):
    above: Neighbours = 4
    below: Neighbours = 4
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ENTRIES, description="The number of best users to show.")] = 10
    user_id: Annotated[UserId, Meta(description="Also show this user and their neighbours.")] | None = None
    after: (
        Annotated[
            str,
            Meta(
                max_length=100,
                description="Resume after these frames: the last frame id of each view, separated by a comma.",
            ),
        ]
        | None
    ) = None


class RegionsQuery(Body):
    window: str | None = None
    period: Annotated[str, Meta(description="The name of a period, `current` or `previous`.")] | None = None
    kind: Annotated[
        Literal["region", "circle"], Meta(description="`circle`: list circles. Needs what reading them needs.")
    ] = "region"


class SearchQuery(EntriesQuery):
    q: Annotated[UserId, Meta(description="A user id, or the beginning of a display name.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.FOUND_USERS)] = 10


class DistributionQuery(SelectionQuery):
    buckets: Annotated[int, Meta(ge=1, le=limits.BUCKETS)] = 20
    percentiles: (
        Annotated[
            str,
            Meta(
                pattern=limits.PERCENTILES_PATTERN,
                max_length=limits.PERCENTILES_CHARS,
                description="Percentiles whose scores to return, from 0 to 100, separated by commas: `50,99,99.9`.",
            ),
        ]
        | None
    ) = None
    sum: Annotated[bool, Meta(description="Return the sum and the mean. Reads every row.")] = False


class PageQuery(Body):
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ENTRIES)] = 100
    cursor: Annotated[str, Meta(max_length=100, description="The `nextCursor` of the previous page.")] | None = None


class DeadLettersQuery(Body):
    limit: Annotated[int, Meta(ge=1, le=limits.DEAD_LETTERS)] = 100
    cursor: Annotated[str, Meta(max_length=2000, description="The `nextCursor` of the previous page.")] | None = None
    code: Annotated[str, Meta(max_length=100, description="Only dead letters with this error code.")] | None = None
    replayed: Annotated[bool, Meta(description="Include those that were counted by a replay, or discarded.")] = False


class EventsQuery(PageQuery):
    voided: Annotated[bool, Meta(description="Include events that no longer count.")] = False


class HistoryQuery(PageQuery):
    viewer: Viewer | None = None


class PeriodsQuery(PageQuery):
    window: str | None = None


class UserQuery(PageQuery):
    pod_id: PodId | None = None
    uuid: Annotated[BoardUuid | None, Meta(description="Only this board. Default: all boards of the pod.")] = field(
        default=None, name="UUID"
    )


class ReviewsQuery(PageQuery):
    status: Annotated[
        ReviewState | None, Meta(description="Only those that wait, were accepted or were rejected. Default: all.")
    ] = None


class AuditQuery(PageQuery):
    pod_id: PodId | None = None
    uuid: BoardUuid | None = field(default=None, name="UUID")
    user_id: UserId | None = None
    key_id: Annotated[str, Meta(max_length=100)] | None = None
    since: Moment | None = None
    until: Moment | None = None


class BoardsQuery(PageQuery):
    pod_id: PodId | None = None
    status: Status | None = None


class PodQuery(Body):
    pod_id: PodId | None = None


class UserScoresQuery(PodQuery):
    viewer: Viewer | None = None
    boards: (
        Annotated[
            str,
            Meta(
                pattern=limits.BOARDS_PATTERN,
                max_length=limits.BOARDS_CHARS,
                description="Only these boards: UUIDs, separated by commas. Default: all boards of the pod.",
            ),
        ]
        | None
    ) = None


class PeopleQuery(PodQuery):
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ENTRIES)] = 100
    cursor: Annotated[str, Meta(max_length=2000, description="The `nextCursor` of the previous page.")] | None = None


class BoardReasonQuery(Body):
    reason: Reason | None = None


class ReasonQuery(PodQuery):
    reason: Reason | None = None


class RebuildQuery(Struct, rename="camel", forbid_unknown_fields=True):
    board: Annotated[BoardUuid | None, Meta(description="Only this board. Default: all boards.")] = None
