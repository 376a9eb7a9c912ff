"""The Clock."""

from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """The present instant, in microseconds since 1970."""
