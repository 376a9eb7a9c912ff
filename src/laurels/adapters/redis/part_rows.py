"""Rows of a split ranking: their order, and the merge of the rows of all parts."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from laurels.adapters.redis.connection import Answer
from laurels.adapters.redis.packing import NO_TIME, pack

# A score as Redis stores it (the better one is smaller), and a member: head (see packing.py) and user id.
Key = tuple[float, bytes]
START: Key = (-math.inf, NO_TIME)
END: Key = (math.inf, NO_TIME)
# In place of a time and a user: comes after all members with the same score.
AFTER_ALL = b"\xff" * 8


class Wanted(NamedTuple):
    """Rows around a key: up to `above` before it, and `below` from it on.

    `shares`: how many of the rows from the key on each part has, if that is known. `owner`: the only part that is
    asked for rows.
    """

    key: Key
    above: int = 0
    below: int = 0
    shares: Sequence[int] | None = None
    owner: int | None = None

    def rows_of(self, part: int, parts: int, sigmas: int) -> tuple[int, int]:
        """Return how many rows to ask a part for, above the key and from it on."""
        if self.owner is not None and part != self.owner:
            return 0, 0
        if self.owner is not None:
            return self.above, self.below
        above, below = likely_share(self.above, parts, sigmas), likely_share(self.below, parts, sigmas)
        return above, below + (0 if self.shares is None else self.shares[part])


class Slice(NamedTuple):
    """Neighbouring rows of the whole ranking, before a key and from it on, and the numbers of the key.

    `before` users come before the key, and `better` have a better score. `offsets` are those of the key in each part.
    """

    key: Key
    total: int
    before: int
    better: int
    above: list[Key]
    below: list[Key]
    offsets: list[int]

    def covers(self, above: int, below: int) -> bool:
        return len(self.above) >= min(above, self.before) and len(self.below) >= min(below, self.total - self.before)

    def score_at(self, offset: int) -> float | None:
        """Return the score of the row at an offset, from the key on; None if it is not in the slice."""
        number = offset - self.before
        return self.below[number][0] if 0 <= number < len(self.below) else None

    def better_than(self, row: Key, width: int) -> int | None:
        """Return how many users have a better score than a row of the slice; None if the slice does not tell."""
        tie = tie_of(row, width)
        if tie == tie_of(self.key, width):
            return self.better
        for rows, first in ((self.above, self.before - len(self.above)), (self.below, self.before)):
            number = bisect_left(rows, tie)
            if number < len(rows) and tie_of(rows[number], width) == tie and (number or not first):
                return first + number
        return None


def merge_rows(answers: Sequence[Answer], wanted: Sequence[Wanted]) -> list[Slice]:
    """Merge the rows of all parts around each key.

    A row belongs to the slice only if no part can have rows between it and the key that it did not return.
    """
    total = sum(answer[0] for answer in answers)
    slices = []
    for number, want in enumerate(wanted):
        before = better = 0
        # The rows of the slice are between these two.
        top, bottom = START, END
        above: list[Key] = []
        below: list[Key] = []
        offsets = []
        for answer in answers:
            offset, ahead, start, flat = answer[4][number]
            offsets.append(offset)
            before, better = before + offset, better + ahead
            rows = read_rows(flat)
            above += rows[: offset - start]
            below += rows[offset - start :]
            if start > 0:
                top = max(top, rows[0] if start < offset else want.key)
            if start + len(rows) < answer[0]:
                bottom = min(bottom, rows[-1] if start + len(rows) > offset else want.key)
        above = sorted(row for row in above if row >= top)
        below = sorted(row for row in below if row <= bottom)
        slices.append(Slice(want.key, total, before, better, above, below, offsets))
    return slices


def likely_share(rows: int, parts: int, sigmas: int) -> int:
    """Return how many of some neighbouring rows one part has, at most, in nearly all cases."""
    mean = rows / parts
    return min(rows, math.ceil(mean + sigmas * math.sqrt(mean)) + 2)


def tie_of(key: Key, width: int) -> Key:
    """Return the key before all users who have the same score and subscore. `width`: the bytes of a head."""
    return key[0], key[1][: width - 8]


def pack_keys(asked: Iterable[tuple[Key, int, int]], width: int) -> tuple[bytes, bytes]:
    """Encode keys with the rows that are wanted above and from them on; the heads apart, because they are not text."""
    keys, heads = [], []
    for (score, member), above, count in asked:
        keys.append((repr(score), member[width:].decode(), above, count))
        heads.append(member[:width].ljust(width, b"\0"))
    return pack(keys), b"".join(heads)


def read_rows(flat: Sequence[bytes]) -> list[Key]:
    return [(float(score), member) for member, score in zip(flat[::2], flat[1::2], strict=True)]
