"""Which periods a board needs, and how their ends may be moved. Pure: what is decided here, the ledger stores."""

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.core.instants import SECOND_US
from laurels.core.limits import AHEAD_US
from laurels.core.rewards import Terms
from laurels.core.windows import Period, Span, Window, next_span, span_at

# What a window missed while nobody served it is made up for, so many periods of it. Of more, only those that may still
# get late scores; and no more of them at once.
MADE_UP_FOR = 200


def first_spans(windows: Sequence[Window], now: int) -> list[Span]:
    """The present period of each window, and what comes soon."""
    return [span for window in windows for span in _ahead(window, span_at(window, now), now)]


def joining_spans(windows: Sequence[Window], start: int) -> list[Span]:
    """The same for windows that join a running board: they count from an instant on, for what came before is there
    already.
    """
    spans: list[Span] = []
    for window in windows:
        first = span_at(window, start)
        spans += _ahead(window, Span(first.window, first.name, start, first.end), start)
    return spans


def missing_spans(board: Board, now: int) -> list[Span]:
    """What is to be made so that each window has the next period, and every time that an event may have.

    After a long time without a server these are only the first: ask again when they are made.
    """
    end = board.ended_at
    if end is not None and now >= end:
        return []
    spans: list[Span] = []
    for window in board.windows:
        last = board.last_period(window.name)
        if last is not None and last.start is not None and last.start > now + AHEAD_US:
            continue
        if last is not None and last.end is not None and end is not None and last.end >= end:
            continue
        found = _missing(window, last, now, board.grace_s * SECOND_US)
        spans += [span for span in found if end is None or span.start is None or span.start < end]
    return spans


def _missing(window: Window, last: Period | None, now: int, grace_us: int) -> list[Span]:
    """The periods of a window after its last one."""
    if last is None:
        return list(islice(_ahead(window, span_at(window, now), now), MADE_UP_FOR))
    found = list(islice(_ahead(window, last, now), 1, MADE_UP_FOR + 1))
    if len(found) == MADE_UP_FOR:
        # Nobody could score in these, and once their grace time is over nobody ever can.
        recent = span_at(window, now - grace_us)
        if recent.start is not None and last.end is not None and recent.start >= last.end:
            found = list(islice(_ahead(window, recent, now), MADE_UP_FOR))
    return found


def terms_of(board: Board, period: Period) -> str:
    """What the final ranks of a period are made with, as JSON. What an archive cut short has no winner."""
    archived = board.archived_at
    cut_short = archived is not None and (period.end or archived + 1) > archived and board.ended_at == archived
    rewards = () if cut_short else tuple(each for each in board.rewards if each.is_for(period.window))
    return msgspec.json.encode(Terms(board.capacity, rewards)).decode()


def with_terms_kept(board: Board, now: int) -> Board:
    """What is over keeps its terms, whatever changes for those that come."""

    def kept(period: Period) -> Period:
        end = board.end_of(period)
        is_over = end is not None and now >= end and period.terms is None
        return replace(period, terms=terms_of(board, period)) if is_over else period

    return replace(board, periods=tuple(kept(period) for period in board.periods))


def with_period(board: Board, changed: Period) -> Board:
    return replace(board, periods=tuple(changed if each.id == changed.id else each for each in board.periods))


def with_later_end(board: Board, period: Period, end: int) -> Board:
    """The board with the end of a period moved, and the next period of its window beginning there."""

    def moved(each: Period) -> Period:
        if each.id == period.id:
            return replace(each, end=end)
        follows = each.window == period.window and each.start == period.end
        return replace(each, start=end) if follows else each

    return replace(board, periods=tuple(moved(each) for each in board.periods))


def next_period(board: Board, period: Period) -> Period | None:
    return next((each for each in board.periods if each.window == period.window and each.start == period.end), None)


def _ahead(window: Window, first: Span | Period, now: int) -> Iterator[Span]:
    """The first one and those after it, up to one that begins after every event that may come now."""
    span: Span | None = Span(first.window, first.name, first.start, first.end)
    while span is not None:
        yield span
        if span.start is not None and span.start > now + AHEAD_US:
            return
        span = next_span(window, span)
