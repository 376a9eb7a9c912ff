"""What callers send: bodies, and what stands behind the question mark. OpenAPI is made from these types, too."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from laurels.core import limits
from laurels.core.board import DEFAULT_GRACE_S, RankStyle, Status
from laurels.core.order import Order, Ties
from laurels.core.people import Kind
from laurels.core.schemas import SchemaState, ScoreType, TimestampFormat
from laurels.core.scores import Rule
from laurels.core.windows import Day
from laurels.http.fields import (
    BoardUuid,
    Body,
    Capacity,
    Circle,
    Cron,
    DeadLetterId,
    EventId,
    FieldPath,
    FlushMs,
    GraceSeconds,
    KeepDays,
    Metadata,
    Moment,
    Name,
    PodId,
    Reason,
    Region,
    RewardName,
    SchemaVersion,
    Score,
    Timestamp,
    TimeZone,
    UserId,
    WebhookUrl,
    WindowName,
)


class ScoreUpdate(Body, kw_only=True):
    score: Score
    timestamp: Timestamp | None = None
    event_id: EventId | None = None
    metadata: Metadata | None = None
    region: Region | None = None


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


class WindowBody(Body, omit_defaults=True):
    """A window with more than its name. In answers, one that needs no more is just its name."""

    window: WindowName
    time_zone: TimeZone = "UTC"
    start_day: Annotated[Day, Meta(description="Of a week: on which day `weekly` resets.")] = Day.MONDAY
    cron: Cron | None = None


class RewardRanks(Body):
    from_: Annotated[int, Meta(ge=1, le=limits.OFFSET)] = field(name="from")
    to: Annotated[int, Meta(ge=1, le=limits.OFFSET)]


class RewardScores(Body, omit_defaults=True):
    at_least: Score | None = None
    at_most: Score | None = None


class RewardBody(Body, omit_defaults=True):
    """Exactly one of `ranks`, `topPercent` and `scores` says who gets the prize."""

    name: RewardName
    prize: Annotated[Any, Meta(description=f"Any JSON of at most {limits.PRIZE_BYTES} bytes.")]
    windows: Annotated[list[WindowName], Meta(max_length=limits.WINDOWS, description="Empty: all that end.")] = field(
        default_factory=list
    )
    ranks: Annotated[RewardRanks | None, Meta(description="From one rank to another, both included.")] = None
    top_percent: (
        Annotated[float, Meta(gt=0, le=100, description="Those with fewer than so many percent of all ahead of them.")]
        | None
    ) = None
    scores: Annotated[RewardScores | None, Meta(description="Final scores, bounds included.")] = None


Windows = Annotated[
    list[WindowName | WindowBody],
    Meta(min_length=1, max_length=limits.WINDOWS, description="When it resets. Without more, a name is in UTC."),
]
Rewards = Annotated[list[RewardBody], Meta(max_length=limits.REWARDS)]


class BoardRequest(Body, kw_only=True):
    uuid: BoardUuid | None = field(default=None, name="UUID")
    pod_id: PodId | None = None
    name: Name
    rule: Rule = Rule.BEST
    order: Order = Order.DESC
    ties: Ties = Ties.EARLIEST
    capacity: Capacity | None = None
    windows: Windows = field(default_factory=lambda: ["all"])
    segments: Annotated[
        list[Kind],
        Meta(
            min_length=1,
            max_length=len(Kind),
            description="Who is ranked together: the world (always), each `region`, each `circle`.",
        ),
    ] = field(default_factory=lambda: [Kind.GLOBAL])
    start_time: Moment | None = None
    end_time: Moment | None = None
    min_score: Score | None = None
    max_score: Score | None = None
    public: bool = False
    metadata: Metadata | None = None
    grace_seconds: GraceSeconds = DEFAULT_GRACE_S
    flush_ms: FlushMs | None = None
    rewards: Rewards = field(default_factory=list)
    keep_events_days: KeepDays | None = None
    keep_periods_days: KeepDays | None = None


class BoardChange(Body):
    rule: Annotated[Rule, Meta(description="Can't change.")] | UnsetType = UNSET
    order: Annotated[Order, Meta(description="Can't change.")] | UnsetType = UNSET
    ties: Annotated[Ties, Meta(description="Can't change.")] | UnsetType = UNSET
    windows: (
        Annotated[Windows, Meta(description="More may be added at the end; they count from then on.")] | UnsetType
    ) = UNSET
    segments: Annotated[list[Kind], Meta(description="Can't change.")] | UnsetType = UNSET
    name: Name | UnsetType = UNSET
    capacity: Capacity | UnsetType | None = UNSET
    start_time: Moment | UnsetType | None = UNSET
    end_time: Moment | UnsetType | None = UNSET
    min_score: Score | UnsetType | None = UNSET
    max_score: Score | UnsetType | None = UNSET
    public: bool | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    metadata: Metadata | UnsetType | None = UNSET
    grace_seconds: GraceSeconds | UnsetType = UNSET
    flush_ms: FlushMs | UnsetType | None = UNSET
    rewards: Rewards | UnsetType = UNSET
    keep_events_days: KeepDays | UnsetType | None = UNSET
    keep_periods_days: KeepDays | UnsetType | None = UNSET


class PeriodExtension(Body):
    end_time: Moment


class ProfileBody(Body):
    display_name: Name | UnsetType | None = UNSET
    avatar_url: WebhookUrl | UnsetType | None = UNSET
    region: Region | UnsetType | None = UNSET
    circles: Annotated[list[Circle], Meta(max_length=limits.CIRCLES)] | UnsetType | None = UNSET


class ProfileItem(ProfileBody, kw_only=True):
    user_id: UserId


class ProfilesRequest(Body):
    users: Annotated[list[ProfileItem], Meta(min_length=1, max_length=limits.PROFILES)]


class ReasonRequest(Body):
    reason: Reason | None = None


class HideRequest(ReasonRequest):
    shadow: Annotated[bool, Meta(description="The user still sees themselves: see `viewer`.")] = False


class VoidRequest(ReasonRequest):
    """Either `eventIds` or `match` says which events."""

    event_ids: Annotated[list[EventId], Meta(max_length=limits.VOIDED_EVENTS)] = field(default_factory=list)
    match: Annotated[
        dict[
            Annotated[str, Meta(max_length=limits.MATCHED_CHARS)],
            Annotated[str, Meta(max_length=limits.MATCHED_CHARS)] | int | float | bool | None,
        ],
        Meta(
            max_length=limits.MATCHED_FIELDS,
            description="Values that the metadata of an event have, all of them, at the top level.",
        ),
    ] = field(default_factory=dict)
    user_id: Annotated[UserId | None, Meta(description="With `match`: only those of this user.")] = None


class WhereBody(Body):
    """Either a field or a header."""

    field: FieldPath | None = None
    header: Annotated[str, Meta(min_length=1, max_length=limits.HEADER_CHARS)] | None = None


class FieldMappingsBody(Body):
    """Where an event has each part of a score, as dot paths."""

    user_id: FieldPath
    score: FieldPath
    uuid: FieldPath = field(name="UUID")
    timestamp: Annotated[FieldPath | None, Meta(description="null: when Kafka got the record.")] = None
    region: FieldPath | None = None


class SchemaBody(Body, kw_only=True):
    schema_version: Annotated[SchemaVersion | None, Meta(description="If given, as in the address.")] = None
    field_mappings: FieldMappingsBody
    timestamp_format: TimestampFormat = TimestampFormat.ISO_8601
    score_type: ScoreType = ScoreType.DOUBLE
    event_id_from: Annotated[
        WhereBody | None, Meta(description="null: the record's place in Kafka, which a producer's repetition changes.")
    ] = None
    version_from: Annotated[WhereBody | None, Meta(description="null: it is for events that name no version.")] = None
    state: Annotated[SchemaState | None, Meta(description="null: as it is, or `draft` if it is new.")] = None


class SchemaStateBody(Body):
    state: SchemaState


class TryOutBody(Body):
    event: Annotated[dict[str, Any], Meta(description="An event as a game writes it.")]
    headers: dict[str, str] = field(default_factory=dict)
    schema_version: Annotated[
        SchemaVersion | None, Meta(description="null: the schema that a consumer would choose. Drafts can be named.")
    ] = None


class ReplayRequest(Body):
    ids: Annotated[list[DeadLetterId], Meta(min_length=1, max_length=limits.DEAD_LETTERS)]


class WebhookRequest(Body):
    url: WebhookUrl


Viewer = Annotated[UserId, Meta(description="Who looks: one who is hidden sees themselves.")]


class NoQuery(Body):
    pass


class SelectionQuery(Body):
    window: str | None = None
    period: Annotated[str, Meta(description="A period's name, or 'current', or 'previous'.")] | None = None
    segment: Annotated[str, Meta(max_length=100, description="`global`, `region:ID` or `circle:ID`.")] | None = None
    viewer: Viewer | None = None
    ranking: Annotated[RankStyle, Meta(description="How equal scores are numbered.")] | None = None


class TopQuery(SelectionQuery):
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ENTRIES)] = 10
    offset: Annotated[int, Meta(ge=0, le=limits.OFFSET)] = 0


class AroundQuery(SelectionQuery):
    above: Annotated[int, Meta(ge=0, le=limits.AROUND_ENTRIES)] = 4
    below: Annotated[int, Meta(ge=0, le=limits.AROUND_ENTRIES)] = 4


class LiveQuery(AroundQuery):
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ENTRIES, description="How many of the best.")] = 10
    user_id: Annotated[UserId, Meta(description="Show this user and their neighbours, too.")] | None = None
    after: (
        Annotated[
            str,
            Meta(
                max_length=100,
                description="The ids of the last frames of each view, with a comma between them: go on there.",
            ),
        ]
        | None
    ) = None


class RegionsQuery(Body):
    window: str | None = None


class SearchQuery(SelectionQuery):
    q: Annotated[UserId, Meta(description="A user id, or how a name begins.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.FOUND_USERS)] = 10


class DistributionQuery(SelectionQuery):
    buckets: Annotated[int, Meta(ge=1, le=limits.BUCKETS)] = 20


class PageQuery(Body):
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ENTRIES)] = 100
    cursor: Annotated[str, Meta(max_length=100, description="The `nextCursor` of the page before.")] | None = None


class DeadLettersQuery(Body):
    limit: Annotated[int, Meta(ge=1, le=limits.DEAD_LETTERS)] = 100
    cursor: Annotated[str, Meta(max_length=2000, description="The `nextCursor` of the page before.")] | None = None
    code: Annotated[str, Meta(max_length=100, description="Only those with this reason.")] | None = None
    replayed: Annotated[bool, Meta(description="Also those that were counted when they were replayed.")] = False


class EventsQuery(PageQuery):
    voided: Annotated[bool, Meta(description="With the events of removed users, which no longer count.")] = False


class HistoryQuery(PageQuery):
    viewer: Viewer | None = None


class PeriodsQuery(PageQuery):
    window: str | None = None


class UserQuery(PageQuery):
    pod_id: PodId | None = None
    uuid: Annotated[BoardUuid | None, Meta(description="One board only. Default: all of the pod.")] = field(
        default=None, name="UUID"
    )


class BoardsQuery(PageQuery):
    pod_id: PodId | None = None
    status: Status | None = None


class PodQuery(Body):
    pod_id: PodId | None = None


class UserScoresQuery(PodQuery):
    viewer: Viewer | None = None


class PeopleQuery(PodQuery):
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ENTRIES)] = 100
    cursor: Annotated[str, Meta(max_length=2000, description="The `nextCursor` of the page before.")] | None = None


class BoardReasonQuery(Body):
    reason: Reason | None = None


class ReasonQuery(PodQuery):
    reason: Reason | None = None


class RebuildQuery(Struct, rename="camel", forbid_unknown_fields=True):
    board: Annotated[BoardUuid | None, Meta(description="One board only. Default: all.")] = None
