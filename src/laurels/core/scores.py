"""The three score rules: how one event changes a user's standing.

Each rule returns the same result for the same set of events in any order, so redelivery and reordering are harmless:

- increment: the exact decimal sum. A float sum depends on the order (0.1 + 0.2 + 0.3); the sum of the numbers as they
  are written does not. The score shown is the double nearest to the sum. From 2^53 on every double is an integer and
  counts as that integer.
- best: the best value, with the earliest time among equal values.
- latest: the value with the newest time; the better one of two values at the same instant.
"""

from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact
from enum import StrEnum

from msgspec import Struct

from laurels.core.order import Order

EXACT_LIMIT = 2**53
MAX_DOUBLE = 1.7976931348623157e308
# The shortest form of a double has its last digit at 1e-340 or above, and 10^20 events of 1e308 need 329 digits before
# the point. Inexact is trapped, so that a sum that does not fit raises instead of being rounded.
_EXACT = Context(prec=800, rounding=ROUND_HALF_EVEN, Emin=-2000, Emax=2000, traps=[Inexact])


class Rule(StrEnum):
    INCREMENT = "increment"
    BEST = "best"
    LATEST = "latest"


class Operation(StrEnum):
    """What a single event does to a score, instead of the board's rule. `set` is another word for `latest`."""

    INCREMENT = "increment"
    BEST = "best"
    LATEST = "latest"
    SET = "set"


class RankState(StrEnum):
    """Why a user has a rank, or has none."""

    RANKED = "ranked"
    OUTSIDE_CAPACITY = "outside_capacity"
    REMOVED = "removed"
    # A moderator hid the user.
    HIDDEN = "hidden"
    CATCHING_UP = "catching_up"
    # The board is buffered: its ranking receives the score within flushMs.
    BUFFERED = "buffered"
    # A duplicate of an event that was counted in a period that is final now.
    PERIOD_OVER = "period_over"
    # The write did not ask for ranks: see rankOnWrite.
    NOT_REQUESTED = "not_requested"
    # The event waits in the spool and is not in the ledger yet.
    SPOOLED = "spooled"
    # The event waits for a moderator.
    IN_REVIEW = "in_review"


class Standing(Struct, frozen=True, gc=False):
    """The result of folding a user's events in a period."""

    score: float
    achieved_at: int
    # increment only: the exact sum as decimal text if `score` is not exactly that number, else None.
    total: str | None = None
    # increment only: True if an event other than 0 was counted. Only nonzero events change `achieved_at`.
    has_nonzero: bool = False
    # Breaks ties before the time does; 0 on boards without subscores.
    subscore: int = 0
    # The time of the user's last event, on boards that need it.
    last_at: int | None = None


def fold(
    rule: Rule,
    order: Order,
    standing: Standing | None,
    score: float,
    at: int,
    subscore: int = 0,
    sub_order: Order | None = None,
) -> Standing:
    """Return the standing after one more distinct event. `sub_order`: which subscores are better."""
    match rule:
        case Rule.INCREMENT:
            return _increment(standing, score, at, subscore)
        case Rule.BEST:
            return _best(order, standing, score, at, subscore, sub_order)
        case Rule.LATEST:
            return _latest(order, standing, score, at, subscore, sub_order)


def operate(
    operation: Operation,
    order: Order,
    standing: Standing | None,
    score: float,
    at: int,
    subscore: int,
    sub_order: Order | None,
) -> Standing:
    """Return the standing after an event with an operation. Events with operations are folded in the order of time."""
    if standing is None or operation in {Operation.LATEST, Operation.SET}:
        return Standing(score, at, None, score != 0, subscore)
    if operation is Operation.BEST:
        better = _is_better(order, sub_order, score, subscore, standing)
        return Standing(score, at, None, score != 0, subscore) if better else standing
    total, text = _add(standing, score)
    moved = score != 0 or subscore != 0
    return Standing(total, at if moved else standing.achieved_at, text, True, standing.subscore + subscore)


def _increment(standing: Standing | None, score: float, at: int, subscore: int) -> Standing:
    moves = score != 0
    if standing is None:
        return Standing(score, at, None, moves, subscore)
    total, text = _add(standing, score)
    if moves:
        achieved_at = max(standing.achieved_at, at) if standing.has_nonzero else at
    else:
        # A user with only zeros has that score since the first of them.
        achieved_at = standing.achieved_at if standing.has_nonzero else min(standing.achieved_at, at)
    return Standing(total, achieved_at, text, standing.has_nonzero or moves, standing.subscore + subscore)


def _add(standing: Standing, score: float) -> tuple[float, str | None]:
    if standing.total is None and standing.score.is_integer() and score.is_integer():
        plain = standing.score + score
        # Only sums of integers below 2^53 are never rounded.
        if max(abs(plain), abs(standing.score), abs(score)) < EXACT_LIMIT:
            return plain, None
    before = _decimal(standing.score) if standing.total is None else Decimal(standing.total)
    exact = _EXACT.add(before, _decimal(score))
    nearest = float(exact)
    if abs(nearest) > MAX_DOUBLE:
        nearest = MAX_DOUBLE if nearest > 0 else -MAX_DOUBLE
    return nearest + 0.0, format_total(nearest, exact)


def exact_text(score: float) -> str:
    """Return the number that a score counts as in a sum, as decimal text."""
    return repr(score) if abs(score) < EXACT_LIMIT else str(int(score))


def format_total(score: float, exact: Decimal) -> str | None:
    """Return the value of `Standing.total` for an exact sum whose nearest double is `score`."""
    return None if _decimal(score) == exact else str(exact.normalize(_EXACT))


def _decimal(score: float) -> Decimal:
    return Decimal(exact_text(score))


def _is_better(order: Order, sub_order: Order | None, score: float, subscore: int, than: Standing) -> bool:
    if score != than.score:
        return order.is_better(score, than.score)
    return sub_order is not None and sub_order.is_better(subscore, than.subscore)


def _best(
    order: Order, standing: Standing | None, score: float, at: int, subscore: int, sub_order: Order | None
) -> Standing:
    if standing is None or _is_better(order, sub_order, score, subscore, standing):
        return Standing(score, at, None, False, subscore)
    if score == standing.score and subscore == standing.subscore and at < standing.achieved_at:
        return Standing(score, at, None, False, subscore)
    return standing


def _latest(
    order: Order, standing: Standing | None, score: float, at: int, subscore: int, sub_order: Order | None
) -> Standing:
    if standing is None or at > standing.achieved_at:
        return Standing(score, at, None, False, subscore)
    if at == standing.achieved_at and _is_better(order, sub_order, score, subscore, standing):
        return Standing(score, at, None, False, subscore)
    return standing
