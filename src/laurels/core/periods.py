"""Which periods a board needs, and how their ends may be moved. Pure: what is decided here, the ledger stores."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from laurels.core.board import Board
from laurels.core.limits import AHEAD_US
from laurels.core.windows import Period, Span, Window, next_span, span_at

# After a downtime of days a window that resets every minute has many to make: so many in one go.
MADE_AT_ONCE = 200


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
    """What is to be made so that each window has the next period, and every time that an event may have."""
    if board.archived_at is not None or (board.end_at is not None and now >= board.end_at):
        return []
    spans: list[Span] = []
    for window in board.windows:
        last = board.last_period(window.name)
        found = first_spans([window], now) if last is None else list(_ahead(window, last, now))[1:]
        spans += [span for span in found if not _is_after(span, board.end_at)]
    return spans[:MADE_AT_ONCE]


def with_end(board: Board, period: Period, end: int) -> Board:
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


def _is_after(span: Span, end_at: int | None) -> bool:
    return end_at is not None and span.start is not None and span.start >= end_at
