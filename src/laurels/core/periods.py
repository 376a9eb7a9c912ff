"""Which periods a board needs, and how their ends can move. Pure: the ledger stores the decisions made here."""

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.limits import AHEAD_US
from laurels.core.rewards import Terms
from laurels.core.windows import Period, Span, Window, next_span, span_at, span_from

# How many missed periods of a window are created at once after a time without a server. If more are missing, only those
# that can still receive late scores are created.
MAX_CATCH_UP = 200


def first_spans(windows: Sequence[Window], now: int) -> list[Span]:
    """Return the current span of each window, and those that begin soon."""
    return [span for window in windows for span in _ahead(window, span_from(window, now), now)]


def joining_spans(windows: Sequence[Window], start: int) -> list[Span]:
    """Return the first spans of windows that are added to a running board.

    They count from `start` on, because earlier events were recorded without these windows.
    """
    spans: list[Span] = []
    for window in windows:
        first = span_from(window, start)
        opened = start if first.start is None else max(start, first.start)
        spans += _ahead(window, Span(first.window, first.name, opened, first.end), start)
    return spans


def missing_spans(board: Board, now: int) -> list[Span]:
    """Return the spans to create so that each window has a period for every event that may arrive, and a next one.

    After a long time without a server these are only the first missing ones: create them, then call again. Empty if the
    board has ended.
    """
    end = board.ended_at
    if end is not None and now >= end:
        return []
    spans: list[Span] = []
    # A board that has not started needs the periods from its start on, and none between earlier ones and these.
    has_started, now = board.opened_at(now) == now, board.opened_at(now)
    for window in board.windows:
        spans += _missing_before(window, board.first_period(window.name), now)
        last = board.last_period(window.name)
        if last is not None and last.start is not None and last.start > now + AHEAD_US:
            continue
        if last is not None and last.end is not None and end is not None and last.end >= end:
            continue
        found = _missing(window, last, now, board.grace_s * SECOND_US if has_started else None)
        spans += [span for span in found if end is None or span.start is None or span.start < end]
    return spans


def _missing_before(window: Window, first: Period | None, now: int) -> list[Span]:
    """Return the spans between now and the first period of a window, because the board starts earlier than planned.

    A window that was added to a running board starts between two resets, and has nothing before.
    """
    if first is None or first.start is None or first.start <= now or span_at(window, first.start).start != first.start:
        return []
    spans: list[Span] = []
    span: Span | None = span_from(window, now)
    while span is not None and span.start is not None and span.start < first.start and len(spans) < MAX_CATCH_UP:
        spans.append(span)
        span = next_span(window, span)
    return spans


def _missing(window: Window, last: Period | None, now: int, grace_us: int | None) -> list[Span]:
    """Return the spans of a window after its last period, at most MAX_CATCH_UP.

    `grace_us` None: the board has not started, so spans that end before `now` are skipped.
    """
    if last is None:
        return list(islice(_ahead(window, span_from(window, now), now), MAX_CATCH_UP))
    found = list(islice(_ahead(window, last, now), 1, MAX_CATCH_UP + 1))
    if len(found) == MAX_CATCH_UP or grace_us is None:
        # Skip periods whose grace time is over: no user could score in them, and no user can now.
        recent = span_from(window, now - (grace_us or 0))
        if recent.start is not None and last.end is not None and recent.start >= last.end:
            found = list(islice(_ahead(window, recent, now), MAX_CATCH_UP))
    return found


def terms_of(board: Board, period: Period) -> str:
    """Return the terms of a period's final ranks, as JSON.

    A period that was cut short because its board was archived has no rewards.
    """
    archived = board.archived_at
    cut_short = archived is not None and (period.end or archived + 1) > archived and board.ended_at == archived
    rewards = () if cut_short else tuple(each for each in board.rewards if each.is_for(period.window))
    return msgspec.json.encode(Terms(board.capacity_of(period.window), rewards)).decode()


def with_terms_kept(board: Board, now: int) -> Board:
    """Return the board with the terms of its ended periods fixed, so that later changes don't affect them."""

    def kept(period: Period) -> Period:
        end = board.end_of(period)
        is_over = end is not None and now >= end and period.terms is None
        return replace(period, terms=terms_of(board, period)) if is_over else period

    return replace(board, periods=tuple(kept(period) for period in board.periods))


def with_period(board: Board, changed: Period) -> Board:
    return replace(board, periods=tuple(changed if each.id == changed.id else each for each in board.periods))


def with_later_end(board: Board, period: Period, end: int) -> Board:
    """Return the board with the end of a period moved. The next period of the window begins there."""

    def with_end(each: Period) -> Period:
        if each.id == period.id:
            return replace(each, end=end)
        follows = each.window == period.window and each.start == period.end
        return replace(each, start=end) if follows else each

    return replace(board, periods=tuple(with_end(each) for each in board.periods))


def next_period(board: Board, period: Period) -> Period | None:
    """Return the period that begins where another one of its window ends."""
    return next((each for each in board.periods if each.window == period.window and each.start == period.end), None)


def opens_at(board: Board, at: int) -> int | None:
    """Return when a window of the board opens next, if all of them are closed at an instant; else None."""
    opens = []
    for window in board.windows:
        span = span_from(window, at)
        if span.start is None or span.start <= at:
            return None
        opens.append(span.start)
    return min(opens)


def _ahead(window: Window, first: Span | Period, now: int) -> Iterator[Span]:
    """Yield `first` and the spans after it, up to one that begins later than any event that may arrive now."""
    span: Span | None = Span(first.window, first.name, first.start, first.end)
    while span is not None:
        yield span
        if span.start is not None and span.start > now + AHEAD_US:
            return
        span = next_span(window, span)
