"""Rows, scores and times as the scripts on Redis take and give them: see scripts/library.lua."""

import struct
from collections.abc import Sequence

import msgspec

from laurels.core.board import Ranking
from laurels.core.order import Order, Ties
from laurels.ports import Held, Row

_TIME = struct.Struct(">Q")
NO_TIME = bytes(8)
_ALL = (1 << 64) - 1
_SIGN = 1 << 63
pack = msgspec.msgpack.Encoder().encode


def pack_rows(ranking: Ranking, rows: Sequence[Row]) -> tuple[bytes, bytes]:
    """Users, versions, scores and segments; and the times, 8 bytes each, that sort as the ranking's ties do."""
    negate = ranking.order is Order.DESC
    flip = _ALL if ranking.ties is Ties.LATEST else 0
    packed: list[tuple[str, int, float | bool] | tuple[str, int, float, str]] = []
    times = bytearray()
    for row in rows:
        standing = row.ranked
        if standing is None:
            packed.append((row.user_id, row.version, False))
            times += NO_TIME
        else:
            score = 0.0 - standing.score if negate else standing.score
            if row.segments:
                packed.append((row.user_id, row.version, score, " ".join(row.segments)))
            else:
                packed.append((row.user_id, row.version, score))
            times += _TIME.pack((standing.achieved_at + _SIGN) ^ flip)
    return pack(packed), bytes(times)


def spell_view(ranking: Ranking) -> tuple[str, bytes]:
    """The segment that is read, and the guest: the time, then score and user."""
    guest = ranking.guest
    if guest is None:
        return ranking.segment, b""
    score = 0.0 - guest.score if ranking.order is Order.DESC else guest.score
    flip = _ALL if ranking.ties is Ties.LATEST else 0
    time = _TIME.pack((guest.achieved_at + _SIGN) ^ flip)
    return ranking.segment, time + f"{score!r} {guest.user_id}".encode()


def read_score(ranking: Ranking, text: bytes) -> float:
    score = float(text)
    return 0.0 - score if ranking.order is Order.DESC else score + 0.0


def read_time(ranking: Ranking, prefix: bytes) -> int:
    (time,) = _TIME.unpack(prefix)
    return int(time ^ (_ALL if ranking.ties is Ties.LATEST else 0)) - _SIGN


def read_entries(ranking: Ranking, page: Sequence[bytes]) -> list[tuple[str, float, int]]:
    return [
        (member[8:].decode(), read_score(ranking, score), read_time(ranking, member[:8]))
        for member, score in zip(page[::2], page[1::2], strict=True)
    ]


def spell_bounds(ranking: Ranking, edges: Sequence[float]) -> list[str]:
    """The inner edges as ends of a ZCOUNT: below the edge, or (where scores are negated) at the edge and above."""
    if ranking.order is Order.ASC:
        return [f"({edge!r}" for edge in edges[1:-1]]
    return [repr(0.0 - edge) for edge in edges[1:-1]]


def read_held(ranking: Ranking, tag: bytes, version: int, *ranked: bytes) -> Held:
    if tag != b"=":
        return Held(version, None, None)
    score, prefix, segments = ranked
    return Held(version, read_score(ranking, score), read_time(ranking, prefix), tuple(segments.decode().split()))
