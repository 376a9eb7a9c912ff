"""The order of a ranking, encoded as bytes.

A key is 8 bytes of score, 8 bytes of subscore, 8 bytes of time, then the user id in UTF-8. Comparing two keys as bytes
compares the entries: the smaller key ranks first. The score bytes are the IEEE double with its sign folded in, so that
they sort like the numbers; they are inverted if a higher score is better. So are the subscore bytes, which are the same
for all users of a board without subscores. The time bytes are inverted if the later time ranks first. The user id comes
last and needs no terminator: if one id is a prefix of another, the shorter one ranks first, as in UTF-8 order.
"""

import struct
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

_PACK = struct.Struct(">QQQ")
_DOUBLE = struct.Struct(">d")
_BITS = struct.Struct(">Q")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
# All bits of a double but its sign.
_MAGNITUDE = _SIGN - 1

SCORE_BYTES = 8
# Users with equal scores and subscores share these bytes, and their rank in styles in which ties do.
TIE_BYTES = 16
HEAD_BYTES = 24


class Order(StrEnum):
    DESC = "desc"
    ASC = "asc"

    def is_better(self, score: float, than: float) -> bool:
        return score > than if self is Order.DESC else score < than


class Ties(StrEnum):
    """Which user ranks first at equal scores.

    With `shared`, both have the same rank, and the earlier one is listed first.
    """

    EARLIEST = "earliest"
    LATEST = "latest"
    SHARED = "shared"


class Sorting(NamedTuple):
    """How the entries of a ranking are sorted. `subscore` None: all subscores are 0."""

    order: Order
    ties: Ties
    subscore: Order | None = None


class Head(NamedTuple):
    score: float
    subscore: int
    at: int


def encode_score(order: Order, score: float) -> bytes:
    """Return the first 8 bytes of every key with this score."""
    return _BITS.pack(_score_bits(order, score))


def encode_key(sorting: Sorting, score: float, subscore: int, at: int, user_id: str) -> bytes:
    time = at + _SIGN
    if sorting.ties is Ties.LATEST:
        time ^= _ALL
    return (
        _PACK.pack(_score_bits(sorting.order, score), subscore_bits(sorting.subscore, subscore), time)
        + user_id.encode()
    )


def subscore_bits(order: Order | None, subscore: int) -> int:
    """Return a subscore as an unsigned number that is smaller if the subscore is better."""
    bits = subscore + _SIGN
    return bits ^ _ALL if order is Order.DESC else bits


def read_subscore_bits(order: Order | None, bits: int) -> int:
    return (bits ^ _ALL if order is Order.DESC else bits) - _SIGN


def decode_head(sorting: Sorting, key: bytes) -> Head:
    """Return the score, the subscore and the time of a key."""
    bits, subscore, time = _PACK.unpack_from(key)
    if sorting.order is Order.DESC:
        bits = bits if bits & _SIGN else bits ^ _MAGNITUDE
    else:
        bits = bits ^ _SIGN if bits & _SIGN else bits ^ _ALL
    if sorting.ties is Ties.LATEST:
        time ^= _ALL
    (score,) = _DOUBLE.unpack(_BITS.pack(bits))
    return Head(score, read_subscore_bits(sorting.subscore, subscore), time - _SIGN)


class Heads(NamedTuple):
    """The columns of several heads. `subscores` None: the ranking has none."""

    scores: Sequence[float]
    subscores: Sequence[int] | None
    times: Sequence[int]


def decode_heads(sorting: Sorting, keys: Sequence[bytes]) -> Heads:
    """Return the columns of several keys. Faster than `decode_head` for each of them."""
    count = len(keys)
    words = struct.unpack(f">{3 * count}Q", b"".join([key[:HEAD_BYTES] for key in keys]))
    if sorting.order is Order.DESC:
        bits = [word if word & _SIGN else word ^ _MAGNITUDE for word in words[::3]]
    else:
        bits = [word ^ _SIGN if word & _SIGN else word ^ _ALL for word in words[::3]]
    scores = struct.unpack(f">{count}d", struct.pack(f">{count}Q", *bits))
    subscores = None
    if sorting.subscore is not None:
        subscores = [read_subscore_bits(sorting.subscore, word) for word in words[1::3]]
    if sorting.ties is Ties.LATEST:
        return Heads(scores, subscores, [(word ^ _ALL) - _SIGN for word in words[2::3]])
    return Heads(scores, subscores, [word - _SIGN for word in words[2::3]])


def user_of_key(key: bytes) -> str:
    return key[HEAD_BYTES:].decode()


def after_score(prefix: bytes) -> bytes:
    """Return the smallest bytes that are greater than every key with this score.

    The addition can't overflow, because no finite score has a prefix of all ones.
    """
    return (int.from_bytes(prefix) + 1).to_bytes(SCORE_BYTES)


def _score_bits(order: Order, score: float) -> int:
    # Adding 0.0 turns -0.0 into 0.0, because they are the same score.
    bits: int = _BITS.unpack(_DOUBLE.pack(score + 0.0))[0]
    if order is Order.DESC:
        return bits if bits & _SIGN else bits ^ _MAGNITUDE
    return bits ^ _ALL if bits & _SIGN else bits ^ _SIGN
