"""Token buckets that several servers share."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Spending(NamedTuple):
    """The tokens that one server took from a bucket, which holds `size` tokens and gains `per_s` per second."""

    bucket: str
    tokens: float
    per_s: float
    size: float


class SharedBuckets(Protocol):
    async def open(self, ledger_id: str) -> None:
        """Prepare for use. `ledger_id` keeps the buckets of different ledgers apart."""

    async def spend(self, spendings: Sequence[Spending]) -> list[float]:
        """Subtract tokens that were taken already, and return what is left in each bucket; it may be negative.

        Raises `Unavailable`.
        """
