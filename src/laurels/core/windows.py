"""Windows and periods. A window recurs; a period is one concrete span `[start, end)` of it.

Only `all` exists so far: one period without a start or an end.
"""

from msgspec import Struct

ALL = "all"
WINDOWS = (ALL,)


class Span(Struct, frozen=True):
    """A period that may not exist yet: its readable name and its instants."""

    window: str
    name: str
    start: int | None
    end: int | None


class Period(Struct, frozen=True):
    """A period as the ledger has it."""

    id: int
    window: str
    name: str
    start: int | None
    end: int | None

    def contains(self, at: int) -> bool:
        return (self.start is None or at >= self.start) and (self.end is None or at < self.end)


def span_at(window: str, at: int) -> Span:
    """The span of a window that contains an instant."""
    assert window in WINDOWS, window
    del at  # `all` contains every instant
    return Span(window=ALL, name=ALL, start=None, end=None)
