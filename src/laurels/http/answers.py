"""Response bodies. The OpenAPI document is built from these types."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from laurels.core.board import PublicField, Status
from laurels.core.order import Order, Ties
from laurels.core.scores import RankState, Rule
from laurels.http.fields import (
    Answer,
    Instant,
)
from laurels.http.requests import BoardDefinition, ReviewRuleBody, RewardBody, WindowBody
from laurels.ports import Role, Scope


class Problem(Answer, omit_defaults=True):
    """An error (RFC 9457). `code` is stable; `detail` is for people."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    field: Annotated[str, Meta(description="The path of the invalid value.")] | None = None
    rule: Annotated[str, Meta(description="The rule that the value breaks.")] | None = None


ShownSubscore = Annotated[int, Meta(description="Only on boards with subscores.")]


class PeriodScore(Answer):
    window: str
    period: str
    score: Annotated[float | None, Meta(description="null: the user was removed after this event was counted.")]
    rank: int | None
    previous_rank: int | None
    previous_score: float | None
    rank_state: RankState
    subscore: ShownSubscore | UnsetType | None = UNSET


LateWindows = Annotated[
    list[str],
    Meta(
        description="Windows that did not count the score: they no longer accept scores of that time, or had not begun."
    ),
]


class ScoreAnswer(Answer):
    uuid: str = field(name="UUID")
    user_id: str
    score: Annotated[
        float | None,
        Meta(description="null: the user was removed after this event was counted, or it is spooled or in review."),
    ]
    rank: int | None
    previous_rank: int | None
    previous_score: float | None
    updated_at: Annotated[datetime, Meta(tz=True, description="When the server received this call.")]
    event_id: str
    duplicate: Annotated[bool, Meta(description="The eventId was counted before; nothing changed.")]
    rank_state: Annotated[RankState, Meta(description="Why `rank` is set or null.")]
    periods: Annotated[
        list[PeriodScore],
        Meta(description="Every period that counted the score. The fields above are of the first one."),
    ]
    late_windows: LateWindows
    subscore: ShownSubscore | UnsetType | None = UNSET


class BoardsScoreAnswer(Answer):
    user_id: str
    event_id: Annotated[str, Meta(description="The same on all boards.")]
    results: Annotated[list[ScoreAnswer], Meta(description="One per board, in the order of the request.")]


class ScoreResult(Answer):
    user_id: str | None
    status: Literal["accepted", "duplicate", "spooled", "in_review", "refused"]
    score: float | None = None
    rank: int | None = None
    previous_rank: Annotated[int | UnsetType | None, Meta(description="Only with `previous=true`.")] = UNSET
    previous_score: Annotated[float | UnsetType | None, Meta(description="Only with `previous=true`.")] = UNSET
    event_id: str | None = None
    rank_state: RankState | None = None
    late_windows: LateWindows = field(default_factory=list)
    problem: Problem | None = None
    subscore: ShownSubscore | UnsetType | None = UNSET


class BatchAnswer(Answer):
    uuid: str = field(name="UUID")
    results: list[ScoreResult]


class Entry(Answer, gc=False):
    user_id: str
    rank: int
    score: float
    timestamp: Instant
    display_name: str | UnsetType = UNSET
    avatar_url: str | UnsetType = UNSET
    metadata: Annotated[
        dict[str, Any] | UnsetType | None, Meta(description="If requested: of the event at the time of the score.")
    ] = UNSET
    attributes: Annotated[dict[str, Any] | UnsetType | None, Meta(description="If requested: of the user.")] = UNSET
    subscore: ShownSubscore | UnsetType = UNSET


class TopAnswer(Answer):
    uuid: str = field(name="UUID")
    window: str
    period: str
    segment: str
    users: list[Entry]
    total_users: int
    retrieved_at: Instant


class RankAnswer(Answer):
    uuid: str = field(name="UUID")
    window: str
    period: str
    segment: str
    user_id: str
    rank: Annotated[int | None, Meta(description="null: outside the board's capacity, see `rankState`.")]
    score: float
    timestamp: Instant
    percentile: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="The percentage of ranked users whose score is not better. Without a rank: of all users.",
        ),
    ]
    total_users: Annotated[int, Meta(description="The number of ranked users.")]
    rank_state: Annotated[
        Literal["outside_capacity"] | UnsetType, Meta(description="Why the user has no rank. Missing if there is one.")
    ] = UNSET
    subscore: ShownSubscore | UnsetType = UNSET


class ScorePlaceAnswer(Answer):
    uuid: str = field(name="UUID")
    window: str
    period: str
    segment: str
    score: float
    rank: Annotated[int | None, Meta(description="null: the score would be outside the board's capacity.")]
    percentile: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="The percentage of ranked users whose score is not better. Without a rank: of all users.",
        ),
    ]
    users: Annotated[list[Entry], Meta(description="The ranked users around the score, in order.")]
    total_users: int


class RangeAnswer(Answer):
    uuid: str = field(name="UUID")
    window: str
    period: str
    segment: str
    users: list[Entry]
    count: Annotated[int, Meta(description="How many ranked users have a score in the range.")]
    total_users: int


class AroundAnswer(Answer):
    uuid: str = field(name="UUID")
    window: str
    period: str
    segment: str
    users: list[Entry]
    total_users: int


class FriendEntry(Entry, kw_only=True):
    position: Annotated[int, Meta(description="The position among the requested users.")]


class RanksAnswer(Answer):
    uuid: str = field(name="UUID")
    window: str
    period: str
    segment: str
    users: list[FriendEntry]
    missing: list[str]


class Region(Answer):
    segment: Annotated[str, Meta(description="The value for `segment` in reads: `region:ID` or `circle:ID`.")]
    total_users: int


class RegionsAnswer(Answer):
    uuid: str = field(name="UUID")
    window: str
    period: str
    regions: list[Region]


class SearchAnswer(Answer):
    uuid: str = field(name="UUID")
    window: str
    period: str
    segment: str
    users: Annotated[list[Entry], Meta(description="Ranked users: the user with that id first, then by rank.")]


class Bucket(Answer):
    from_: float = field(name="from")
    to: float
    count: int


class Percentile(Answer):
    percentile: float
    score: float


class DistributionAnswer(Answer):
    uuid: str = field(name="UUID")
    window: str
    period: str
    segment: str
    buckets: Annotated[list[Bucket], Meta(description="Half-open intervals [from, to); the last one includes `to`.")]
    deciles: Annotated[list[float], Meta(description="The nine deciles by nearest rank, lowest first.")]
    total_users: int
    percentiles: Annotated[
        list[Percentile] | UnsetType, Meta(description="If requested, in the order of the request.")
    ] = UNSET
    sum: Annotated[
        float | UnsetType,
        Meta(description="If requested. A double, so its last digits can be rounded; up to ten seconds old."),
    ] = UNSET
    mean: Annotated[float | UnsetType | None, Meta(description="If requested. null: no user is ranked.")] = UNSET


class HistoryEvent(Answer):
    event_id: str
    score: float
    timestamp: Instant
    received_at: Instant
    voided: Annotated[
        bool, Meta(description="No longer counts: the event was voided, or the user was removed after it.")
    ]
    metadata: dict[str, Any] | None
    subscore: ShownSubscore | UnsetType = UNSET
    operation: Annotated[str | UnsetType, Meta(description="If it was not the rule of the board.")] = UNSET


class HistoryAnswer(Answer):
    uuid: str = field(name="UUID")
    user_id: str
    events: list[HistoryEvent]
    next_cursor: str | None


class BoardEvent(Answer):
    event_id: str
    user_id: str
    score: float
    timestamp: Instant
    metadata: dict[str, Any] | None
    stamped: Annotated[bool, Meta(description="The timestamp was set by a server, not by the sender.")]
    voided: bool
    subscore: ShownSubscore | UnsetType = UNSET
    operation: Annotated[str | UnsetType, Meta(description="If it was not the rule of the board.")] = UNSET


class EventsAnswer(Answer):
    uuid: str = field(name="UUID")
    events: list[BoardEvent]
    total_events: Annotated[int | None, Meta(description="Only on the first page, because counting takes time.")]
    next_cursor: str | None


class UserScoreEntry(Answer):
    uuid: str = field(name="UUID")
    name: str
    window: str
    period: str
    score: float
    rank: Annotated[int | None, Meta(description="null: outside the board's capacity.")]
    timestamp: Instant
    subscore: ShownSubscore | UnsetType = UNSET


class UserScoresAnswer(Answer):
    user_id: str
    scores: list[UserScoreEntry]


PeriodStatus = Literal["SCHEDULED", "OPEN", "CLOSING", "FINAL", "PRUNED", "SUPERSEDED"]


class PeriodAnswer(Answer):
    window: str
    period: str
    status: Annotated[
        PeriodStatus,
        Meta(
            description="CLOSING: ended, and accepting late scores or being frozen. FINAL: frozen. PRUNED: its final "
            "ranks were deleted after the board's retention time. SUPERSEDED: replaced by a refreeze."
        ),
    ]
    start_time: Instant | None
    end_time: Instant | None
    next_reset: Annotated[Instant | None, Meta(description="The same as endTime, while that is in the future.")]
    total_users: Annotated[int | None, Meta(description="The number of ranked users, once the period is final.")]


class PeriodsAnswer(Answer):
    uuid: str = field(name="UUID")
    periods: list[PeriodAnswer]
    next_cursor: str | None


class ResultEntry(Answer):
    uuid: str = field(name="UUID")
    name: str
    window: str
    period: str
    start_time: Instant | None
    end_time: Instant | None
    rank: int
    score: float
    timestamp: Instant
    total_users: int
    subscore: ShownSubscore | UnsetType = UNSET


class ResultsAnswer(Answer):
    user_id: str
    results: list[ResultEntry]
    next_cursor: str | None


class RewardEntry(Answer):
    reward_id: str
    uuid: str = field(name="UUID")
    window: str
    period: str
    user_id: str
    reward: str
    rank: Annotated[int, Meta(description="In the segment.")]
    segment: str
    score: float
    prize: Any
    granted_at: Instant
    claimed_at: Instant | None


class RewardsAnswer(Answer):
    rewards: list[RewardEntry]
    next_cursor: str | None


class ClaimAnswer(Answer):
    reward: RewardEntry
    already_claimed: Annotated[bool, Meta(description="The reward was claimed before; nothing changed.")]


class WebhookAnswer(Answer):
    pod_id: str
    url: str
    created_at: Instant


class NewWebhookAnswer(WebhookAnswer, kw_only=True):
    secret: Annotated[
        str | None,
        Meta(description="Signs the messages. Shown only once. null: the URL is unchanged, and so is the secret."),
    ]


class ReshardAnswer(Answer):
    """A change of a board's number of shards."""

    shards: Annotated[int, Meta(description="`building`: the new number. `retiring`: the old one.")]
    state: Annotated[
        Literal["building", "retiring"],
        Meta(
            description="`building`: the new parts are filled, reads use the old ones. `retiring`: reads use the new "
            "ones, the old ones are dropped soon."
        ),
    ]
    since: Instant
    parts: Annotated[
        int | None, Meta(description="How many parts are built, of all periods. Only in the answer of one board.")
    ] = None
    parts_ready: int | None = None
    users_loaded: Annotated[int | None, Meta(description="Users in the parts that are being built.")] = None


class TemplateAnswer(Answer):
    pod_id: str
    name: str
    prefix: str | None
    board: BoardDefinition
    created_at: Instant
    updated_at: Instant


class TemplatesAnswer(Answer):
    templates: list[TemplateAnswer]


class DeletionAnswer(Answer):
    uuid: str = field(name="UUID")
    deleted_at: Instant


class BoardAnswer(Answer):
    uuid: str = field(name="UUID")
    pod_id: str
    name: str
    status: Status
    rule: Rule
    order: Order
    ties: Ties
    capacity: int | None
    windows: list[str | WindowBody]
    segments: list[str]
    adding_segments: Annotated[
        list[str], Meta(description="Segments that were added and can't be read yet: they don't have all users.")
    ]
    periods: Annotated[list[PeriodAnswer], Meta(description="The current period of each window, or else the next one.")]
    start_time: Instant | None
    end_time: Instant | None
    min_score: float | None
    max_score: float | None
    public: bool
    public_fields: list[PublicField]
    players_may_write: bool
    player_writes_per_minute: int
    shards: Annotated[int, Meta(description="The number of parts that reads use.")]
    resharding: Annotated[ReshardAnswer | None, Meta(description="null: the number of shards does not change.")]
    rank_on_write: bool
    metadata: Annotated[
        dict[str, Any] | None, Meta(description="null without a key of the pod, unless `publicFields` has it.")
    ]
    grace_seconds: int
    flush_ms: int | None
    rewards: list[RewardBody]
    keep_events_days: int | None
    keep_periods_days: int | None
    review: Annotated[list[ReviewRuleBody], Meta(description="Empty without a key of the pod.")]
    subscore: Order | None
    score_ttl_seconds: int | None
    operations: list[str]
    pruned_before: Annotated[
        Instant | None, Meta(description="Events before this time may be deleted, and new ones are refused.")
    ]
    created_at: Instant
    created_by: Annotated[str | None, Meta(description="The id of the key. null without a key of the pod.")]
    total_users: Annotated[
        int | None, Meta(description="null: the index is loading or unavailable, or the board has not begun.")
    ]


class BoardsAnswer(Answer):
    leaderboards: list[BoardAnswer]
    next_cursor: str | None


class QuotasAnswer(Answer):
    """Limits of a pod. null: as in the server's settings. 0: any number."""

    boards: int | None
    windows: int | None
    min_reset_seconds: int | None
    users: int | None
    events_per_day: int | None
    parts: int | None


class Used(Answer):
    used: int
    limit: Annotated[int | None, Meta(description="null: any number.")]


class Shortest(Answer):
    used: Annotated[int | None, Meta(description="The shortest time between two resets. null: there are no resets.")]
    limit: Annotated[int | None, Meta(description="null: any time.")]


class UsageAnswer(Answer):
    """How much of its quotas a pod uses."""

    pod_id: str
    boards: Annotated[Used, Meta(description="Boards that are not archived.")]
    windows: Annotated[Used, Meta(description="Windows with resets, on these boards.")]
    parts: Annotated[Used, Meta(description="Parts of the rankings of split boards: shards times windows.")]
    users: Annotated[Used, Meta(description="Users, counted once per board.")]
    events_today: Annotated[Used, Meta(description="Scores accepted since midnight (UTC).")]
    shortest_reset_seconds: Shortest


class PodAnswer(Answer):
    pod_id: str
    name: str
    created_at: Instant
    allowed_origins: list[str]
    quotas: QuotasAnswer


class PodsAnswer(Answer):
    pods: list[PodAnswer]


class KeyAnswer(Answer):
    key_id: str
    role: Role
    label: str | None
    created_at: Instant
    expires_at: Instant | None
    last_used_at: Annotated[Instant | None, Meta(description="Stored once per minute. null: never used.")]
    scopes: list[Scope]
    digest: Annotated[str | None, Meta(description="SHA-256 in hex, if `digests` was requested.")] = None


class NewKeyAnswer(KeyAnswer, kw_only=True):
    key: Annotated[str | None, Meta(description="The key. Shown only once. null: the key was imported.")]


class TokenAnswer(Answer):
    user_id: str
    token: Annotated[str, Meta(description="Send it like a key: `Authorization: Bearer TOKEN`.")]
    expires_at: Instant
    may_write: bool


class RevokedAnswer(Answer):
    user_id: str
    revoked_at: Annotated[Instant, Meta(description="Tokens that were issued until then are refused.")]


class KeysAnswer(Answer):
    keys: list[KeyAnswer]


class ShortEntry(Struct, kw_only=True):
    user_id: str
    user_name: str
    rank: int
    score: float


class ShortTop(Struct, kw_only=True):
    data: list[ShortEntry]
    total: Annotated[int, Meta(description="The number of entries in `data`.")]


class ShortInfo(Struct, kw_only=True):
    user_id: str
    score: float | None
    rank: int | None


class ShortUser(Struct, kw_only=True):
    user_info: ShortInfo
