"""What travels over HTTP, in and out. The OpenAPI document is made from these and from the route table."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from laurels.core import limits
from laurels.core.board import RankStyle, Status
from laurels.core.order import Order, Ties
from laurels.core.scores import Rule
from laurels.ports import Role
from laurels.service.submit import RankState

UserId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.USER_ID_CHARS,
        pattern=limits.ID_PATTERN,
        description="A user id, in any script; no control characters.",
    ),
]
EventId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.EVENT_ID_CHARS,
        pattern=limits.ID_PATTERN,
        description="Makes the event unique on its board: sent again, it is not counted again.",
    ),
]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=limits.IDEMPOTENCY_KEY_CHARS, pattern=limits.ID_PATTERN)]
BoardUuid = Annotated[str, Meta(min_length=1, max_length=limits.BOARD_UUID_CHARS, pattern=limits.SLUG_PATTERN)]
PodId = Annotated[str, Meta(min_length=1, max_length=limits.POD_ID_CHARS, pattern=limits.SLUG_PATTERN)]
Name = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARS, pattern=limits.ID_PATTERN)]
Score = Annotated[
    int | float,
    Meta(description="A finite number that a double can hold; integers exactly, so up to 2^53 always."),
]
Timestamp = Annotated[
    datetime,
    Meta(tz=True, description="RFC 3339 with a zone; at most five minutes ahead of the server's clock."),
]
Moment = Annotated[datetime, Meta(tz=True, description="RFC 3339 with a zone.")]
Instant = Annotated[datetime, Meta(tz=True)]
Capacity = Annotated[int, Meta(ge=1, le=limits.CAPACITY, description="Only the best N are ranked.")]
Metadata = Annotated[
    dict[str, Any],
    Meta(description=f"Any JSON object of at most {limits.METADATA_BYTES} bytes."),
]


class Body(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What comes in: a field that is not known is an error, not a silence."""


class Answer(Struct, rename="camel", kw_only=True):
    """What goes out."""


# In


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


# In, behind the question mark


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


# Out


class Problem(Answer, omit_defaults=True):
    """RFC 9457. `code` is stable, `detail` is for people."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    field: Annotated[str, Meta(description="The path of the value at fault.")] | None = None
    rule: Annotated[str, Meta(description="The rule that it breaks.")] | None = None


class ScoreAnswer(Answer):
    uuid: str = field(name="UUID")
    user_id: str
    score: Annotated[
        float | None,
        Meta(description="null: the user was removed and this event counted before that, or the event is spooled."),
    ]
    rank: int | None
    previous_rank: int | None
    previous_score: float | None
    updated_at: Annotated[datetime, Meta(tz=True, description="When the server took this call.")]
    event_id: str
    duplicate: Annotated[bool, Meta(description="The eventId was already counted; nothing changed.")]
    rank_state: Annotated[RankState, Meta(description="Why `rank` is there, or null.")]


class ScoreResult(Answer):
    user_id: str | None
    status: Literal["accepted", "duplicate", "spooled", "refused"]
    score: float | None = None
    rank: int | None = None
    event_id: str | None = None
    rank_state: RankState | None = None
    problem: Problem | None = None


class BatchAnswer(Answer):
    uuid: str = field(name="UUID")
    results: list[ScoreResult]


class Entry(Answer):
    user_id: str
    rank: int
    score: float
    timestamp: Instant


class TopAnswer(Answer):
    uuid: str = field(name="UUID")
    users: list[Entry]
    total_users: int
    retrieved_at: Instant


class RankAnswer(Answer):
    uuid: str = field(name="UUID")
    user_id: str
    rank: int
    score: float
    timestamp: Instant
    percentile: Annotated[
        float,
        Meta(ge=0, le=100, description="The share of ranked users whose score is not better, in percent."),
    ]
    total_users: int


class AroundAnswer(Answer):
    uuid: str = field(name="UUID")
    users: list[Entry]
    total_users: int


class FriendEntry(Entry):
    position: Annotated[int, Meta(description="The place among the users asked for.")]


class RanksAnswer(Answer):
    uuid: str = field(name="UUID")
    users: list[FriendEntry]
    missing: list[str]


class Bucket(Answer):
    from_: float = field(name="from")
    to: float
    count: int


class DistributionAnswer(Answer):
    uuid: str = field(name="UUID")
    buckets: Annotated[list[Bucket], Meta(description="[from, to); the last one includes its `to`.")]
    deciles: Annotated[list[float], Meta(description="The nine deciles by nearest rank, lowest first.")]
    total_users: int


class HistoryEvent(Answer):
    event_id: str
    score: float
    timestamp: Instant
    received_at: Instant
    voided: Annotated[bool, Meta(description="No longer counts: the user was removed after it.")]
    metadata: dict[str, Any] | None


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
    stamped: Annotated[bool, Meta(description="The timestamp was given by a server, not by the sender.")]
    voided: bool


class EventsAnswer(Answer):
    uuid: str = field(name="UUID")
    events: list[BoardEvent]
    total_events: Annotated[int | None, Meta(description="On the first page only, for counting takes a while.")]
    next_cursor: str | None


class UserScoreEntry(Answer):
    uuid: str = field(name="UUID")
    name: str
    window: str
    period: str
    score: float
    rank: Annotated[int | None, Meta(description="null: outside the board's capacity.")]
    timestamp: Instant


class UserScoresAnswer(Answer):
    user_id: str
    scores: list[UserScoreEntry]


class RemovedAnswer(Answer):
    uuid: str = field(name="UUID")
    user_id: str
    removed: bool


class PeriodAnswer(Answer):
    window: str
    period: str
    start_time: Instant | None
    end_time: Instant | None
    next_reset: Instant | None


class PeriodsAnswer(Answer):
    uuid: str = field(name="UUID")
    periods: list[PeriodAnswer]


class BoardAnswer(Answer):
    uuid: str = field(name="UUID")
    pod_id: str
    name: str
    status: Status
    rule: Rule
    order: Order
    ties: Ties
    capacity: int | None
    windows: list[str]
    segments: list[str]
    periods: Annotated[list[PeriodAnswer], Meta(description="Each window's current period.")]
    start_time: Instant | None
    end_time: Instant | None
    min_score: float | None
    max_score: float | None
    public: bool
    metadata: dict[str, Any] | None
    created_at: Instant
    total_users: Annotated[int | None, Meta(description="null while the index is being loaded.")]


class BoardsAnswer(Answer):
    leaderboards: list[BoardAnswer]
    next_cursor: str | None


class PodAnswer(Answer):
    pod_id: str
    name: str
    created_at: Instant


class PodsAnswer(Answer):
    pods: list[PodAnswer]


class KeyAnswer(Answer):
    key_id: str
    role: Role
    label: str | None
    created_at: Instant
    digest: Annotated[str | None, Meta(description="SHA-256 in hex, where it was asked for.")] = None


class NewKeyAnswer(KeyAnswer, kw_only=True):
    key: Annotated[str | None, Meta(description="The key itself. It is shown this once. null: it was brought here.")]


class KeysAnswer(Answer):
    keys: list[KeyAnswer]


class HealthAnswer(Answer):
    status: str


class ReadyAnswer(Answer):
    status: Annotated[
        Literal["ready", "degraded", "not_ready"],
        Meta(description="degraded: ledger or index is away, and the other one answers what it can."),
    ]
    dependencies: Annotated[dict[str, str], Meta(description="'ok', or why not, for each.")]
    ledger_id: Annotated[str | None, Meta(description="The same on all servers of one ledger. null: not open yet.")]


class ShortEntry(Struct, kw_only=True):
    user_id: str
    user_name: str
    rank: int
    score: float


class ShortTop(Struct, kw_only=True):
    data: list[ShortEntry]
    total: Annotated[int, Meta(description="How many entries `data` has.")]


class ShortInfo(Struct, kw_only=True):
    user_id: str
    score: float | None
    rank: int | None


class ShortUser(Struct, kw_only=True):
    user_info: ShortInfo


class RebuildLine(Answer, omit_defaults=True):
    """One line of the stream: a ranking that was built anew, or how far it is; the last line has `done`."""

    board: str | None = None
    period: str | None = None
    differed: Annotated[
        int | None, Meta(description="Users that the ranking before had wrong. Absent: none was there.")
    ] = None
    users: Annotated[list[str] | None, Meta(description="The first of those users.")] = None
    rebuilt_rows: int | None = None
    total_rows: int | None = None
    differences: int | None = None
    done: bool | None = None


class RebuildQuery(Struct, rename="camel", forbid_unknown_fields=True):
    board: Annotated[BoardUuid | None, Meta(description="One board only. Default: all.")] = None


class VerifyLine(Answer, omit_defaults=True):
    """One line of the stream: a difference, or how far it is; the last line has `done`."""

    board: str | None = None
    period: str | None = None
    user_id: str | None = None
    fault: str | None = None
    expected: str | None = None
    found: str | None = None
    checked_users: int | None = None
    total_users: int | None = None
    differences: int | None = None
    done: bool | None = None
