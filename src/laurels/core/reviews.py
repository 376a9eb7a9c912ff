"""Review rules: which scores of a board wait for a moderator before they count. Pure rules on events."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from laurels.core.instants import SECOND_US
from laurels.core.order import Order
from laurels.core.rewards import Between
from laurels.core.scores import Rule


class Rise(Struct, frozen=True):
    """A score that gets better by more than `by` within `seconds`."""

    by: float
    seconds: int


class ReviewRule(Struct, frozen=True, omit_defaults=True):
    """One reason to review a score. Exactly one of `scores`, `rise` and `match` is set.

    `scores`: the score of the event is in this range. `rise`: see `rises`. `match`: the metadata have these values.
    """

    name: str
    scores: Between | None = None
    rise: Rise | None = None
    match: dict[str, Any] | None = None


class ReviewState(StrEnum):
    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


def is_caught(rule: ReviewRule, score: float, metadata: dict[str, Any] | None) -> bool:
    """Return True if a score is to be reviewed by a rule that needs to know nothing else."""
    if rule.scores is not None:
        return rule.scores.contains(score)
    if rule.match is not None:
        return metadata is not None and all(
            key in metadata and is_same(metadata[key], value) for key, value in rule.match.items()
        )
    return False


def is_same(one: Any, other: Any) -> bool:
    """Compare two JSON values; unlike in Python, True does not equal 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def rises(rise: Rise, rule: Rule, order: Order, earlier: Sequence[tuple[float, int]], score: float, at: int) -> bool:
    """Return True if a score rises too fast. `earlier` has the scores and the times of the user's other events.

    With the rule `increment`, all points within the time are added up. Otherwise the score is compared with the worst
    one within the time, and with the last one before it: that is what the user had when the time began. The first score
    of a user does not rise.
    """
    since = at - rise.seconds * SECOND_US
    sign = 1 if order is Order.DESC else -1
    within = [points for points, when in earlier if since < when <= at]
    if rule is Rule.INCREMENT:
        return sign * (sum(within) + score) > rise.by
    before = max(((when, points) for points, when in earlier if when <= since), default=None)
    compared = within if before is None else [*within, before[1]]
    return any(sign * (score - points) > rise.by for points in compared)
