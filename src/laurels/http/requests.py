"""Request bodies. The OpenAPI document is built from these types."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from laurels.core import limits
from laurels.core.board import DEFAULT_GRACE_S, DEFAULT_PLAYER_WRITES, Status
from laurels.core.order import Order, Ties
from laurels.core.people import SegmentKind
from laurels.core.schemas import SchemaState, ScoreType, TimestampFormat
from laurels.core.scores import Operation, Rule
from laurels.core.windows import Day
from laurels.http.fields import (
    Attempts,
    Attributes,
    BoardUuid,
    Body,
    Capacity,
    Circle,
    Cron,
    DeadLetterId,
    DisplayName,
    EventId,
    FieldPath,
    FlushMs,
    GraceSeconds,
    KeepDays,
    Metadata,
    Moment,
    Name,
    OpenSeconds,
    Origin,
    PlayersMayWrite,
    PlayerWrites,
    PodId,
    PublicFields,
    RankOnWrite,
    Reason,
    Region,
    RewardName,
    SchemaVersion,
    Score,
    ScoreTtl,
    Shards,
    Subscore,
    Timestamp,
    TimeZone,
    UserId,
    WebhookUrl,
    WindowName,
)
from laurels.ports import Scope


class ScoreUpdate(Body, kw_only=True):
    score: Score
    timestamp: Timestamp | None = None
    event_id: EventId | None = None
    metadata: Metadata | None = None
    region: Region | None = None
    subscore: Subscore | None = None
    operation: Annotated[
        Operation | None, Meta(description="What the score does instead of the board's rule, if the board allows it.")
    ] = None


class ScoreItem(ScoreUpdate, kw_only=True):
    user_id: UserId
    stamped: Annotated[
        bool,
        Meta(
            description="For importing exported events: a server set the timestamp, so a repetition without one "
            "is the same event."
        ),
    ] = False


class BoardsScore(ScoreUpdate, kw_only=True):
    boards: Annotated[
        list[BoardUuid],
        Meta(min_length=1, max_length=limits.BOARDS, description="The UUIDs of the boards, all in one pod."),
    ]


class ScoreBatch(Body):
    # Items are decoded one by one, so that an invalid item does not reject the others.
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


Quota = Annotated[int, Meta(ge=0, le=limits.OFFSET)]


class QuotasBody(Body):
    """Limits of a pod. null: as in the server's settings. 0: any number."""

    boards: Annotated[Quota | None, Meta(description="Boards that are not archived.")] = None
    windows: Annotated[Quota | None, Meta(description="Windows with resets, on all boards together.")] = None
    min_reset_seconds: Annotated[Quota | None, Meta(description="The shortest time between two resets.")] = None
    users: Annotated[Quota | None, Meta(description="Users, counted once per board.")] = None
    events_per_day: Annotated[Quota | None, Meta(description="Accepted scores per day (UTC).")] = None
    parts: Annotated[
        Quota | None, Meta(description="Parts of rankings, on all split boards together: shards times windows.")
    ] = None


class PodChange(Body):
    allowed_origins: (
        Annotated[
            list[Origin],
            Meta(
                max_length=limits.ORIGINS,
                description="The web origins whose pages may call the API about this pod, such as "
                "`https://game.example`; `*` for all.",
            ),
        ]
        | UnsetType
    ) = UNSET
    quotas: QuotasBody | UnsetType = UNSET


class KeyTerms(Body):
    label: Name | None = None
    expires_at: Annotated[Moment, Meta(description="When the key stops working. Default: never.")] | None = None


class AdminKeyRequest(KeyTerms):
    pass


class RotateRequest(Body):
    overlap_seconds: Annotated[
        int,
        Meta(ge=0, le=limits.OVERLAP_SECONDS, description="For how long the old key works beside the new one."),
    ] = 3600


class TokenRequest(Body, kw_only=True):
    user_id: UserId
    expires_in_seconds: Annotated[int, Meta(ge=1, le=limits.TOKEN_SECONDS)] = 3600
    may_write: Annotated[
        bool, Meta(description="The player may submit own scores, on boards with `playersMayWrite`.")
    ] = False


class KeyRequest(KeyTerms, kw_only=True):
    role: Annotated[
        Literal["server", "client"],
        Meta(description="server: for game servers. client: ships inside a game, and reads rankings only."),
    ]
    scopes: (
        Annotated[
            list[Scope],
            Meta(min_length=1, max_length=len(Scope), description="What a server key may do. Default: everything."),
        ]
        | None
    ) = None
    key_id: (
        Annotated[
            str,
            Meta(
                pattern=limits.KEY_ID_PATTERN,
                description="Import a key of another Laurels installation. Requires `digest`.",
            ),
        ]
        | None
    ) = None
    digest: (
        Annotated[
            str,
            Meta(
                pattern=limits.DIGEST_PATTERN,
                description="SHA-256 of the imported key in hex; see `digests` of the key list.",
            ),
        ]
        | None
    ) = None


class WindowBody(Body, omit_defaults=True):
    """A window with its settings. In responses, a window with default settings is only its name."""

    window: WindowName
    time_zone: TimeZone = "UTC"
    start_day: Annotated[Day, Meta(description="The day on which `weekly` resets.")] = Day.MONDAY
    cron: Cron | None = None
    capacity: Annotated[Capacity | None, Meta(description="Rank only the best N users. null: as the board.")] = None
    open_seconds: OpenSeconds | None = None
    attempts: Attempts | None = None


class RewardRanks(Body):
    from_: Annotated[int, Meta(ge=1, le=limits.OFFSET)] = field(name="from")
    to: Annotated[int, Meta(ge=1, le=limits.OFFSET)]


class RewardScores(Body, omit_defaults=True):
    at_least: Score | None = None
    at_most: Score | None = None


class RewardBody(Body, omit_defaults=True):
    """A reward. Exactly one of `ranks`, `topPercent` and `scores` selects the users who earn it."""

    name: RewardName
    prize: Annotated[Any, Meta(description=f"Any JSON of at most {limits.PRIZE_BYTES} bytes.")]
    windows: Annotated[
        list[WindowName], Meta(max_length=limits.WINDOWS, description="Empty: all windows that end.")
    ] = field(default_factory=list)
    ranks: Annotated[RewardRanks | None, Meta(description="A range of final ranks, both ends included.")] = None
    top_percent: (
        Annotated[
            float, Meta(gt=0, le=100, description="Users with less than this percentage of ranked users ahead of them.")
        ]
        | None
    ) = None
    scores: Annotated[RewardScores | None, Meta(description="A range of final scores, bounds included.")] = None
    segment: Annotated[
        SegmentKind, Meta(description="`region`, `circle`: the ranks in each region or circle. Needs `ranks`.")
    ] = SegmentKind.GLOBAL


class RiseBody(Body):
    by: Annotated[Score, Meta(description="The score gets better by more than this …")]
    seconds: Annotated[int, Meta(ge=1, le=limits.OPEN_SECONDS, description="… within this time.")]


class ReviewRuleBody(Body, omit_defaults=True):
    """Which scores wait for a moderator. Exactly one of `scores`, `rise` and `match` selects them."""

    name: RewardName
    scores: Annotated[RewardScores | None, Meta(description="The score is in this range, bounds included.")] = None
    rise: Annotated[RiseBody | None, Meta(description="The score rises too fast.")] = None
    match: (
        Annotated[
            dict[str, str | int | float | bool | None],
            Meta(min_length=1, max_length=limits.REVIEW_MATCHES, description="The metadata have these values."),
        ]
        | None
    ) = None


ReviewRules = Annotated[
    list[ReviewRuleBody],
    Meta(max_length=limits.REVIEW_RULES, description="Scores that one of these rules selects wait for a moderator."),
]
Windows = Annotated[
    list[WindowName | WindowBody],
    Meta(min_length=1, max_length=limits.WINDOWS, description="When the board resets. A name alone is in UTC."),
]
Rewards = Annotated[list[RewardBody], Meta(max_length=limits.REWARDS)]


class BoardDefinition(Body, kw_only=True):
    """All that a caller decides about a board."""

    name: Name
    rule: Rule = Rule.BEST
    order: Order = Order.DESC
    ties: Ties = Ties.EARLIEST
    capacity: Capacity | None = None
    windows: Windows = field(default_factory=lambda: ["all"])
    segments: Annotated[
        list[SegmentKind],
        Meta(
            min_length=1,
            max_length=len(SegmentKind),
            description="Who is ranked together: all users (`global`, always), each `region`, each `circle`.",
        ),
    ] = field(default_factory=lambda: [SegmentKind.GLOBAL])
    start_time: Moment | None = None
    end_time: Moment | None = None
    min_score: Score | None = None
    max_score: Score | None = None
    public: bool = False
    public_fields: PublicFields = field(default_factory=list)
    players_may_write: PlayersMayWrite = False
    player_writes_per_minute: PlayerWrites = DEFAULT_PLAYER_WRITES
    shards: Shards = 1
    rank_on_write: RankOnWrite | None = None
    metadata: Metadata | None = None
    grace_seconds: GraceSeconds = DEFAULT_GRACE_S
    flush_ms: FlushMs | None = None
    rewards: Rewards = field(default_factory=list)
    keep_events_days: KeepDays | None = None
    keep_periods_days: KeepDays | None = None
    review: ReviewRules = field(default_factory=list)
    subscore: Annotated[
        Order | None,
        Meta(description="Which subscores are better: they break ties. null: there are none."),
    ] = None
    score_ttl_seconds: ScoreTtl | None = None
    operations: Annotated[
        list[Operation],
        Meta(max_length=len(Operation), description="What single scores may do instead of the rule. Can't be changed."),
    ] = field(default_factory=list)


class BoardRequest(BoardDefinition, kw_only=True):
    uuid: BoardUuid | None = field(default=None, name="UUID")
    pod_id: PodId | None = None


class TemplateBody(Body):
    board: Annotated[
        BoardDefinition, Meta(description="What the boards are like. `{UUID}` in the name becomes their UUID.")
    ]
    prefix: Annotated[
        BoardUuid | None,
        Meta(description="The first score for a board whose UUID begins with this creates it. null: no score does."),
    ] = None


class TemplateUse(Body):
    uuid: BoardUuid = field(name="UUID")
    name: Name | None = None


class BoardChange(Body):
    rule: Annotated[Rule, Meta(description="Can't be changed.")] | UnsetType = UNSET
    order: Annotated[Order, Meta(description="Can't be changed.")] | UnsetType = UNSET
    ties: Annotated[Ties, Meta(description="Can't be changed.")] | UnsetType = UNSET
    windows: (
        Annotated[
            Windows,
            Meta(description="The existing windows, followed by new ones. A new one starts about two seconds later."),
        ]
        | UnsetType
    ) = UNSET
    segments: (
        Annotated[
            list[SegmentKind],
            Meta(max_length=len(SegmentKind), description="The existing segments and new ones: none can be removed."),
        ]
        | UnsetType
    ) = UNSET
    name: Name | UnsetType = UNSET
    capacity: Capacity | UnsetType | None = UNSET
    start_time: Moment | UnsetType | None = UNSET
    end_time: Moment | UnsetType | None = UNSET
    min_score: Score | UnsetType | None = UNSET
    max_score: Score | UnsetType | None = UNSET
    public: bool | UnsetType = UNSET
    public_fields: PublicFields | UnsetType = UNSET
    players_may_write: PlayersMayWrite | UnsetType = UNSET
    player_writes_per_minute: PlayerWrites | UnsetType = UNSET
    shards: Shards | UnsetType = UNSET
    rank_on_write: RankOnWrite | UnsetType | None = UNSET
    review: ReviewRules | UnsetType = UNSET
    subscore: Annotated[Order | None, Meta(description="Can't be changed.")] | UnsetType = UNSET
    score_ttl_seconds: Annotated[ScoreTtl | None, Meta(description="Can't be changed.")] | UnsetType = UNSET
    operations: (
        Annotated[list[Operation], Meta(max_length=len(Operation), description="Can't be changed.")] | UnsetType
    ) = UNSET
    status: Status | UnsetType = UNSET
    metadata: Metadata | UnsetType | None = UNSET
    grace_seconds: GraceSeconds | UnsetType = UNSET
    flush_ms: FlushMs | UnsetType | None = UNSET
    rewards: Rewards | UnsetType = UNSET
    keep_events_days: KeepDays | UnsetType | None = UNSET
    keep_periods_days: KeepDays | UnsetType | None = UNSET


class RemovalsRequest(Body):
    """The users to remove: either `userIds`, or all whose scores are in a range."""

    user_ids: Annotated[list[UserId], Meta(max_length=limits.REMOVED_USERS)] = field(default_factory=list)
    min_score: Score | None = None
    max_score: Score | None = None
    window: Annotated[
        WindowName | None, Meta(description="With a range: of the scores in the current period of this window.")
    ] = None
    reason: Reason | None = None


class DeletionRequest(Body):
    confirm: Annotated[BoardUuid, Meta(description="The UUID of the board again.")]


class PeriodExtension(Body):
    end_time: Moment


class ProfileBody(Body):
    display_name: DisplayName | UnsetType | None = UNSET
    avatar_url: WebhookUrl | UnsetType | None = UNSET
    region: Region | UnsetType | None = UNSET
    circles: Annotated[list[Circle], Meta(max_length=limits.CIRCLES)] | UnsetType | None = UNSET
    attributes: Attributes | UnsetType | None = UNSET


class ProfileItem(ProfileBody, kw_only=True):
    user_id: UserId


class ProfilesRequest(Body):
    users: Annotated[list[ProfileItem], Meta(min_length=1, max_length=limits.PROFILES)]


class ReasonRequest(Body):
    reason: Reason | None = None


class HideRequest(ReasonRequest):
    shadow: Annotated[bool, Meta(description="Shadow ban: the user still sees themselves in reads with `viewer`.")] = (
        False
    )


class VoidRequest(ReasonRequest):
    """The events to void: either `eventIds` or `match`."""

    event_ids: Annotated[list[EventId], Meta(max_length=limits.VOIDED_EVENTS)] = field(default_factory=list)
    match: Annotated[
        dict[
            Annotated[str, Meta(max_length=limits.MATCHED_CHARS)],
            Annotated[str, Meta(max_length=limits.MATCHED_CHARS)] | int | float | bool | None,
        ],
        Meta(
            max_length=limits.MATCHED_FIELDS,
            description="Select events whose metadata have all of these values at the top level.",
        ),
    ] = field(default_factory=dict)
    user_id: Annotated[UserId | None, Meta(description="With `match`: only events of this user.")] = None


class WhereBody(Body):
    """A location in a record: either a field or a header."""

    field: FieldPath | None = None
    header: Annotated[str, Meta(min_length=1, max_length=limits.HEADER_CHARS)] | None = None


class FieldMappingsBody(Body):
    """The path of each part of a score in an event, as names separated by dots."""

    user_id: FieldPath
    score: FieldPath
    uuid: FieldPath = field(name="UUID")
    timestamp: Annotated[FieldPath | None, Meta(description="null: the timestamp of the Kafka record.")] = None
    region: FieldPath | None = None
    subscore: FieldPath | None = None


class SchemaBody(Body, kw_only=True):
    schema_version: Annotated[SchemaVersion | None, Meta(description="If set, the same as in the path.")] = None
    field_mappings: FieldMappingsBody
    timestamp_format: TimestampFormat = TimestampFormat.ISO_8601
    score_type: ScoreType = ScoreType.DOUBLE
    event_id_from: Annotated[
        WhereBody | None,
        Meta(description="null: the record's partition and offset, which change if a producer sends it again."),
    ] = None
    version_from: Annotated[
        WhereBody | None, Meta(description="null: the schema is for events that name no version.")
    ] = None
    state: Annotated[SchemaState | None, Meta(description="null: unchanged, or `draft` for a new schema.")] = None


class SchemaStateBody(Body):
    state: SchemaState


class TryOutBody(Body):
    event: Annotated[dict[str, Any], Meta(description="An event as the game writes it.")]
    headers: dict[str, str] = field(default_factory=dict)
    schema_version: Annotated[
        SchemaVersion | None,
        Meta(description="null: the schema that a consumer would choose. Name a version to try a draft."),
    ] = None


class ReplayRequest(Body):
    ids: Annotated[list[DeadLetterId], Meta(min_length=1, max_length=limits.DEAD_LETTERS)]


class DiscardRequest(ReplayRequest, kw_only=True):
    reason: Reason


class WebhookRequest(Body):
    url: WebhookUrl
