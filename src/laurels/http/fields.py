"""Types of the values in requests and responses, with their limits, and the base classes of all bodies."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from laurels.core import limits
from laurels.core.board import PublicField

# Marks ids that the decoder brings into the composed form: see core/ids.py.
COMPOSED = {"composed": True}

UserId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.USER_ID_CHARS,
        pattern=limits.ID_PATTERN,
        description="A user id in any script, without control characters.",
        extra=COMPOSED,
    ),
]
EventId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.EVENT_ID_CHARS,
        pattern=limits.ID_PATTERN,
        description="Identifies the event on its board. An event that is sent again with the same id is counted once.",
        extra=COMPOSED,
    ),
]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=limits.IDEMPOTENCY_KEY_CHARS, pattern=limits.ID_PATTERN)]
BoardUuid = Annotated[str, Meta(min_length=1, max_length=limits.BOARD_UUID_CHARS, pattern=limits.SLUG_PATTERN)]
PodId = Annotated[str, Meta(min_length=1, max_length=limits.POD_ID_CHARS, pattern=limits.SLUG_PATTERN)]
Name = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARS, pattern=limits.ID_PATTERN)]
DisplayName = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARS, pattern=limits.DISPLAY_NAME_PATTERN)]
Score = Annotated[
    int | float,
    Meta(description="A finite number that a double can hold. Integers must be exact as a double; all up to 2^53 are."),
]
Subscore = Annotated[
    int,
    Meta(
        ge=-limits.SUBSCORE,
        le=limits.SUBSCORE,
        description="Breaks ties before the time does, on boards with subscores. Default: 0.",
    ),
]
Timestamp = Annotated[
    datetime,
    Meta(tz=True, description="RFC 3339 with a time zone; at most five minutes ahead of the server's clock."),
]
Moment = Annotated[datetime, Meta(tz=True, description="RFC 3339 with a time zone.")]
Instant = Annotated[datetime, Meta(tz=True)]
Capacity = Annotated[int, Meta(ge=1, le=limits.CAPACITY, description="Rank only the best N users.")]
WindowName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.WINDOW_NAME_CHARS,
        pattern=limits.SLUG_PATTERN,
        description="`all`, `daily`, `weekly`, `monthly`, or a custom name with a `cron` expression.",
    ),
]
TimeZone = Annotated[str, Meta(min_length=1, max_length=64, description="An IANA time zone, such as Asia/Seoul.")]
TemplateName = Annotated[str, Meta(min_length=1, max_length=limits.WINDOW_NAME_CHARS, pattern=limits.SLUG_PATTERN)]
OpenSeconds = Annotated[
    int,
    Meta(
        ge=60,
        le=limits.OPEN_SECONDS,
        description="A period ends this long after the reset, and the window is closed until the next. null: never.",
    ),
]
ScoreTtl = Annotated[
    int,
    Meta(
        ge=1,
        le=limits.SCORE_TTL_S,
        description="A user whose last score is older than this many seconds leaves the ranking. null: nobody does.",
    ),
]
Attempts = Annotated[
    int, Meta(ge=1, le=limits.ATTEMPTS, description="How many scores of a user count in a period. null: all.")
]
Cron = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.CRON_CHARS,
        description="When the window resets: minute, hour, day of month, month, day of week.",
    ),
]
GraceSeconds = Annotated[
    int, Meta(ge=0, le=limits.GRACE_S, description="How long a period accepts late scores after its end, in seconds.")
]
FlushMs = Annotated[
    int,
    Meta(
        ge=1,
        le=limits.FLUSH_MS,
        description="Update the rankings in batches at this interval, in milliseconds; for high write rates.",
    ),
]
KeepDays = Annotated[int, Meta(ge=1, le=limits.KEEP_DAYS, description="Retention in days. null: forever.")]
RewardName = Annotated[str, Meta(min_length=1, max_length=limits.REWARD_NAME_CHARS, pattern=limits.SLUG_PATTERN)]
WebhookUrl = Annotated[str, Meta(min_length=1, max_length=limits.URL_CHARS, pattern=limits.URL_PATTERN)]
Region = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.REGION_CHARS,
        pattern=limits.SLUG_PATTERN,
        description="The region of the user, such as `eu`; ranked as the segment `region:eu`.",
    ),
]
Circle = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.CIRCLE_CHARS,
        pattern=limits.SLUG_PATTERN,
        description="A guild, a club or a group of friends; ranked as the segment `circle:ID`.",
    ),
]
SchemaVersion = Annotated[str, Meta(min_length=1, max_length=limits.SCHEMA_VERSION_CHARS, pattern=limits.SLUG_PATTERN)]
FieldPath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.PATH_CHARS,
        pattern=limits.PATH_PATTERN,
        description="Names separated by dots, such as `user.id`.",
    ),
]
Origin = Annotated[str, Meta(min_length=1, max_length=limits.ORIGIN_CHARS, pattern=limits.ORIGIN_PATTERN)]
PublicFields = Annotated[
    list[PublicField],
    Meta(
        max_length=len(PublicField),
        description="What callers without a key of the pod see of a public board, besides ranks, names and times.",
    ),
]
PlayersMayWrite = Annotated[
    bool, Meta(description="Players may submit their own scores with a player token, without the game's server.")
]
Shards = Annotated[
    int,
    Meta(
        ge=1,
        le=limits.SHARDS,
        description="Into how many parts Redis splits each ranking, so that a board can outgrow one node. Can be "
        "changed while the board is in use. The embedded index has no parts.",
    ),
]
RankOnWrite = Annotated[
    bool,
    Meta(
        description="Whether the answer to a score has its rank unless the call says so (`rank`). Default: true for "
        "one shard, false for more."
    ),
]
PlayerWrites = Annotated[
    int,
    Meta(ge=1, le=limits.PLAYER_WRITES, description="Scores per minute that a player may submit, per server process."),
]
DeadLetterId = Annotated[str, Meta(pattern=limits.LETTER_ID_PATTERN)]
Reason = Annotated[str, Meta(min_length=1, max_length=limits.REASON_CHARS, pattern=limits.ID_PATTERN)]
Metadata = Annotated[
    dict[str, Any],
    Meta(description=f"Any JSON object of at most {limits.METADATA_BYTES} bytes."),
]


Attributes = Annotated[
    dict[str, Any],
    Meta(description=f"Any JSON object of at most {limits.ATTRIBUTES_BYTES} bytes, such as a class or a flag."),
]


class Body(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Base of request bodies and query parameters. Unknown fields are errors."""


class Answer(Struct, rename="camel", kw_only=True):
    """Base of response bodies."""
