"""The byte key: comparing keys as bytes gives the same order as comparing (score, subscore, time, id)."""

import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laurels.core.instants import LAST_US
from laurels.core.order import (
    TIE_BYTES,
    Order,
    Sorting,
    Ties,
    after_score,
    decode_head,
    decode_heads,
    encode_key,
    encode_score,
    user_of_key,
)

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

SUBSCORES = [-(2**63), -(2**31), -1, 0, 1, 2**31, 2**63 - 1]

Entry = tuple[float, int, int, str]

scores = st.one_of(st.sampled_from(SCORES), st.floats(allow_nan=False, allow_infinity=False))
subscores = st.one_of(st.sampled_from(SUBSCORES), st.integers(-(2**63), 2**63 - 1))
times = st.one_of(st.sampled_from(TIMES), st.integers(0, LAST_US))
ids = st.one_of(st.sampled_from(IDS), st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
entries = st.tuples(scores, subscores, times, ids)
sortings = st.builds(Sorting, st.sampled_from(Order), st.sampled_from(Ties), st.sampled_from(Order))


def plain(sorting: Sorting, entry: Entry) -> tuple[float, int, int, bytes]:
    score, subscore, at, user = entry
    return (
        -score if sorting.order is Order.DESC else score,
        -subscore if sorting.subscore is Order.DESC else subscore,
        -at if sorting.ties is Ties.LATEST else at,
        user.encode(),
    )


@given(sortings, entries, entries)
def test_keys_sort_in_the_same_order_as_entries(sorting: Sorting, one: Entry, other: Entry) -> None:
    keys = encode_key(sorting, *one), encode_key(sorting, *other)
    plainly = plain(sorting, one), plain(sorting, other)
    assert (keys[0] < keys[1]) == (plainly[0] < plainly[1])
    assert (keys[0] == keys[1]) == (plainly[0] == plainly[1])


@given(sortings, entries)
def test_decoded_key_equals_the_encoded_entry(sorting: Sorting, entry: Entry) -> None:
    key = encode_key(sorting, *entry)
    assert (*decode_head(sorting, key), user_of_key(key)) == entry


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("ties", Ties)
def test_all_combinations_of_edge_cases_sort_correctly(order: Order, ties: Ties) -> None:
    sorting = Sorting(order, ties, Order.ASC)
    everything = list(itertools.product(SCORES, SUBSCORES[1:-1:2], TIMES, IDS))
    by_key = sorted(everything, key=lambda entry: encode_key(sorting, *entry))
    plainly = sorted(everything, key=lambda entry: plain(sorting, entry))
    assert [plain(sorting, entry) for entry in by_key] == [plain(sorting, entry) for entry in plainly]


@pytest.mark.parametrize("order", Order)
def test_negative_zero_is_encoded_as_zero(order: Order) -> None:
    assert encode_score(order, -0.0) == encode_score(order, 0.0)
    sorting = Sorting(order, Ties.EARLIEST)
    score, _, _ = decode_head(sorting, encode_key(sorting, -0.0, 0, 0, "a"))
    assert str(score) == "0.0"


@given(sortings, scores, entries)
def test_score_prefix_bounds_exactly_the_keys_of_that_score(sorting: Sorting, score: float, entry: Entry) -> None:
    prefix = encode_score(sorting.order, score)
    key = encode_key(sorting, *entry)
    assert (prefix <= key < after_score(prefix)) == (entry[0] == score)


@given(sortings, entries, entries)
def test_tie_bytes_are_equal_for_equal_scores_and_subscores(sorting: Sorting, one: Entry, other: Entry) -> None:
    keys = encode_key(sorting, *one), encode_key(sorting, *other)
    assert (keys[0][:TIE_BYTES] == keys[1][:TIE_BYTES]) == (one[:2] == other[:2])


@given(sortings, st.lists(entries, max_size=20))
def test_several_keys_are_decoded_like_each_of_them(sorting: Sorting, some: list[Entry]) -> None:
    keys = [encode_key(sorting, *each) for each in some]
    heads = decode_heads(sorting, keys)
    assert heads.subscores is not None
    found = list(zip(heads.scores, heads.subscores, heads.times, strict=True))
    assert found == [tuple(decode_head(sorting, key)) for key in keys]
    assert found == [(score + 0.0, subscore, time) for score, subscore, time, _ in some]
    plain_heads = decode_heads(sorting._replace(subscore=None), [encode_key(sorting, 1.0, 0, 5, "a")])
    assert plain_heads.subscores is None
