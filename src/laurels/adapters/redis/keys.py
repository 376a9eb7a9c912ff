"""The names of keys and channels of a ranking's parts.

The keys of a part share the text in braces (its tag), and so a slot of a cluster. A ranking with one part has the tag
LEDGER/PERIOD. The parts of a larger one have the tags LEDGER/PERIOD/PARTS.NUMBER, so that rankings with another number
of parts can be built beside it.
"""

from functools import lru_cache
from itertools import count
from typing import NamedTuple

from redis.crc import key_slot

from laurels.core.board import Ranking

SLOTS = 16_384
# The maximum number of parts whose key names are cached.
MAX_KEYS = 10_000
# Reads send only the keys of the live generation, because each key adds to the time of a call.
LIVE_KEYS = 5
_NAMES = ("meta", "z", "h", "d", "n", "b:z", "b:h", "b:d", "b:n")


class PartKeys(NamedTuple):
    """The keys of a part: `names` for scripts that write, `to_read` for those that read."""

    tag: str
    names: tuple[bytes, ...]
    to_read: tuple[bytes, ...]
    channel: str


class KeyNames:
    """The key names of one ledger, cached by period and number of parts."""

    def __init__(self, ledger_id: str) -> None:
        self._ledger_id = ledger_id
        self._cached: dict[tuple[int, int], tuple[PartKeys, ...]] = {}
        self._size = 0

    def of(self, ranking: Ranking) -> tuple[PartKeys, ...]:
        """Return the keys of each part of a ranking, in order."""
        name = (ranking.period_id, ranking.parts)
        keys = self._cached.get(name)
        if keys is None:
            if self._size >= MAX_KEYS:
                # Only one server drops a ranking, so the others keep the names of dropped ones.
                self._cached.clear()
                self._size = 0
            keys = self._cached[name] = tuple(map(_part_keys, tags_of(self._ledger_id, *name)))
            self._size += len(keys)
        return keys

    def forget(self, ranking: Ranking) -> None:
        gone = self._cached.pop((ranking.period_id, ranking.parts), ())
        self._size -= len(gone)

    @property
    def periods(self) -> int:
        """Return for how many rankings the names are cached."""
        return len(self._cached)


@lru_cache(maxsize=1000)
def tags_of(ledger_id: str, period_id: int, parts: int) -> tuple[str, ...]:
    """Return the tags of the parts of a period's rankings, in order.

    Their slots are spread evenly: part 3 of 16 is in the fourth sixteenth of all slots. So nodes with equal shares of
    the slots have equal shares of the parts.
    """
    if parts == 1:
        return (f"{ledger_id}/{period_id}",)
    found: dict[int, str] = {}
    for number in count():
        tag = f"{ledger_id}/{period_id}/{parts}.{number}"
        found.setdefault(key_slot(tag.encode()) * parts // SLOTS, tag)
        if len(found) == parts:
            break
    return tuple(found[part] for part in range(parts))


def read_tag(tag: str) -> tuple[int, int] | None:
    """Return the period and the number of parts that a tag names, without its ledger; None if it names none."""
    period, _, rest = tag.partition("/")
    parts, _, number = rest.partition(".")
    if not _is_number(period) or (rest and not (_is_number(parts) and _is_number(number))):
        return None
    return int(period), int(parts) if rest else 1


def channel_of(tag: str) -> str:
    return f"laurels:{{{tag}}}:feed"


def _part_keys(tag: str) -> PartKeys:
    names = tuple(f"laurels:{{{tag}}}:{name}".encode() for name in _NAMES)
    return PartKeys(tag, names, names[:LIVE_KEYS], channel_of(tag))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
