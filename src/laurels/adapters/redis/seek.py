"""The search for offsets of a split ranking: which key is there, and how many rows up to it each part has.

The parts are chosen by a hash, so each of them is a random sample of the whole ranking: the row at some fraction of a
part is close to the row at that fraction of the whole. Each round therefore asks every part for one row between two
keys, takes two of these rows, below and above the middle, and counts the users before both. A search of 25 million
users in 16 parts takes two or three rounds. If users move meanwhile, only the time of a search changes: the rows are
read, and their offsets counted, in one gathering afterwards.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from laurels.adapters.redis.connection import Answer
from laurels.adapters.redis.packing import pack
from laurels.adapters.redis.part_rows import END, START, Key, Slice, Wanted, read_rows

# A search ends when this many rows are left between the two keys, and after so many rounds.
ENOUGH_ROWS = 1024
ROUNDS = 24
# How far from the middle the two keys are taken, in standard deviations of the middle.
DEVIATIONS = 1.5

# Reads rows at offsets of each part, or counts the users before keys.
Look = Callable[[str, Mapping[int, Sequence[bytes]]], Awaitable[list[Answer]]]
Count = Callable[[Sequence[Wanted]], Awaitable[list[Slice]]]


class Place(NamedTuple):
    """A key that was at most `sum(shares)` rows before an offset; `shares` of these rows are in each part."""

    key: Key
    shares: list[int]


class _Search:
    def __init__(self, offset: int, parts: int) -> None:
        self.offset = offset
        self._parts = parts
        self._low, self._lows = START, [0] * parts
        self._high, self._highs = END, list[int]()
        self.is_done = False

    @property
    def place(self) -> Place:
        return Place(self._low, [high - low for low, high in zip(self._lows, self._highs, strict=True)])

    def pick(self, part: int) -> int:
        """Return the offset at which a part is asked for a row."""
        if not self._highs:
            return self.offset // self._parts
        before = sum(self._lows)
        width = max(1, sum(self._highs) - before)
        low, high = self._lows[part], self._highs[part]
        return min(low + (self.offset - before) * (high - low) // width, high - 1)

    def probes(self, picked: Sequence[tuple[int, Key | None]]) -> list[Key]:
        """Return two keys to count, from the total and the row of each part."""
        if not self._highs:
            self._highs = [total for total, _ in picked]
        keys = sorted(key for _, key in picked if key is not None and self._low <= key < self._high)
        if not keys:
            self.is_done = True
            return []
        spread = math.ceil(DEVIATIONS * math.sqrt(len(keys)))
        return [keys[max(0, (len(keys) - 1) // 2 - spread)], keys[min(len(keys) - 1, len(keys) // 2 + spread)]]

    def narrow(self, counted: Sequence[Slice]) -> None:
        known = self._low, self._high
        for found in counted:
            if found.before <= self.offset and found.key >= self._low:
                self._low, self._lows = found.key, found.offsets
            elif found.before > self.offset and found.key < self._high:
                self._high, self._highs = found.key, found.offsets
        # Users who moved can leave less than nothing between the keys of a part.
        self._highs = [max(low, high) for low, high in zip(self._lows, self._highs, strict=True)]
        self.is_done = sum(self.place.shares) <= ENOUGH_ROWS or known == (self._low, self._high)


async def seek(parts: int, offsets: Sequence[int], look: Look, count: Count) -> list[Place]:
    """Search some offsets at the same time. O(parts · log n) for each, in a few round trips."""
    searches = [_Search(offset, parts) for offset in offsets]
    for _ in range(ROUNDS):
        active = [search for search in searches if not search.is_done]
        if not active:
            break
        asked = {part: (pack([search.pick(part) for search in active]),) for part in range(parts)}
        answers = [(answer[0], read_rows(answer[1])) for answer in await look("pick", asked)]
        probes = [
            search.probes([(total, rows[number] if rows else None) for total, rows in answers])
            for number, search in enumerate(active)
        ]
        counted = iter(await count([Wanted(key) for keys in probes for key in keys]))
        for search, keys in zip(active, probes, strict=True):
            search.narrow([next(counted) for _ in keys])
    return [search.place for search in searches]
