"""The order of a ranking, as bytes.

A key is 8 bytes of score, 8 bytes of time, then the user id in UTF-8. Comparing keys as bytes is comparing entries:
the smaller key is ahead. The score bytes are the IEEE double with its sign folded in, so that they sort as the
numbers do, and inverted when higher is better; the time bytes are inverted when later is ahead. The id comes last
and needs no terminator: where one id is a prefix of another, the shorter is ahead, as in UTF-8 order.
"""

import struct
from enum import StrEnum

_PACK = struct.Struct(">QQ")
_DOUBLE = struct.Struct(">d")
_BITS = struct.Struct(">Q")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1

SCORE_BYTES = 8
HEAD_BYTES = 16


class Order(StrEnum):
    DESC = "desc"
    ASC = "asc"

    def is_better(self, score: float, than: float) -> bool:
        return score > than if self is Order.DESC else score < than


class Ties(StrEnum):
    """Who is ahead at equal scores. `shared` gives both the same rank and lists the earlier first."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SHARED = "shared"


def encode_score(order: Order, score: float) -> bytes:
    """The first 8 bytes of every key with this score."""
    return _BITS.pack(_score_bits(order, score))


def encode_key(order: Order, ties: Ties, score: float, at: int, user_id: str) -> bytes:
    time = at + _SIGN
    if ties is Ties.LATEST:
        time ^= _ALL
    return _PACK.pack(_score_bits(order, score), time) + user_id.encode()


def decode_key(order: Order, ties: Ties, key: bytes) -> tuple[float, int, str]:
    bits, time = _PACK.unpack_from(key)
    if order is Order.DESC:
        bits ^= _ALL
    bits = bits ^ _SIGN if bits & _SIGN else bits ^ _ALL
    if ties is Ties.LATEST:
        time ^= _ALL
    (score,) = _DOUBLE.unpack(_BITS.pack(bits))
    return score, time - _SIGN, key[HEAD_BYTES:].decode()


def after_score(prefix: bytes) -> bytes:
    """The smallest bytes greater than every key with this score. No finite score has the prefix of all ones."""
    return (int.from_bytes(prefix) + 1).to_bytes(SCORE_BYTES)


def _score_bits(order: Order, score: float) -> int:
    # Adding 0.0 turns -0.0 into 0.0: they are the same score.
    (bits,) = _BITS.unpack(_DOUBLE.pack(score + 0.0))
    bits = bits ^ _ALL if bits & _SIGN else bits ^ _SIGN
    return int(bits ^ _ALL if order is Order.DESC else bits)
