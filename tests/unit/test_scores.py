"""The rules give the same standing for the same events in any order, and it is the one that a plain model gives."""

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
def test_any_order_gives_the_same_standing(
    rule: Rule, order: Order, submitted: list[tuple[float, int]], rng: random.Random
) -> None:
    shuffled = submitted.copy()
    rng.shuffle(shuffled)
    assert fold_all(rule, order, submitted) == fold_all(rule, order, shuffled)


@given(st.sampled_from(Rule), st.sampled_from(Order), events)
def test_the_standing_is_the_plain_models(rule: Rule, order: Order, submitted: list[tuple[float, int]]) -> None:
    model = ModelBoard(rule, order, "earliest")
    for number, (score, at) in enumerate(submitted):
        model.submit(str(number), "ada", score, at)
    expected = model.fold("ada")
    standing = fold_all(rule, order, submitted)
    assert expected is not None
    assert (standing.score, standing.achieved_at) == (expected.score, expected.at)


def test_large_integers_add_up_as_integers() -> None:
    assert fold_all(Rule.INCREMENT, Order.DESC, [(float(2**60), 0), (-float(2**60 - 256), 0)]).score == 256.0


def test_tenths_add_up_to_a_whole() -> None:
    assert fold_all(Rule.INCREMENT, Order.DESC, [(0.1, 0)] * 10).score == 1.0


def test_a_sum_beyond_2_to_the_53_keeps_every_one_of_its_units() -> None:
    standing = fold_all(Rule.INCREMENT, Order.DESC, [(2.0**53, 0), *[(1.0, 0)] * 3])
    assert standing.total is not None
    assert Fraction(standing.total) == 2**53 + 3
    assert fold(Rule.INCREMENT, Order.DESC, standing, -(2.0**53), 0) == Standing(3.0, 0, None, moved=True)


def test_a_sum_beyond_the_largest_double_stays_there_and_comes_back() -> None:
    standing = fold_all(Rule.INCREMENT, Order.DESC, [(MAX_DOUBLE, 0), (MAX_DOUBLE, 1)])
    assert standing.score == MAX_DOUBLE
    assert fold(Rule.INCREMENT, Order.DESC, standing, -MAX_DOUBLE, 2).score == MAX_DOUBLE
    standing = fold(Rule.INCREMENT, Order.DESC, standing, -MAX_DOUBLE, 2)
    assert fold(Rule.INCREMENT, Order.DESC, standing, -MAX_DOUBLE, 3) == Standing(0.0, 3, None, moved=True)


@pytest.mark.parametrize(("zero_at", "move_at"), [(10, 3), (3, 10)])
def test_an_event_of_zero_does_not_move_the_time(zero_at: int, move_at: int) -> None:
    standing = fold_all(Rule.INCREMENT, Order.DESC, [(0.0, zero_at), (5.0, move_at)])
    assert standing.achieved_at == move_at


def test_best_keeps_the_earliest_of_equals_and_latest_the_better_of_one_instant() -> None:
    assert fold_all(Rule.BEST, Order.ASC, [(61.2, 5), (61.2, 4), (70.0, 1)]) == Standing(61.2, 4)
    assert fold_all(Rule.LATEST, Order.ASC, [(9.0, 5), (7.0, 5), (1.0, 4)]) == Standing(7.0, 5)
