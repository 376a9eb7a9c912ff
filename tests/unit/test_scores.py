"""The score rules: the same events in any order have the same standing, which equals that of a plain model."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laurels.core.order import Order
from laurels.core.scores import MAX_DOUBLE, Rule, Standing, fold
from support.model import ModelBoard

doubles = st.floats(allow_nan=False, allow_infinity=False).map(lambda score: score + 0.0)
values = st.one_of(
    st.integers(-5, 5).map(float), st.sampled_from([0.1, 0.2, 0.3, 1e308, -1e308, 2.0**53, 1.0]), doubles
)
events = st.lists(st.tuples(values, st.integers(0, 20)), min_size=1, max_size=12)


def fold_all(rule: Rule, order: Order, submitted: list[tuple[float, int]]) -> Standing:
    standing = None
    for score, at in submitted:
        standing = fold(rule, order, standing, score, at)
    assert standing is not None
    return standing


@given(st.sampled_from(Rule), st.sampled_from(Order), events, st.randoms(use_true_random=False))
def test_standing_does_not_depend_on_event_order(
    rule: Rule, order: Order, submitted: list[tuple[float, int]], rng: random.Random
) -> None:
    shuffled = submitted.copy()
    rng.shuffle(shuffled)
    assert fold_all(rule, order, submitted) == fold_all(rule, order, shuffled)


@given(st.sampled_from(Rule), st.sampled_from(Order), events)
def test_standing_equals_the_standing_of_the_model(
    rule: Rule, order: Order, submitted: list[tuple[float, int]]
) -> None:
    model = ModelBoard(rule, order, "earliest")
    for number, (score, at) in enumerate(submitted):
        model.submit(str(number), "ada", score, at)
    expected = model.fold("ada")
    standing = fold_all(rule, order, submitted)
    assert expected is not None
    assert (standing.score, standing.achieved_at) == (expected.score, expected.at)


def test_large_integers_are_added_exactly() -> None:
    assert fold_all(Rule.INCREMENT, Order.DESC, [(float(2**60), 0), (-float(2**60 - 256), 0)]).score == 256.0


def test_ten_increments_of_one_tenth_sum_to_one() -> None:
    assert fold_all(Rule.INCREMENT, Order.DESC, [(0.1, 0)] * 10).score == 1.0


def test_sum_above_2_to_the_53_stays_exact() -> None:
    standing = fold_all(Rule.INCREMENT, Order.DESC, [(2.0**53, 0), *[(1.0, 0)] * 3])
    assert standing.total is not None
    assert Fraction(standing.total) == 2**53 + 3
    assert fold(Rule.INCREMENT, Order.DESC, standing, -(2.0**53), 0) == Standing(3.0, 0, None, has_nonzero=True)


def test_sum_above_the_largest_double_is_clamped_without_losing_the_total() -> None:
    standing = fold_all(Rule.INCREMENT, Order.DESC, [(MAX_DOUBLE, 0), (MAX_DOUBLE, 1)])
    assert standing.score == MAX_DOUBLE
    assert fold(Rule.INCREMENT, Order.DESC, standing, -MAX_DOUBLE, 2).score == MAX_DOUBLE
    standing = fold(Rule.INCREMENT, Order.DESC, standing, -MAX_DOUBLE, 2)
    assert fold(Rule.INCREMENT, Order.DESC, standing, -MAX_DOUBLE, 3) == Standing(0.0, 3, None, has_nonzero=True)


@pytest.mark.parametrize(("zero_at", "move_at"), [(10, 3), (3, 10)])
def test_zero_increment_does_not_change_achieved_at(zero_at: int, move_at: int) -> None:
    standing = fold_all(Rule.INCREMENT, Order.DESC, [(0.0, zero_at), (5.0, move_at)])
    assert standing.achieved_at == move_at


def test_best_rule_keeps_the_earliest_tie_and_latest_rule_the_better_tie() -> None:
    assert fold_all(Rule.BEST, Order.ASC, [(61.2, 5), (61.2, 4), (70.0, 1)]) == Standing(61.2, 4)
    assert fold_all(Rule.LATEST, Order.ASC, [(9.0, 5), (7.0, 5), (1.0, 4)]) == Standing(7.0, 5)
