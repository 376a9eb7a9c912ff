"""Encoding of rows, scores and times for the Lua scripts, and decoding of their answers; see scripts/library.lua."""

import struct
from collections.abc import Sequence

import msgspec

from laurels.core.board import Ranking, ShadowViewer
from laurels.core.order import Order, Ties
from laurels.ports import Held, Row, ScoreRange

_TIME = struct.Struct(">Q")
NO_TIME = bytes(8)
_ALL = (1 << 64) - 1
_SIGN = 1 << 63
pack = msgspec.msgpack.Encoder().encode


def pack_rows(ranking: Ranking, rows: Sequence[Row]) -> tuple[bytes, bytes]:
    """Encode rows as two values: users, versions, scores and segments; and the times.

    Each time has 8 bytes, which sort in the order of the ranking's ties.
    """
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


def format_capacity(ranking: Ranking) -> str | int:
    return "" if ranking.capacity is None else ranking.capacity


def format_view(ranking: Ranking) -> tuple[str | int, str, bytes]:
    """Return the last arguments of a read: capacity, segment, and the viewer as time, score and user."""
    viewer = ranking.shadow_viewer
    shown = b"" if viewer is None else format_viewer(ranking, viewer)
    return format_capacity(ranking), ranking.segment, shown


def format_viewer(ranking: Ranking, viewer: ShadowViewer) -> bytes:
    score = 0.0 - viewer.score if ranking.order is Order.DESC else viewer.score
    flip = _ALL if ranking.ties is Ties.LATEST else 0
    time = _TIME.pack((viewer.achieved_at + _SIGN) ^ flip)
    return time + f"{score!r} {viewer.user_id}".encode()


def read_score(ranking: Ranking, text: bytes) -> float:
    score = float(text)
    return 0.0 - score if ranking.order is Order.DESC else score + 0.0


def read_time(ranking: Ranking, prefix: bytes) -> int:
    (time,) = _TIME.unpack(prefix)
    return int(time ^ (_ALL if ranking.ties is Ties.LATEST else 0)) - _SIGN


def read_entries(ranking: Ranking, page: Sequence[bytes]) -> tuple[list[str], list[float], list[int]]:
    """Return the users, scores and times of a page of members and scores."""
    members = page[::2]
    if ranking.order is Order.DESC:
        scores = [0.0 - float(text) for text in page[1::2]]
    else:
        scores = [float(text) + 0.0 for text in page[1::2]]
    flip = _ALL if ranking.ties is Ties.LATEST else 0
    words = struct.unpack(f">{len(members)}Q", b"".join([member[:8] for member in members]))
    return [member[8:].decode() for member in members], scores, [(word ^ flip) - _SIGN for word in words]


def format_bounds(ranking: Ranking, edges: Sequence[float]) -> list[str]:
    """Return the inner edges as upper bounds for ZCOUNT.

    They count the scores below an edge; in a descending ranking, whose scores are negated, those at or above it.
    """
    if ranking.order is Order.ASC:
        return [f"({edge!r}" for edge in edges[1:-1]]
    return [repr(0.0 - edge) for edge in edges[1:-1]]


def format_range(ranking: Ranking, scores: ScoreRange) -> tuple[str, str]:
    """Return two upper bounds for ZCOUNT: they count the scores before a range, and those up to its end."""
    best, worst = (
        None if score is None else repr(0.0 - score if ranking.order is Order.DESC else score)
        for score in (scores.best, scores.worst)
    )
    return "(-inf" if best is None else f"({best}", "+inf" if worst is None else worst


def read_held(ranking: Ranking, tag: bytes, version: int, *ranked: bytes) -> Held:
    if tag != b"=":
        return Held(version, None, None)
    score, prefix, segments = ranked
    return Held(version, read_score(ranking, score), read_time(ranking, prefix), tuple(segments.decode().split()))
