"""Period arithmetic, compared with a simulated wall clock that is read minute by minute."""

import datetime as dt
from collections.abc import Iterator
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laurels.core.instants import to_datetime, to_us
from laurels.core.windows import (
    Day,
    Period,
    Span,
    Window,
    check_window,
    next_span,
    rest_of,
    shortest_reset_s,
    span_at,
    span_from,
)

MINUTE = dt.timedelta(minutes=1)

# Zones with unusual rules, with times at which each changed its clocks.
ODD = {
    "Australia/Lord_Howe": ["2026-04-04T15:00", "2026-10-03T15:30"],  # half an hour
    "Asia/Kathmandu": ["1985-12-31T18:30", "2026-06-01T00:00"],  # 5:30 to 5:45, once
    "Africa/Casablanca": ["2026-02-15T02:00", "2026-03-22T02:00"],  # back for Ramadan, an hour ahead otherwise
    "Pacific/Apia": ["2011-12-30T10:00", "2011-09-24T14:00"],  # no 30 December
    "America/Sao_Paulo": ["2018-11-04T03:00", "2018-02-18T02:00"],  # at midnight
    "Asia/Beirut": ["2022-03-26T22:00", "2022-10-29T21:00"],  # at midnight
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00"],
    "America/New_York": ["2026-03-08T07:00", "2026-11-01T06:00"],
    "America/St_Johns": ["2006-04-02T03:31", "2006-10-29T02:31"],  # one minute past midnight
    "Antarctica/Troll": ["2026-03-29T01:00", "2026-10-25T01:00"],  # two hours
    "Africa/Monrovia": ["1972-01-07T00:44", "1972-01-07T01:00"],  # 44 minutes and 30 seconds
    "UTC": ["2024-02-29T00:00", "2025-12-31T23:59"],
}


class WallClock:
    """A wall clock of a zone, which remembers only the latest time that it showed."""

    def __init__(self, zone: str) -> None:
        self.zone = ZoneInfo(zone)

    def shows(self, moment: dt.datetime) -> dt.datetime:
        return moment.astimezone(self.zone).replace(tzinfo=None)

    def minutes(self, start: dt.datetime, end: dt.datetime) -> Iterator[tuple[dt.datetime, list[dt.datetime]]]:
        """Yield each instant at which the clock reaches whole minutes for the first time, with those minutes."""
        # Start early enough that the clock has already shown every time that it will repeat.
        moment = (start - dt.timedelta(hours=27)).replace(second=0)
        latest = self.shows(moment) - MINUTE
        # If the offset has seconds, minutes on the wall clock do not start with those of UTC.
        offset: dt.timedelta = moment.astimezone(self.zone).utcoffset() or dt.timedelta(0)
        step = MINUTE if offset.seconds % 60 == 0 and to_second_offset(self.zone, end) else dt.timedelta(seconds=1)
        while moment < end:
            shown = self.shows(moment).replace(second=0)
            passed = []
            while latest.replace(second=0) < shown:
                latest = latest.replace(second=0) + MINUTE
                passed.append(latest)
            if moment >= start and passed:
                yield moment, passed
            moment += step


def to_second_offset(zone: ZoneInfo, moment: dt.datetime) -> bool:
    offset = moment.astimezone(zone).utcoffset() or dt.timedelta(0)
    return offset.seconds % 60 == 0


def is_reset(window: Window, wall: dt.datetime) -> bool:
    """Return True if a window resets at a wall-clock time; knows only the cron lines of these tests."""
    match window.name:
        case "daily":
            return (wall.hour, wall.minute) == (0, 0)
        case "weekly":
            return (wall.hour, wall.minute) == (0, 0) and wall.strftime("%A").lower() == window.start_day
        case "monthly":
            return (wall.day, wall.hour, wall.minute) == (1, 0, 0)
    minute, hour = (window.cron or "").split()[:2]
    minutes = {int(minute)} if minute.isdigit() else {0, 15, 30, 45}
    return wall.minute in minutes and (hour == "*" or wall.hour == int(hour))


windows = st.one_of(
    st.just(("daily", None)),
    st.just(("weekly", None)),
    st.just(("monthly", None)),
    st.sampled_from(["30 2 * * *", "*/15 * * * *", "0 * * * *", "15 0 * * *", "45 23 * * *"]).map(
        lambda line: ("mine", line)
    ),
)


@settings(max_examples=120, deadline=None)
@given(
    where=st.sampled_from([(zone, change) for zone, changes in ODD.items() for change in changes]),
    kind=windows,
    day=st.sampled_from(Day),
    offset_s=st.integers(-30 * 3600, 30 * 3600),
)
def test_period_of_any_instant_matches_the_wall_clock(
    where: tuple[str, str], kind: tuple[str, str | None], day: Day, offset_s: int
) -> None:
    zone, change = where
    name, cron = kind
    window = Window(name, zone, day if name == "weekly" else Day.MONDAY, cron)
    around = dt.datetime.fromisoformat(change).replace(tzinfo=dt.UTC) + dt.timedelta(seconds=offset_s)
    start, end = around - dt.timedelta(hours=30), around + dt.timedelta(hours=30)
    resets = [
        (moment, [wall for wall in passed if is_reset(window, wall)][-1])
        for moment, passed in WallClock(zone).minutes(start, end)
        if any(is_reset(window, wall) for wall in passed)
    ]
    span = span_at(window, to_us(around))
    assert span.start is not None
    assert span.end is not None
    before = [(moment, wall) for moment, wall in resets if moment <= around]
    after = [moment for moment, _ in resets if moment > around]
    if before:
        moment, wall = before[-1]
        assert to_datetime(span.start) == moment
        assert span.name.startswith(f"{name}-{wall:%Y-%m}")
        if name != "monthly":
            assert f"{wall:%Y-%m-%d}" in span.name
    else:
        assert to_datetime(span.start) < start
    assert to_datetime(span.end) == after[0] if after else to_datetime(span.end) >= end


@settings(max_examples=150, deadline=None)
@given(
    zone=st.sampled_from(list(ODD)),
    kind=windows,
    at=st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2090, 1, 1)),  # noqa: DTZ001 - drawn without a zone
)
def test_periods_follow_each_other_without_gap_or_overlap(
    zone: str, kind: tuple[str, str | None], at: dt.datetime
) -> None:
    window = Window(kind[0], zone, cron=kind[1])
    span = span_at(window, to_us(at.replace(tzinfo=dt.UTC)))
    names = set()
    for _ in range(8):
        assert span.start is not None
        assert span.end is not None
        assert span.start < span.end
        assert span.name not in names
        names.add(span.name)
        # Every instant of a period leads to the same period.
        assert span_at(window, span.start) == span
        assert span_at(window, span.end - 1) == span
        assert span_at(window, (span.start + span.end) // 2) == span
        following = next_span(window, span)
        assert following is not None
        assert following == span_at(window, span.end)
        span = following


@given(
    zone=st.sampled_from(list(ODD)),
    line=st.sampled_from(["0 18 * * fri", "30 0 * * *", "0 0 1 * *", "15 */6 * * *"]),
    opened=st.sampled_from([60, 3600, 5 * 3600]),
    at=st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2090, 1, 1)),  # noqa: DTZ001 - drawn without a zone
)
def test_window_is_open_for_its_time_after_every_reset(zone: str, line: str, opened: int, at: dt.datetime) -> None:
    whole, part = Window("x", zone, cron=line), Window("x", zone, cron=line, open_s=opened)
    reset = span_at(whole, to_us(at.replace(tzinfo=dt.UTC)))
    span = span_at(part, to_us(at.replace(tzinfo=dt.UTC)))
    for _ in range(5):
        assert reset.start is not None
        assert reset.end is not None
        assert span == Span("x", reset.name, reset.start, min(reset.end, reset.start + opened * 1_000_000))
        assert span.end is not None
        following, reset_after = next_span(part, span), next_span(whole, reset)
        assert following is not None
        assert reset_after is not None
        for instant in (reset.start, span.end - 1, span.end, reset.end - 1):
            assert span_at(part, instant) == span_at(part, reset.start)
            assert span_from(part, instant) == (span if instant < span.end else following)
        span, reset = following, reset_after


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Pacific/Apia", "2011-12-29", 24),
        ("Pacific/Apia", "2011-12-31", 24),
        ("Antarctica/Troll", "2026-03-29", 22),
    ],
)
def test_daily_periods_have_the_length_of_the_day_in_their_zone(zone: str, day: str, hours: float) -> None:
    noon = dt.datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo(zone))
    span = span_at(Window("daily", zone), to_us(noon))
    assert span.name == f"daily-{day}"
    assert span.start is not None
    assert span.end is not None
    assert (span.end - span.start) / 3_600_000_000 == hours


@pytest.mark.parametrize(
    ("window", "at", "name", "start", "end"),
    [
        (Window("monthly"), "2024-02-29T23:59:59.999999", "monthly-2024-02", "2024-02-01T00:00", "2024-03-01T00:00"),
        (Window("monthly"), "2025-12-31T23:59", "monthly-2025-12", "2025-12-01T00:00", "2026-01-01T00:00"),
        (Window("weekly"), "2026-01-01T00:00", "weekly-2025-12-29", "2025-12-29T00:00", "2026-01-05T00:00"),
        (
            Window("weekly", start_day=Day.SUNDAY),
            "2026-01-03T12:00",
            "weekly-2025-12-28",
            "2025-12-28T00:00",
            "2026-01-04T00:00",
        ),
        (
            Window("season", "Asia/Seoul", cron="0 9 1 */3 *"),
            "2026-02-14T00:00",
            "season-2026-01-01T0900",
            "2026-01-01T00:00",
            "2026-04-01T00:00",
        ),
        (
            Window("leap", cron="0 0 29 2 *"),
            "2026-01-01T00:00",
            "leap-2024-02-29",
            "2024-02-29T00:00",
            "2028-02-29T00:00",
        ),
    ],
)
def test_periods_are_correct_at_month_ends_leap_days_and_year_ends(
    window: Window, at: str, name: str, start: str, end: str
) -> None:
    def instant(text: str) -> int:
        return to_us(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC))

    span = span_at(window, instant(at))
    assert (span.name, span.start, span.end) == (name, instant(start), instant(end))


def test_all_time_period_has_no_start_and_no_end() -> None:
    span = span_at(Window("all"), 0)
    assert (span.name, span.start, span.end) == ("all", None, None)
    assert next_span(Window("all"), span) is None


def test_period_starts_at_the_previous_end_even_if_the_calendar_differs() -> None:
    """For example, the rules of a zone changed after the period was created."""
    window = Window("daily")
    noon = to_us(dt.datetime(2026, 5, 5, 12, tzinfo=dt.UTC))
    first = span_at(window, noon)
    moved = Period(1, "daily", first.name, first.start, noon)
    following = next_span(window, moved)
    assert following is not None
    assert (following.start, following.end, following.name) == (noon, first.end, "daily-2026-05-05.2")
    again = next_span(window, Period(2, "daily", following.name, noon, noon + 1))
    assert again is not None
    assert (again.start, again.name) == (noon + 1, "daily-2026-05-05.3")
    rest = rest_of(Period(3, "daily", again.name, again.start, again.end), noon + 9)
    assert rest == Span("daily", "daily-2026-05-05.4", noon + 9, first.end)


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (Window("x", cron="0 0 30 2 *"), "30 2"),
        (Window("x", cron="0 0 * *"), "five fields"),
        (Window("x", cron="0 0 * * * *"), "five fields"),
        (Window("x", cron="@reboot"), "@hourly"),
        (Window("x", cron="*/90 * * * *"), "step 90"),
        (Window("x", cron="0 0-12/24 * * *"), "step 24"),
        (Window("x", cron="0 0 */32 * *"), "step 32"),
        (Window("x", cron="0 0 1 */13 *"), "step 13"),
        (Window("x", cron="0 0 * * 1,*/8"), "step 8"),
        (Window("x", cron="60 0 * * *"), "minute"),
        (Window("daily", "Mars/Olympus"), "time zone"),
        (Window("daily", "../../etc/passwd"), "time zone"),
        (Window("daily", ""), "time zone"),
        (Window("daily", open_s=24 * 3600), "less than the shortest time between two resets, 86400 s"),
        (Window("all", open_s=60), "no resets"),
        (Window("daily", "localtime"), "time zone"),
    ],
)
def test_invalid_window_is_explained_in_the_error(window: Window, words: str) -> None:
    assert words in (check_window(window) or "")


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("@hourly", "0 * * * *"),
        (" @Daily", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@annually", "0 0 1 1 *"),
        ("0 9 * January-March monday,Friday", "0 9 * 1-3 1,5"),
        ("0 0 * MAY sunday#2", "0 0 * 5 0#2"),
    ],
)
def test_words_in_cron_expressions_mean_numbers(words: str, numbers: str) -> None:
    at = to_us(dt.datetime(2026, 5, 5, 12, tzinfo=dt.UTC))
    one, other = Window("x", cron=words), Window("x", cron=numbers)
    assert check_window(one) is None
    for _ in range(5):
        found = span_at(one, at)
        assert found == span_at(other, at)
        assert found.end is not None
        at = found.end


@pytest.mark.parametrize(
    "line", ["0 0 * * mon", "*/5 9-17 * * 1-5", "*/59 */23 */31 */12 *", "0 0 L * *", "0 0 LW * *", "0 0 29 2 *"]
)
def test_recurring_cron_expressions_are_accepted(line: str) -> None:
    assert check_window(Window("x", "Asia/Seoul", cron=line)) is None


@pytest.mark.parametrize(
    ("window", "seconds"),
    [
        (Window("all"), None),
        (Window("daily"), 86_400),
        (Window("weekly"), 7 * 86_400),
        (Window("monthly"), 28 * 86_400),
        (Window("w", cron="* * * * *"), 60),
        (Window("w", cron="*/7 * * * *"), 240),
        (Window("w", cron="0,5 3 * * sun"), 300),
        (Window("w", cron="0 0 1 * mon"), 86_400),
        (Window("w", cron="0 0 1 1 *"), 365 * 86_400),
        (Window("w", cron="0 0 29 2 *"), (4 * 365 + 1) * 86_400),
    ],
)
def test_shortest_time_between_resets(window: Window, seconds: int | None) -> None:
    assert shortest_reset_s(window) == seconds
