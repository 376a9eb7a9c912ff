"""The rates at which players submit scores: a token bucket per board and player, in this process."""

from collections.abc import Hashable

from laurels.core.instants import SECOND_US
from laurels.errors import TooMany
from laurels.ports import Clock

# Full buckets are removed when there are this many.
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
        left = min(per_minute, left + (now - since) * per_us)
        if left < 1:
            error = TooMany("too_many_scores", f"This board takes {per_minute} scores per minute from a player.")
            error.retry_after_s = max(1, round((1 - left) / per_us / SECOND_US))
            raise error
        if len(self._left) >= KEPT:
            self._forget(now)
        self._left[player] = (left - 1, now)

    def _forget(self, now: int) -> None:
        """Remove the buckets that are full again, or all of them if none is."""
        minute_ago = now - 60 * SECOND_US
        self._left = {player: held for player, held in self._left.items() if held[1] > minute_ago}
        if len(self._left) >= KEPT:
            self._left.clear()
