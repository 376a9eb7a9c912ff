"""What callers send: bodies, and what stands behind the question mark. OpenAPI is made from these types, too."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from laurels.core import limits
from laurels.core.board import RankStyle, Status
from laurels.core.order import Order, Ties
from laurels.core.scores import Rule
from laurels.http.fields import (
    BoardUuid,
    Body,
    Capacity,
    EventId,
    Metadata,
    Moment,
    Name,
    PodId,
    Score,
    Timestamp,
    UserId,
)


class ScoreUpdate(Body, kw_only=True):
    score: Score
    timestamp: Timestamp | None = None
    event_id: EventId | None = None
    metadata: Metadata | None = None


class ScoreItem(ScoreUpdate, kw_only=True):
    user_id: UserId
    stamped: Annotated[
        bool,
        Meta(
            description="Of an exported event: its timestamp was given by a server, so a repetition that has none is "
            "the same event."
        ),
    ] = False


class ScoreBatch(Body):
    # Items are read one by one, so that a bad one does not spoil the rest.
    scores: Annotated[
        list[Raw],
        Meta(
            min_length=1,
            max_length=limits.BATCH_ITEMS,
        ),
    ]


class ShortScore(Struct, kw_only=True, forbid_unknown_fields=True):
    user_id: UserId
    points: Score
    event_id: EventId | None = None


class RanksRequest(Body):
    user_ids: Annotated[list[UserId], Meta(min_length=1, max_length=limits.RANKS_USERS)]


class PodRequest(Body):
    pod_id: PodId
    name: Name


class KeyRequest(Body):
    role: Annotated[Literal["server", "client"], Meta(description="server: writes and reads; client: reads.")]
    label: Name | None = None
    key_id: (
        Annotated[
            str,
            Meta(pattern=limits.KEY_ID_PATTERN, description="Of a key that another Laurels made; with its `digest`."),
        ]
        | None
    ) = None
    digest: (
        Annotated[
            str, Meta(pattern=limits.DIGEST_PATTERN, description="Its SHA-256 in hex; see `digests` in the list.")
        ]
        | None
    ) = None


class KeysQuery(Body):
    digests: Annotated[bool, Meta(description="With the SHA-256 of each, to bring them to another Laurels.")] = False


class BoardRequest(Body, kw_only=True):
    uuid: BoardUuid | None = field(default=None, name="UUID")
    pod_id: PodId | None = None
    name: Name
    rule: Rule = Rule.BEST
    order: Order = Order.DESC
    ties: Ties = Ties.EARLIEST
    capacity: Capacity | None = None
    windows: Annotated[list[str], Meta(min_length=1, max_length=16)] = field(default_factory=lambda: ["all"])
    segments: Annotated[list[str], Meta(min_length=1, max_length=16)] = field(default_factory=lambda: ["global"])
    start_time: Moment | None = None
    end_time: Moment | None = None
    min_score: Score | None = None
    max_score: Score | None = None
    public: bool = False
    metadata: Metadata | None = None


class BoardChange(Body):
    rule: Annotated[Rule, Meta(description="Can't change.")] | UnsetType = UNSET
    order: Annotated[Order, Meta(description="Can't change.")] | UnsetType = UNSET
    ties: Annotated[Ties, Meta(description="Can't change.")] | UnsetType = UNSET
    windows: Annotated[list[str], Meta(description="Can't change.")] | UnsetType = UNSET
    segments: Annotated[list[str], Meta(description="Can't change.")] | UnsetType = UNSET
    name: Name | UnsetType = UNSET
    capacity: Capacity | UnsetType | None = UNSET
    start_time: Moment | UnsetType | None = UNSET
    end_time: Moment | UnsetType | None = UNSET
    min_score: Score | UnsetType | None = UNSET
    max_score: Score | UnsetType | None = UNSET
    public: bool | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class NoQuery(Body):
    pass


class SelectionQuery(Body):
    window: str | None = None
    period: Annotated[str, Meta(description="A period's name, or 'current'.")] | None = None
    segment: str | None = None
    ranking: Annotated[RankStyle, Meta(description="How equal scores are numbered.")] | None = None


class TopQuery(SelectionQuery):
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ENTRIES)] = 10
    offset: Annotated[int, Meta(ge=0, le=limits.OFFSET)] = 0


class AroundQuery(SelectionQuery):
    above: Annotated[int, Meta(ge=0, le=limits.AROUND_ENTRIES)] = 4
    below: Annotated[int, Meta(ge=0, le=limits.AROUND_ENTRIES)] = 4


class DistributionQuery(SelectionQuery):
    buckets: Annotated[int, Meta(ge=1, le=limits.BUCKETS)] = 20


class PageQuery(Body):
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ENTRIES)] = 100
    cursor: Annotated[str, Meta(max_length=100, description="The `nextCursor` of the page before.")] | None = None


class EventsQuery(PageQuery):
    voided: Annotated[bool, Meta(description="With the events of removed users, which no longer count.")] = False


class BoardsQuery(PageQuery):
    pod_id: PodId | None = None
    status: Status | None = None


class PodQuery(Body):
    pod_id: PodId | None = None


class RebuildQuery(Struct, rename="camel", forbid_unknown_fields=True):
    board: Annotated[BoardUuid | None, Meta(description="One board only. Default: all.")] = None
