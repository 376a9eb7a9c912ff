"""The keys of users in split rankings, as this process saw them last."""

from collections import OrderedDict

from laurels.adapters.redis.part_rows import Key
from laurels.core.board import Ranking

KNOWN_KEYS = 100_000


class KnownKeys:
    """The last keys of users, at most KNOWN_KEYS: the ones used least recently are dropped.

    A key saves a round trip if the user's score has not changed since, or was changed by this process. It may be
    outdated, so the caller must check it against the rows that it reads.
    """

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[int, int, str, str], Key] = OrderedDict()

    def find(self, ranking: Ranking, user_id: str) -> Key | None:
        return None if ranking.shadow_viewer is not None else self._keys.get(_name_of(ranking, user_id))

    def note(self, ranking: Ranking, user_id: str, key: Key | None) -> None:
        """Remember a key; None: forget the user's key."""
        if ranking.shadow_viewer is not None:
            return
        name = _name_of(ranking, user_id)
        if key is None:
            self._keys.pop(name, None)
            return
        self._keys[name] = key
        self._keys.move_to_end(name)
        if len(self._keys) > KNOWN_KEYS:
            self._keys.popitem(last=False)


def _name_of(ranking: Ranking, user_id: str) -> tuple[int, int, str, str]:
    return ranking.period_id, ranking.parts, ranking.segment, user_id
