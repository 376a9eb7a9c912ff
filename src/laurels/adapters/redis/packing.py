"""Encoding of rows, scores and times for the Lua scripts, and decoding of their answers; see scripts/library.lua."""

import struct
from collections.abc import Sequence

import msgspec

from laurels.core.board import Ranking, ShadowViewer
from laurels.core.order import Heads, Order, Ties, read_subscore_bits, subscore_bits
from laurels.ports import Held, RankEntry, Row, ScoreRange

_TIME = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
NO_TIME = bytes(8)
_ALL = (1 << 64) - 1
_SIGN = 1 << 63
pack = msgspec.msgpack.Encoder().encode


def head_bytes(ranking: Ranking) -> int:
    """Return how many bytes of a member come before the user id: the subscore, if there is one, and the time."""
    return 8 if ranking.subscore is None else 16


def pack_head(ranking: Ranking, subscore: int, at: int) -> bytes:
    """Return the first bytes of a member: they sort in the order of the ranking."""
    time = (at + _SIGN) ^ (_ALL if ranking.ties is Ties.LATEST else 0)
    if ranking.subscore is None:
        return _TIME.pack(time)
    return _PAIR.pack(subscore_bits(ranking.subscore, subscore), time)


def pack_rows(ranking: Ranking, rows: Sequence[Row]) -> tuple[bytes, bytes]:
    """Encode rows as two values: users, versions, scores and segments; and the heads of their members.

    All heads have the same length: see `head_bytes`.
    """
    negate = ranking.order is Order.DESC
    packed: list[tuple[str, int, float | bool] | tuple[str, int, float, str]] = []
    heads = bytearray()
    nothing = bytes(head_bytes(ranking))
    for row in rows:
        standing = row.ranked
        if standing is None:
            packed.append((row.user_id, row.version, False))
            heads += nothing
        else:
            score = 0.0 - standing.score if negate else standing.score
            if row.segments:
                packed.append((row.user_id, row.version, score, " ".join(row.segments)))
            else:
                packed.append((row.user_id, row.version, score))
            heads += pack_head(ranking, standing.subscore, standing.achieved_at)
    return pack(packed), bytes(heads)


def format_capacity(ranking: Ranking) -> str | int:
    return "" if ranking.capacity is None else ranking.capacity


def format_view(ranking: Ranking) -> tuple[str | int, str, bytes]:
    """Return the last arguments of a read: capacity, segment, and the viewer as head of a member, score and user."""
    viewer = ranking.shadow_viewer
    shown = b"" if viewer is None else format_viewer(ranking, viewer)
    return format_capacity(ranking), ranking.segment, shown


def format_viewer(ranking: Ranking, viewer: ShadowViewer) -> bytes:
    score = 0.0 - viewer.score if ranking.order is Order.DESC else viewer.score
    return pack_head(ranking, viewer.subscore, viewer.achieved_at) + f"{score!r} {viewer.user_id}".encode()


def read_score(ranking: Ranking, text: bytes) -> float:
    score = float(text)
    return 0.0 - score if ranking.order is Order.DESC else score + 0.0


def read_head(ranking: Ranking, head: bytes) -> tuple[int, int]:
    """Return the subscore and the time of a member."""
    flip = _ALL if ranking.ties is Ties.LATEST else 0
    if ranking.subscore is None:
        (time,) = _TIME.unpack_from(head)
        return 0, int(time ^ flip) - _SIGN
    subscore, time = _PAIR.unpack_from(head)
    return read_subscore_bits(ranking.subscore, subscore), int(time ^ flip) - _SIGN


def read_entry(ranking: Ranking, user_id: str, rank: int, score: bytes, head: bytes) -> RankEntry:
    subscore, at = read_head(ranking, head)
    return RankEntry(user_id, read_score(ranking, score), at, rank, None if ranking.subscore is None else subscore)


def read_entries(ranking: Ranking, page: Sequence[bytes]) -> tuple[list[str], Heads]:
    """Return the users, and the scores, subscores and times, of a page of members and scores."""
    members = page[::2]
    if ranking.order is Order.DESC:
        scores = [0.0 - float(text) for text in page[1::2]]
    else:
        scores = [float(text) + 0.0 for text in page[1::2]]
    flip = _ALL if ranking.ties is Ties.LATEST else 0
    if ranking.subscore is None:
        words = struct.unpack(f">{len(members)}Q", b"".join([member[:8] for member in members]))
        times = [(word ^ flip) - _SIGN for word in words]
        return [member[8:].decode() for member in members], Heads(scores, None, times)
    words = struct.unpack(f">{2 * len(members)}Q", b"".join([member[:16] for member in members]))
    subscores = [read_subscore_bits(ranking.subscore, word) for word in words[::2]]
    times = [(word ^ flip) - _SIGN for word in words[1::2]]
    return [member[16:].decode() for member in members], Heads(scores, subscores, times)


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
    score, head, segments = ranked
    subscore, at = read_head(ranking, head)
    return Held(version, read_score(ranking, score), at, tuple(segments.decode().split()), subscore)
