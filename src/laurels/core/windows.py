"""Windows and periods. A window recurs; a period is one concrete span `[start, end)` of it.

Every window except `all` is a cron expression in a time zone; its periods lie between two resets. A reset happens at
the first instant at which the clocks of the zone show its time or a later one: a time that the clocks skip becomes the
instant of the jump, and of a time that they show twice the first occurrence counts. So every instant is in exactly one
period, and days are 23, 24 or 25 hours long.
"""

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from msgspec import Struct

from laurels.core.instants import SECOND_US, to_datetime, to_us

ALL = "all"
DAILY = "daily"
WEEKLY = "weekly"
MONTHLY = "monthly"

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * sun",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FULL_NAME = re.compile(
    r"\b(?:january|february|march|april|june|july|august|september|october|november|december"
    r"|monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b",
    re.IGNORECASE,
)
# The fields of a cron expression, each with its largest value.
_FIELDS = (("minute", 59), ("hour", 23), ("day of month", 31), ("month", 12), ("day of week", 7))
_STEP = re.compile(r"/(\d+)")
_MINUTE = timedelta(minutes=1)
_SECOND = timedelta(seconds=1)
_HOURS = [timedelta(hours=hours) for hours in range(1, 26)]
# Cron expressions that never match (February 30) are rejected; those that match every leap year are accepted.
_LOOK_AHEAD = timedelta(days=366 * 9)
# The number of resets in which the shortest time between two is looked for: an hour of them and the step to the next
# one, or years of monthly ones.
_COMPARED_RESETS = 100


class Day(StrEnum):
    MONDAY = "monday"
    TUESDAY = "tuesday"
    WEDNESDAY = "wednesday"
    THURSDAY = "thursday"
    FRIDAY = "friday"
    SATURDAY = "saturday"
    SUNDAY = "sunday"


@lru_cache(maxsize=4096)
def plain_cron(text: str) -> str:
    """Return a cron expression with five fields of numbers and short names: for `@hourly`, and with full names."""
    text = _NICKNAMES.get(text.strip().lower(), text)
    return _FULL_NAME.sub(lambda name: name[0][:3], text)


class Window(Struct, frozen=True, omit_defaults=True):
    """A recurring span of a board.

    `cron` has five fields. It is set for windows other than `all`, `daily`, `weekly` and `monthly`. `capacity` None:
    that of the board. `open_s`: a period ends this many seconds after the reset; None: at the next reset. `attempts`:
    how many scores of a user count in a period; None: all.
    """

    name: str
    time_zone: str = "UTC"
    start_day: Day = Day.MONDAY
    cron: str | None = None
    capacity: int | None = None
    open_s: int | None = None
    attempts: int | None = None

    @property
    def line(self) -> str | None:
        """Return the cron expression of the resets; None if the window has no resets."""
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
                assert self.cron is not None, "a custom window has a cron expression"
                return plain_cron(self.cron)


ALL_TIME = Window(ALL)


class Span(Struct, frozen=True):
    """A period that may not exist yet: its readable name and its instants."""

    window: str
    name: str
    start: int | None
    end: int | None


class PeriodState(StrEnum):
    # Accepts scores of its time. It is in the future, current, or over and in its grace time.
    OPEN = "open"
    # Accepts no more scores; its final ranks are being written.
    CLOSED = "closed"
    FROZEN = "frozen"
    # Was frozen. Its final ranks are removed, because the board's retention time (`keep_periods_days`) is over.
    PRUNED = "pruned"
    # Is being written to correct the final ranks of another period.
    REFREEZING = "refreezing"
    # Was frozen. A corrected period has replaced it.
    SUPERSEDED = "superseded"
    # Was superseded. Its final ranks are removed, because the board's retention time is over.
    DISCARDED = "discarded"


class Period(Struct, frozen=True):
    """A period as the ledger stores it."""

    id: int
    window: str
    name: str
    start: int | None
    end: int | None
    state: PeriodState = PeriodState.OPEN
    # The terms of its final ranks as JSON, fixed after it ends: see core/rewards.py and service/seasons/freezer.py.
    terms: str | None = None
    total_users: int | None = None
    frozen_at: int | None = None
    # The id of the period whose final ranks this one corrects.
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
    """Return what is wrong with the cron expression, the time zone or `open_s` of a window, as text; or None."""
    try:
        zone_of(window.time_zone)
    except (KeyError, ValueError, OSError):
        return f"{window.time_zone!r} is not an IANA time zone such as Europe/Berlin"
    wrong = None if window.cron is None else _cron_fault(window.cron)
    if wrong is None and window.open_s is not None:
        interval = shortest_reset_s(window)
        if interval is None:
            return f"{window.name!r} has no resets, so it can't be open for a part of the time"
        if window.open_s >= interval:
            return f"openSeconds must be less than the shortest time between two resets, {interval} s"
    return wrong


def _cron_fault(text: str) -> str | None:
    plain = plain_cron(text)
    fields = plain.split()
    if len(fields) != len(_FIELDS):
        nicknames = ", ".join(_NICKNAMES)
        return f"a cron expression has five fields: minute, hour, day of month, month, day of week; or is {nicknames}"
    for (name, largest), field in zip(_FIELDS, fields, strict=True):
        for step in _STEP.findall(field):
            if int(step) > largest:
                return f"the step {step} is larger than any {name}, so {text!r} would not reset as it says"
    try:
        now = datetime(2024, 1, 1)  # noqa: DTZ001 - a wall clock
        first = next(CronSim(plain, now), None)
    except (CronSimError, ValueError, OverflowError) as error:
        return f"{text!r} is not a valid cron expression: {str(error).lower()}"
    if first is None or first - now > _LOOK_AHEAD:
        return f"{text!r} never matches a date"
    return None


def shortest_reset_s(window: Window) -> int | None:
    """Return the shortest time between two resets of a window, in seconds of a wall clock; None without resets."""
    return None if window.line is None else _shortest_reset_s(window.line)


@lru_cache(maxsize=4096)
def _shortest_reset_s(line: str) -> int:
    now = datetime(2024, 1, 1)  # noqa: DTZ001 - a wall clock
    resets = CronSim(line, now)
    last, shortest = next(resets), _LOOK_AHEAD
    for following in islice(resets, _COMPARED_RESETS):
        shortest, last = min(shortest, following - last), following
        if shortest <= _MINUTE or following - now > _LOOK_AHEAD:
            break
    return int(shortest.total_seconds())


def span_at(window: Window, at: int) -> Span:
    """Return the span of a window that contains an instant; if the window is closed then, the span before."""
    line = window.line
    if line is None:
        return Span(window.name, window.name, None, None)
    name, start, end = _resets(line, window.time_zone, at)
    if window.open_s is not None:
        end = min(end, start + window.open_s * SECOND_US)
    return Span(window.name, f"{window.name}-{_stamp(window, name)}", start, end)


def span_from(window: Window, at: int) -> Span:
    """Return the span of a window that contains an instant; if the window is closed then, the span after."""
    span = span_at(window, at)
    return span if span.end is None or at < span.end else _span_after(window, at)


def _span_after(window: Window, at: int) -> Span:
    """Return the span that begins at the first reset after an instant."""
    assert window.line is not None, "a window that is closed at times has resets"
    return span_at(window, _resets(window.line, window.time_zone, at)[2])


def next_span(window: Window, before: Span | Period) -> Span | None:
    """Return the span after another one; None if that one has no end.

    It begins where `before` ends, even if the rules of the time zone changed or the end was moved; if the window is
    closed then, at the next reset.
    """
    if before.end is None:
        return None
    span = span_at(window, before.end)
    if window.open_s is not None:
        if span.start != before.end:
            span = _span_after(window, before.end)
        return Span(span.window, _next_name(span.name, before.name), span.start, span.end)
    return Span(span.window, _next_name(span.name, before.name), before.end, span.end)


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    if name not in _zones():
        raise KeyError(name)
    return ZoneInfo(name)


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    # Leave out names that mean different zones on different machines.
    return frozenset(available_timezones() - {"localtime", "posixrules", "Factory"})


def rest_of(period: Period, start: int) -> Span:
    """Return the rest of a period that is closed early at `start`: up to the reset at which it would have ended."""
    return Span(period.window, _counted_up(period.name), start, period.end)


def are_of_one(one: Period, other: Period) -> bool:
    """Return True if two periods are parts of one calendar span that was divided by manual resets."""
    return _split_name(one.name)[0] == _split_name(other.name)[0]


def _next_name(name: str, before: str) -> str:
    """Return the name of the span after `before`.

    If the rules of a zone changed, the calendar span may have begun earlier and have the name of `before`. Then the
    next part number is used.
    """
    return _counted_up(before) if _split_name(before)[0] == name else name


def _counted_up(name: str) -> str:
    base, number = _split_name(name)
    return f"{base}.{number + 1}"


def _split_name(name: str) -> tuple[str, int]:
    """Return the name of a calendar span and the number of the part that `name` is.

    The name of a window may also contain dots.
    """
    base, dot, number = name.rpartition(".")
    return (base, int(number)) if dot and number.isascii() and number.isdigit() else (name, 1)


def _stamp(window: Window, nominal: datetime) -> str:
    if window.name == MONTHLY:
        return f"{nominal:%Y-%m}"
    return f"{nominal:%Y-%m-%d}" if nominal.hour == nominal.minute == 0 else f"{nominal:%Y-%m-%dT%H%M}"


@lru_cache(maxsize=4096)
def _resets(line: str, time_zone: str, at: int) -> tuple[datetime, int, int]:
    """Return the wall clock time and the instant of the last reset up to `at`, and the instant of the next one."""
    zone = zone_of(time_zone)
    latest = _latest_wall(zone, to_datetime(at))
    for nominal in CronSim(line, latest.replace(second=0, microsecond=0) + _MINUTE, reverse=True):
        start = _first_instant(zone, nominal)
        if start <= at:
            break
    else:
        raise AssertionError(f"{line!r} does not recur, but check_window accepted it")
    for following in CronSim(line, nominal):
        end = _first_instant(zone, following)
        if end > at:
            return nominal, start, end
    raise AssertionError(f"{line!r} does not recur, but check_window accepted it")


def _latest_wall(zone: ZoneInfo, moment: datetime) -> datetime:
    """Return the latest wall clock time shown up to an instant.

    It is later than the present wall clock time just after the clocks were set back.
    """
    now = _wall(zone, moment)
    offset = _offset(zone, moment)
    ahead = max(_offset(zone, moment - hours) - offset for hours in _HOURS)
    return now + max(ahead, timedelta(0))


def _first_instant(zone: ZoneInfo, wall: datetime) -> int:
    """Return the first instant at which the clocks show this time or a later one."""
    # fold=0 is the first of two occurrences; for a time that does not exist it uses the offset before the jump.
    first = wall.replace(tzinfo=zone, fold=0)
    moment = first.astimezone(UTC)
    if _wall(zone, moment) != wall:
        # The jump lies between the two readings of this time; after it the clocks show a later time.
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
