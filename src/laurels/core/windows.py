"""Windows and periods. A window recurs; a period is one concrete span `[start, end)` of it.

Every window but `all` is a cron line in a time zone, and its periods lie between two resets. A reset falls on the first
instant at which the clocks of the zone show its time, or a later one: a time that clocks jump over falls on the instant
of the jump, and a time that they show twice on the first of the two. So every instant is in exactly one period, and
days are 23, 24 or 25 hours long.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from msgspec import Struct

from laurels.core.instants import to_datetime, to_us

ALL = "all"
DAILY = "daily"
WEEKLY = "weekly"
MONTHLY = "monthly"

_MINUTE = timedelta(minutes=1)
_SECOND = timedelta(seconds=1)
_HOURS = [timedelta(hours=hours) for hours in range(1, 26)]
# A cron line that never comes (the 30th of February) is refused; one that comes every leap year is fine.
_LOOK_AHEAD = timedelta(days=366 * 9)


class Day(StrEnum):
    MONDAY = "monday"
    TUESDAY = "tuesday"
    WEDNESDAY = "wednesday"
    THURSDAY = "thursday"
    FRIDAY = "friday"
    SATURDAY = "saturday"
    SUNDAY = "sunday"


class Window(Struct, frozen=True, omit_defaults=True):
    """`cron`: five fields, for windows other than `all`, `daily`, `weekly` and `monthly`."""

    name: str
    time_zone: str = "UTC"
    start_day: Day = Day.MONDAY
    cron: str | None = None

    @property
    def line(self) -> str | None:
        """The cron line of its resets; None: it has none."""
        match self.name:
            case "all":
                return None
            case "daily":
                return "0 0 * * *"
            case "weekly":
                return f"0 0 * * {self.start_day[:3]}"
            case "monthly":
                return "0 0 1 * *"
            case _:
                assert self.cron is not None, "a window of one's own has a cron line"
                return self.cron


ALL_TIME = Window(ALL)


class Span(Struct, frozen=True):
    """A period that may not exist yet: its readable name and its instants."""

    window: str
    name: str
    start: int | None
    end: int | None


class PeriodState(StrEnum):
    # Takes the scores of its time, be it to come, going on, or over and in its grace time.
    OPEN = "open"
    # Takes no more, and its final ranks are being written.
    CLOSED = "closed"
    FROZEN = "frozen"
    # Its final ranks were kept as long as its board says.
    PRUNED = "pruned"
    # Made to set the final ranks of another one right, and not ready yet.
    REFREEZING = "refreezing"
    # Was final, and another one stands in its place.
    SUPERSEDED = "superseded"
    # The same, and its final ranks were kept as long as its board says.
    DISCARDED = "discarded"


class Period(Struct, frozen=True):
    """A period as the ledger has it."""

    id: int
    window: str
    name: str
    start: int | None
    end: int | None
    state: PeriodState = PeriodState.OPEN
    # What its final ranks were, or are being, made with: see service/freezing.py.
    terms: str | None = None
    total_users: int | None = None
    frozen_at: int | None = None
    # The period whose final ranks it sets right.
    replaces: int | None = None

    def contains(self, at: int) -> bool:
        return (self.start is None or at >= self.start) and (self.end is None or at < self.end)

    @property
    def is_final(self) -> bool:
        return self.state in {PeriodState.FROZEN, PeriodState.SUPERSEDED} or self.is_pruned

    @property
    def is_pruned(self) -> bool:
        return self.state in {PeriodState.PRUNED, PeriodState.DISCARDED}

    @property
    def is_replaced(self) -> bool:
        return self.state in {PeriodState.SUPERSEDED, PeriodState.DISCARDED}


def check_window(window: Window) -> str | None:
    """What is wrong with the cron line or the time zone of a window, in words; None: nothing."""
    try:
        zone_of(window.time_zone)
    except (KeyError, ValueError, OSError):
        return f"{window.time_zone!r} is not an IANA time zone, such as Europe/Berlin"
    if window.cron is None:
        return None
    if len(window.cron.split()) != 5:
        return "a cron line has five fields: minute, hour, day of month, month, day of week"
    try:
        now = datetime(2024, 1, 1)  # noqa: DTZ001 - a wall clock
        first = next(CronSim(window.cron, now), None)
    except (CronSimError, ValueError, OverflowError) as error:
        return f"{window.cron!r} can't be used: {str(error).lower()}"
    if first is None or first - now > _LOOK_AHEAD:
        return f"{window.cron!r} never comes"
    return None


def span_at(window: Window, at: int) -> Span:
    """The span of a window that contains an instant."""
    line = window.line
    if line is None:
        return Span(window.name, window.name, None, None)
    name, start, end = _resets(line, window.time_zone, at)
    return Span(window.name, f"{window.name}-{_stamp(window, name)}", start, end)


def next_span(window: Window, before: Span | Period) -> Span | None:
    """The span after another one. It begins where that one ends, also if the rules of the time zone changed since, or
    the end was moved.
    """
    if before.end is None:
        return None
    span = span_at(window, before.end)
    return Span(span.window, _next_name(span.name, before.name), before.end, span.end)


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    if name not in _zones():
        raise KeyError(name)
    return ZoneInfo(name)


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    # The zone of a machine is another one on the next.
    return frozenset(available_timezones() - {"localtime", "posixrules", "Factory"})


def rest_of(period: Period, start: int) -> Span:
    """What is left of a period that is closed early: up to the reset that it was made for."""
    return Span(period.window, _counted_up(period.name), start, period.end)


def are_of_one(one: Period, other: Period) -> bool:
    """Return True if two periods share the name of one span of the calendar, in which resets were made by hand."""
    return _split_name(one.name)[0] == _split_name(other.name)[0]


def _next_name(name: str, before: str) -> str:
    """Where the rules of a zone changed, the calendar's own span may have begun earlier, and even have that name."""
    return _counted_up(before) if _split_name(before)[0] == name else name


def _counted_up(name: str) -> str:
    base, number = _split_name(name)
    return f"{base}.{number + 1}"


def _split_name(name: str) -> tuple[str, int]:
    """The name of a span of the calendar, and which part of it this is. The name of a window may have dots, too."""
    base, dot, number = name.rpartition(".")
    return (base, int(number)) if dot and number.isascii() and number.isdigit() else (name, 1)


def _stamp(window: Window, nominal: datetime) -> str:
    if window.name == MONTHLY:
        return f"{nominal:%Y-%m}"
    return f"{nominal:%Y-%m-%d}" if nominal.hour == nominal.minute == 0 else f"{nominal:%Y-%m-%dT%H%M}"


@lru_cache(maxsize=4096)
def _resets(line: str, time_zone: str, at: int) -> tuple[datetime, int, int]:
    """The last reset up to an instant, as its wall clock and its instant, and the instant of the next one."""
    zone = zone_of(time_zone)
    latest = _latest_wall(zone, to_datetime(at))
    for nominal in CronSim(line, latest.replace(second=0, microsecond=0) + _MINUTE, reverse=True):
        start = _first_instant(zone, nominal)
        if start <= at:
            break
    else:
        raise AssertionError(f"{line!r} was checked to come again and again")
    for following in CronSim(line, nominal):
        end = _first_instant(zone, following)
        if end > at:
            return nominal, start, end
    raise AssertionError(f"{line!r} was checked to come again and again")


def _latest_wall(zone: ZoneInfo, moment: datetime) -> datetime:
    """The latest time that the clocks have shown up to an instant. They show less just after they were put back."""
    now = _wall(zone, moment)
    offset = _offset(zone, moment)
    ahead = max(_offset(zone, moment - hours) - offset for hours in _HOURS)
    return now + max(ahead, timedelta(0))


def _first_instant(zone: ZoneInfo, wall: datetime) -> int:
    """The first instant at which the clocks show this time or a later one."""
    # fold=0 is the first of two, and for a time that does not exist the offset from before the jump.
    first = wall.replace(tzinfo=zone, fold=0)
    moment = first.astimezone(UTC)
    if _wall(zone, moment) != wall:
        # The jump lies between the two readings of this time; at its end the clocks are past it.
        low, high = wall.replace(tzinfo=zone, fold=1).astimezone(UTC), moment
        while high - low > _SECOND:
            middle = low + (high - low) // 2
            middle = middle.replace(microsecond=0)
            low, high = (low, middle) if _wall(zone, middle) >= wall else (middle, high)
        moment = high
    return to_us(moment)


def _wall(zone: ZoneInfo, moment: datetime) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    offset: Any = moment.astimezone(zone).utcoffset()
    return timedelta(0) if offset is None else offset
