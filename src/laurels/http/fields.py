"""Values that travel over HTTP, with their limits, and what all bodies have in common."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from laurels.core import limits

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
WindowName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.WINDOW_NAME_CHARS,
        pattern=limits.SLUG_PATTERN,
        description="`all`, `daily`, `weekly`, `monthly`, or a name of your own with a `cron` line.",
    ),
]
TimeZone = Annotated[str, Meta(min_length=1, max_length=64, description="An IANA time zone, such as Asia/Seoul.")]
Cron = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.CRON_CHARS,
        description="When it resets: minute, hour, day of month, month, day of week.",
    ),
]
GraceSeconds = Annotated[
    int, Meta(ge=0, le=limits.GRACE_S, description="How long after its end a period takes late scores.")
]
FlushMs = Annotated[
    int,
    Meta(ge=1, le=limits.FLUSH_MS, description="Buffered: the ranking is fed this often, for very many writes."),
]
KeepDays = Annotated[int, Meta(ge=1, le=limits.KEEP_DAYS, description="null: for ever.")]
RewardName = Annotated[str, Meta(min_length=1, max_length=limits.REWARD_NAME_CHARS, pattern=limits.SLUG_PATTERN)]
WebhookUrl = Annotated[str, Meta(min_length=1, max_length=limits.URL_CHARS, pattern=limits.URL_PATTERN)]
Region = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.REGION_CHARS,
        pattern=limits.SLUG_PATTERN,
        description="Where the user is, such as `eu`: ranked as the segment `region:eu`.",
    ),
]
Circle = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.CIRCLE_CHARS,
        pattern=limits.SLUG_PATTERN,
        description="A guild, a club, friends: ranked as the segment `circle:ID`.",
    ),
]
SchemaVersion = Annotated[str, Meta(min_length=1, max_length=limits.SCHEMA_VERSION_CHARS, pattern=limits.SLUG_PATTERN)]
FieldPath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.PATH_CHARS,
        pattern=limits.PATH_PATTERN,
        description="Names joined by dots, such as `user.id`.",
    ),
]
DeadLetterId = Annotated[str, Meta(pattern=limits.LETTER_ID_PATTERN)]
Reason = Annotated[str, Meta(min_length=1, max_length=limits.REASON_CHARS, pattern=limits.ID_PATTERN)]
Metadata = Annotated[
    dict[str, Any],
    Meta(description=f"Any JSON object of at most {limits.METADATA_BYTES} bytes."),
]


class Body(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What comes in: a field that is not known is an error, not a silence."""


class Answer(Struct, rename="camel", kw_only=True):
    """What goes out."""
