"""Instants: UTC, in whole microseconds since 1970 as an int. `datetime` appears only at the edges."""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND_US = 1_000_000
# 0001-01-01T00:00:00Z, the first instant that `datetime` can represent.
FIRST_US = -62_135_596_800_000_000
# 9999-12-31T23:59:59.999999Z, the last instant that `datetime` can represent.
LAST_US = 253_402_300_799_999_999


def to_us(moment: datetime) -> int:
    """Return an instant in microseconds. Exact, unlike `timestamp()`, which returns a float."""
    return (moment - EPOCH) // MICROSECOND


def to_datetime(us: int) -> datetime:
    # By position, because keywords take twice as long.
    return EPOCH + timedelta(0, 0, us)
