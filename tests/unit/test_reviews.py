"""Review rules."""

import pytest

from laurels.core.instants import SECOND_US
from laurels.core.order import Order
from laurels.core.reviews import ReviewRule, Rise, is_caught, rises
from laurels.core.rewards import Between
from laurels.core.scores import Rule

T = 1_000_000 * SECOND_US
RISE = Rise(100, 60)


@pytest.mark.parametrize(
    ("rule", "order", "earlier", "score", "expected"),
    [
        # The sum of the last minute counts.
        (Rule.INCREMENT, Order.DESC, [], 100, False),
        (Rule.INCREMENT, Order.DESC, [], 101, True),
        (Rule.INCREMENT, Order.DESC, [(60, -10), (30, -59)], 11, True),
        (Rule.INCREMENT, Order.DESC, [(60, -10), (30, -60)], 11, False),
        (Rule.INCREMENT, Order.ASC, [(-60, -10)], -41, True),
        (Rule.INCREMENT, Order.ASC, [(60, -10)], 410, False),
        # The first score is no rise.
        (Rule.BEST, Order.DESC, [], 5000, False),
        (Rule.BEST, Order.DESC, [(1000, -3600)], 1100, False),
        (Rule.BEST, Order.DESC, [(1000, -3600)], 1101, True),
        # What the user had when the minute began is the last score before it.
        (Rule.BEST, Order.DESC, [(1000, -3600), (1050, -61)], 1101, False),
        # In two steps.
        (Rule.BEST, Order.DESC, [(1000, -3600), (1050, -30)], 1101, True),
        (Rule.LATEST, Order.ASC, [(90.5, -10)], 20, False),
        (Rule.LATEST, Order.ASC, [(190.5, -10)], 20, True),
        (Rule.LATEST, Order.ASC, [(20, -10)], 500, False),
    ],
)
def test_rise_is_what_a_score_gains_within_the_time(
    rule: Rule, order: Order, earlier: list[tuple[float, int]], score: float, expected: bool
) -> None:
    events = [(points, T + seconds * SECOND_US) for points, seconds in earlier]
    assert rises(RISE, rule, order, events, score, T) is expected


def test_rules_select_by_score_and_by_metadata() -> None:
    high = ReviewRule("high", scores=Between(low=100))
    assert [is_caught(high, score, None) for score in (99.5, 100, 101)] == [False, True, True]
    debug = ReviewRule("debug", match={"client": "debug", "level": 1})
    assert is_caught(debug, 0, {"client": "debug", "level": 1, "more": []})
    for metadata in (None, {}, {"client": "debug"}, {"client": "debug", "level": True}, {"client": "x", "level": 1}):
        assert not is_caught(debug, 0, metadata)
