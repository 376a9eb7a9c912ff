"""Rows of a split ranking: their order, the merge of the rows of all parts, and the search for an offset."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from laurels.adapters.redis.connection import Answer
from laurels.adapters.redis.packing import NO_TIME, pack

# A score as Redis stores it (the better one is smaller), and a member: time and user id.
Key = tuple[float, bytes]
START: Key = (-math.inf, NO_TIME)
END: Key = (math.inf, NO_TIME)


class SliceWanted(NamedTuple):
    """Rows around a key: up to `above` before it, and `below` from it on."""

    key: Key
    above: int
    below: int


class Slice(NamedTuple):
    """Neighbouring rows of the whole ranking, before a key and from it on, and the numbers of the key.

    `before` users come before the key, and `better` have a better score.
    """

    total: int
    before: int
    better: int
    above: list[Key]
    below: list[Key]

    def covers(self, above: int, below: int) -> bool:
        return len(self.above) >= min(above, self.before) and len(self.below) >= min(below, self.total - self.before)

    def score_at(self, offset: int) -> float | None:
        """Return the score of the row at an offset, from the key on; None if it is not in the slice."""
        number = offset - self.before
        return self.below[number][0] if 0 <= number < len(self.below) else None


class Span(NamedTuple):
    """The rows of a part between two keys: the offsets of both, and evenly spaced rows."""

    low: int
    high: int
    rows: list[Key]

    def offset(self, number: int) -> int:
        """Return the offset of a row; of the high key after the last row."""
        return self.low + number * (self.high - self.low) // len(self.rows) if number < len(self.rows) else self.high


def narrow(spans: Sequence[Span], low: Key, high: Key, offset: int, slack: int) -> tuple[Key, Key]:
    """Return the closest two of the rows between which an offset of the whole ranking is, less `slack` rows.

    Of a row, it is known how many rows come before it in its own part, and in another part that they are between two
    neighbouring rows of that part.
    """
    least = [span.low for span in spans]
    most = [span.offset(0) for span in spans]
    seen = [0] * len(spans)
    fewest, maximum = sum(least), sum(most)
    for row, part in sorted((row, part) for part, span in enumerate(spans) for row in span.rows):
        exact = spans[part].offset(seen[part])
        if maximum - most[part] + exact <= offset - slack:
            low = row
        if fewest - least[part] + exact > offset:
            return low, row
        seen[part] += 1
        following = spans[part].offset(seen[part])
        fewest += exact + 1 - least[part]
        maximum += following - most[part]
        least[part], most[part] = exact + 1, following
    return low, high


def merge_rows(answers: Sequence[Answer], wanted: Sequence[SliceWanted]) -> list[Slice]:
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
        for answer in answers:
            offset, ahead, start, flat = answer[4][number]
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
        slices.append(Slice(total, before, better, above, below))
    return slices


def likely_share(rows: int, parts: int) -> int:
    """Return how many of some neighbouring rows one part has, at most, in nearly all cases."""
    mean = rows / parts
    return min(rows, math.ceil(mean + 4 * math.sqrt(mean)) + 2)


def pack_keys(asked: Iterable[tuple[Key, int, int]]) -> tuple[bytes, bytes]:
    """Encode keys with the rows that are wanted above and from them on; the times apart, because they are not text."""
    keys, times = [], []
    for (score, member), above, count in asked:
        keys.append((repr(score), member[8:].decode(), above, count))
        times.append(member[:8])
    return pack(keys), b"".join(times)


def read_rows(flat: Sequence[bytes]) -> list[Key]:
    return [(float(score), member) for member, score in zip(flat[::2], flat[1::2], strict=True)]
