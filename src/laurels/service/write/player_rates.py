"""The rates at which players submit scores: a token bucket per board and player, in this process."""

from collections.abc import Hashable

from laurels.core.instants import SECOND_US
from laurels.errors import TooMany
from laurels.ports import Clock

# The maximum number of buckets. Full ones are removed earlier.
KEPT = 100_000


class PlayerRates:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # What was left in a bucket, and when.
        self._left: dict[Hashable, tuple[float, int]] = {}

    def take(self, player: Hashable, per_minute: int) -> None:
        """Take one score from the bucket of a player, which holds the scores of a minute. Raises TooMany."""
        now = self._clock.now_us()
        per_us = per_minute / (60 * SECOND_US)
        left, since = self._left.get(player, (float(per_minute), now))
        left = min(per_minute, left + max(0, now - since) * per_us)
        if left < 1:
            error = TooMany("too_many_scores", f"This board takes {per_minute} scores per minute from a player.")
            error.retry_after_s = max(1, round((1 - left) / per_us / SECOND_US))
            raise error
        # The bucket that was used last is at the end.
        self._left.pop(player, None)
        while self._left and (len(self._left) >= KEPT or self._is_full_again(now)):
            del self._left[next(iter(self._left))]
        self._left[player] = (left - 1, now)

    def _is_full_again(self, now: int) -> bool:
        """Return True if the bucket that was not used for the longest time is full by now."""
        _, since = self._left[next(iter(self._left))]
        return since <= now - 60 * SECOND_US
