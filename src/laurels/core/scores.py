"""The three score rules: how one event changes what a user has.

Each rule gives the same result for the same set of events in any order, so redelivery and reordering are harmless:

- increment: the exact decimal sum. A float sum depends on the order (0.1 + 0.2 + 0.3); the sum of the numbers
  as they are written does not. The score shown is the double nearest to it. From 2^53 on every double is an integer,
  and is taken as that integer.
- best: the best value, and the earliest time among equal values.
- latest: the value with the newest time, and the better one of two at the same instant.
"""

from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact
from enum import StrEnum

from msgspec import Struct

from laurels.core.order import Order

EXACT_LIMIT = 2**53
MAX_DOUBLE = 1.7976931348623157e308
# A double's shortest form has its last digit at 1e-340 at the lowest, and 10^20 events of 1e308 need 329 digits
# before the point. Inexact is trapped, so a sum that did not fit would raise and not round.
_EXACT = Context(prec=800, rounding=ROUND_HALF_EVEN, Emin=-2000, Emax=2000, traps=[Inexact])


class Rule(StrEnum):
    INCREMENT = "increment"
    BEST = "best"
    LATEST = "latest"


class RankState(StrEnum):
    """Why there is a rank, or none."""

    RANKED = "ranked"
    OUTSIDE_CAPACITY = "outside_capacity"
    REMOVED = "removed"
    # Somebody hid the user.
    HIDDEN = "hidden"
    CATCHING_UP = "catching_up"
    # The board is buffered: its ranking hears of it within flushMs.
    BUFFERED = "buffered"
    # A repetition of what was counted in a period that is final by now.
    PERIOD_OVER = "period_over"
    # The score itself is still on its way to the ledger.
    SPOOLED = "spooled"


class Standing(Struct, frozen=True):
    """What the events of one user in one period add up to."""

    score: float
    achieved_at: int
    # increment only: the exact sum as decimal text where `score` is not that number, else None.
    total: str | None = None
    # increment only: whether an event other than 0 was counted. Only those move `achieved_at`.
    moved: bool = False


def fold(rule: Rule, order: Order, standing: Standing | None, score: float, at: int) -> Standing:
    """The standing after one more distinct event."""
    match rule:
        case Rule.INCREMENT:
            return _increment(standing, score, at)
        case Rule.BEST:
            return _best(order, standing, score, at)
        case Rule.LATEST:
            return _latest(order, standing, score, at)


def _increment(standing: Standing | None, score: float, at: int) -> Standing:
    moves = score != 0
    if standing is None:
        return Standing(score, at, None, moves)
    total, text = _add(standing, score)
    if moves:
        achieved_at = max(standing.achieved_at, at) if standing.moved else at
    else:
        # A user with nothing but zeros was there from the first of them on.
        achieved_at = standing.achieved_at if standing.moved else min(standing.achieved_at, at)
    return Standing(total, achieved_at, text, standing.moved or moves)


def _add(standing: Standing, score: float) -> tuple[float, str | None]:
    if standing.total is None and standing.score.is_integer() and score.is_integer():
        plain = standing.score + score
        # Below 2^53, and only there, a sum of integers was not rounded.
        if max(abs(plain), abs(standing.score), abs(score)) < EXACT_LIMIT:
            return plain, None
    before = _decimal(standing.score) if standing.total is None else Decimal(standing.total)
    exact = _EXACT.add(before, _decimal(score))
    nearest = float(exact)
    if abs(nearest) > MAX_DOUBLE:
        nearest = MAX_DOUBLE if nearest > 0 else -MAX_DOUBLE
    return nearest + 0.0, spell_total(nearest, exact)


def exact_text(score: float) -> str:
    """The number that a score counts as in a sum."""
    return repr(score) if abs(score) < EXACT_LIMIT else str(int(score))


def spell_total(score: float, exact: Decimal) -> str | None:
    """What `Standing.total` says of a sum whose nearest double is the score."""
    return None if _decimal(score) == exact else str(exact.normalize(_EXACT))


def _decimal(score: float) -> Decimal:
    return Decimal(exact_text(score))


def _best(order: Order, standing: Standing | None, score: float, at: int) -> Standing:
    if standing is None or order.is_better(score, standing.score):
        return Standing(score, at)
    if score == standing.score and at < standing.achieved_at:
        return Standing(score, at)
    return standing


def _latest(order: Order, standing: Standing | None, score: float, at: int) -> Standing:
    if standing is None or at > standing.achieved_at:
        return Standing(score, at)
    if at == standing.achieved_at and order.is_better(score, standing.score):
        return Standing(score, at)
    return standing
