"""The order of a ranking, encoded as bytes.

A key is 8 bytes of score, 8 bytes of time, then the user id in UTF-8. Comparing two keys as bytes compares the entries:
the smaller key ranks first. The score bytes are the IEEE double with its sign folded in, so that they sort like the
numbers; they are inverted if a higher score is better. The time bytes are inverted if the later time ranks first. The
user id comes last and needs no terminator: if one id is a prefix of another, the shorter one ranks first, as in UTF-8
order.
"""

import struct
from collections.abc import Sequence
from enum import StrEnum

_PACK = struct.Struct(">QQ")
_DOUBLE = struct.Struct(">d")
_BITS = struct.Struct(">Q")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
# All bits of a double but its sign.
_MAGNITUDE = _SIGN - 1

SCORE_BYTES = 8
HEAD_BYTES = 16


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


def encode_score(order: Order, score: float) -> bytes:
    """Return the first 8 bytes of every key with this score."""
    return _BITS.pack(_score_bits(order, score))


def encode_key(order: Order, ties: Ties, score: float, at: int, user_id: str) -> bytes:
    time = at + _SIGN
    if ties is Ties.LATEST:
        time ^= _ALL
    return _PACK.pack(_score_bits(order, score), time) + user_id.encode()


def decode_head(order: Order, ties: Ties, key: bytes) -> tuple[float, int]:
    """Return the score and the time of a key."""
    bits, time = _PACK.unpack_from(key)
    if order is Order.DESC:
        bits = bits if bits & _SIGN else bits ^ _MAGNITUDE
    else:
        bits = bits ^ _SIGN if bits & _SIGN else bits ^ _ALL
    if ties is Ties.LATEST:
        time ^= _ALL
    (score,) = _DOUBLE.unpack(_BITS.pack(bits))
    return score, time - _SIGN


def decode_heads(order: Order, ties: Ties, keys: Sequence[bytes]) -> tuple[Sequence[float], Sequence[int]]:
    """Return the scores and the times of several keys. Faster than `decode_head` for each of them."""
    count = len(keys)
    words = struct.unpack(f">{2 * count}Q", b"".join([key[:HEAD_BYTES] for key in keys]))
    if order is Order.DESC:
        bits = [word if word & _SIGN else word ^ _MAGNITUDE for word in words[::2]]
    else:
        bits = [word ^ _SIGN if word & _SIGN else word ^ _ALL for word in words[::2]]
    scores = struct.unpack(f">{count}d", struct.pack(f">{count}Q", *bits))
    if ties is Ties.LATEST:
        return scores, [(word ^ _ALL) - _SIGN for word in words[1::2]]
    return scores, [word - _SIGN for word in words[1::2]]


def decode_key(order: Order, ties: Ties, key: bytes) -> tuple[float, int, str]:
    return *decode_head(order, ties, key), key[HEAD_BYTES:].decode()


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
