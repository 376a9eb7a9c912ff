"""Players: their profiles, the segments that they are in, and who is hidden."""

import unicodedata
from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

GLOBAL = "global"


class Kind(StrEnum):
    """What a board ranks: the world, each region, each circle (guild, club, friends)."""

    GLOBAL = "global"
    REGION = "region"
    CIRCLE = "circle"


class Hidden(IntEnum):
    """Whether a user is left out of the ranks. SHADOW: of everybody's but the user's own view."""

    NO = 0
    YES = 1
    SHADOW = 2


def name_key(name: str | None) -> str | None:
    """A name as it is searched for: whatever its case, and however its letters were composed."""
    return None if name is None else unicodedata.normalize("NFKC", name).casefold()


def name_range(beginning: str) -> tuple[str, str]:
    """Between which keys the names are that begin so: from the first on, and before the second."""
    key = name_key(beginning) or ""
    return key, key + "\U0010ffff"


class Profile(Struct, frozen=True):
    """What a pod knows of a user. `region_at`: of when the region is; an older word on it changes nothing."""

    user_id: str
    display_name: str | None = None
    avatar_url: str | None = None
    region: str | None = None
    region_at: int = 0
    circles: tuple[str, ...] = ()

    def segments(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """The segments of these kinds that the user is in, beside the world."""
        return segments_of(kinds, self.region, self.circles)


class ProfileChange(Struct, frozen=True):
    """What is to become of a profile; what is UNSET stays. `join` and `leave`: circles."""

    user_id: str
    display_name: str | UnsetType | None = UNSET
    avatar_url: str | UnsetType | None = UNSET
    region: str | UnsetType | None = UNSET
    circles: tuple[str, ...] | UnsetType = UNSET
    join: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether it says where the user is."""
        return self.region is not UNSET or self.circles is not UNSET or bool(self.join or self.leave)

    def made_to(self, profile: Profile, at: int) -> Profile:
        """The profile after the change, which is of an instant."""
        circles = profile.circles if self.circles is UNSET else self.circles
        circles = tuple(sorted({*circles, *self.join} - set(self.leave)))
        changed = replace(profile, circles=circles)
        if self.display_name is not UNSET:
            changed = replace(changed, display_name=self.display_name)
        if self.avatar_url is not UNSET:
            changed = replace(changed, avatar_url=self.avatar_url)
        if self.region is not UNSET:
            # Also if it is the same: an older word on it that comes later changes nothing.
            changed = replace(changed, region=self.region, region_at=max(at, profile.region_at))
        return changed


def hidden_on(board_id: int, hides: Mapping[int, Hidden]) -> Hidden:
    """How a user is hidden on a board (0: on all of them). Who is hidden from all stays so, whatever else was said."""
    return min((hidden for where, hidden in hides.items() if where in {0, board_id}), default=Hidden.NO)


def segments_of(kinds: Iterable[str], region: str | None, circles: Iterable[str]) -> tuple[str, ...]:
    kinds = set(kinds)
    regions = [f"{Kind.REGION}:{region}"] if region is not None and Kind.REGION in kinds else []
    return (*regions, *(f"{Kind.CIRCLE}:{circle}" for circle in sorted(circles) if Kind.CIRCLE in kinds))
