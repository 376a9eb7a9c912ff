"""The Clock: the source of the current time."""

from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Return the current instant, in microseconds since 1970."""
