"""The byte key: comparing keys as bytes gives the same order as comparing (score, time, id)."""

import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laurels.core.instants import LAST_US
from laurels.core.order import Order, Ties, after_score, decode_head, decode_heads, decode_key, encode_key, encode_score

MAX = sys.float_info.max
TINY = 5e-324
SCORES = [
    -MAX, -(2.0**53) - 2, -(2.0**53), -(2.0**53) + 1, -1500.5, -1.0, -sys.float_info.min, -TINY,
    -0.0, 0.0, TINY, 2 * TINY, sys.float_info.min, 0.1, 1.0, 1.0000000000000002, 900.0, 1500.5,
    2.0**53 - 1, 2.0**53, 2.0**53 + 2, MAX,
]  # fmt: skip
TIMES = [0, 1, 1_700_000_000_000_000, 1_700_000_000_000_001, LAST_US]
# Prefixes of each other, several scripts, astral characters, combining marks, and bytes that sort unlike letters.
IDS = [
    "a",
    "ab",
    "abc",
    "b",
    "A",
    "~",
    "é",
    "é",
    "Ω",
    "язык",
    "한국",
    "日本",
    "👑",
    "\U0010ffff",
    "a ",
    " a",
    "0",
    "00",
]

scores = st.one_of(st.sampled_from(SCORES), st.floats(allow_nan=False, allow_infinity=False))
times = st.one_of(st.sampled_from(TIMES), st.integers(0, LAST_US))
ids = st.one_of(st.sampled_from(IDS), st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
entries = st.tuples(scores, times, ids)


def plain(order: Order, ties: Ties, entry: tuple[float, int, str]) -> tuple[float, int, bytes]:
    score, at, user = entry
    return (-score if order is Order.DESC else score, -at if ties is Ties.LATEST else at, user.encode())


@given(st.sampled_from(Order), st.sampled_from(Ties), entries, entries)
def test_keys_sort_in_the_same_order_as_entries(
    order: Order, ties: Ties, one: tuple[float, int, str], other: tuple[float, int, str]
) -> None:
    keys = encode_key(order, ties, *one), encode_key(order, ties, *other)
    plainly = plain(order, ties, one), plain(order, ties, other)
    assert (keys[0] < keys[1]) == (plainly[0] < plainly[1])
    assert (keys[0] == keys[1]) == (plainly[0] == plainly[1])


@given(st.sampled_from(Order), st.sampled_from(Ties), entries)
def test_decoded_key_equals_the_encoded_entry(order: Order, ties: Ties, entry: tuple[float, int, str]) -> None:
    assert decode_key(order, ties, encode_key(order, ties, *entry)) == entry


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("ties", Ties)
def test_all_combinations_of_edge_cases_sort_correctly(order: Order, ties: Ties) -> None:
    everything = list(itertools.product(SCORES, TIMES, IDS))
    by_key = sorted(everything, key=lambda entry: encode_key(order, ties, *entry))
    plainly = sorted(everything, key=lambda entry: plain(order, ties, entry))
    assert [plain(order, ties, entry) for entry in by_key] == [plain(order, ties, entry) for entry in plainly]


@pytest.mark.parametrize("order", Order)
def test_negative_zero_is_encoded_as_zero(order: Order) -> None:
    assert encode_score(order, -0.0) == encode_score(order, 0.0)
    score, _, _ = decode_key(order, Ties.EARLIEST, encode_key(order, Ties.EARLIEST, -0.0, 0, "a"))
    assert str(score) == "0.0"


@given(st.sampled_from(Order), st.sampled_from(Ties), scores, entries)
def test_score_prefix_bounds_exactly_the_keys_of_that_score(
    order: Order, ties: Ties, score: float, entry: tuple[float, int, str]
) -> None:
    prefix = encode_score(order, score)
    key = encode_key(order, ties, *entry)
    assert (prefix <= key < after_score(prefix)) == (entry[0] == score)


@given(st.sampled_from(Order), st.sampled_from(Ties), st.lists(entries, max_size=20))
def test_several_keys_are_decoded_like_each_of_them(
    order: Order, ties: Ties, some: list[tuple[float, int, str]]
) -> None:
    keys = [encode_key(order, ties, *each) for each in some]
    found, at = decode_heads(order, ties, keys)
    assert list(zip(found, at, strict=True)) == [decode_head(order, ties, key) for key in keys]
    assert [(score + 0.0, time) for score, time, _ in some] == list(zip(found, at, strict=True))
