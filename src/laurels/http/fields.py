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
Metadata = Annotated[
    dict[str, Any],
    Meta(description=f"Any JSON object of at most {limits.METADATA_BYTES} bytes."),
]


class Body(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What comes in: a field that is not known is an error, not a silence."""


class Answer(Struct, rename="camel", kw_only=True):
    """What goes out."""
