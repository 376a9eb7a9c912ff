"""Users of a pod: their profiles, their segments, and who is hidden."""

import unicodedata
from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

GLOBAL = "global"


class SegmentKind(StrEnum):
    """The kinds of segments that a board can rank: all users, each region, each circle (guild, club, friends)."""

    GLOBAL = "global"
    REGION = "region"
    CIRCLE = "circle"


class Hidden(IntEnum):
    """Whether a user is hidden from rankings. SHADOW hides the user from everybody but themselves."""

    NO = 0
    YES = 1
    SHADOW = 2


def name_key(name: str | None) -> str | None:
    """Return the key under which a name is searched; None for None.

    The key ignores case and the way in which letters are composed (NFKC).
    """
    return None if name is None else unicodedata.normalize("NFKC", name).casefold()


def name_range(beginning: str) -> tuple[str, str]:
    """Return the range of search keys of the names that start with `beginning`.

    The first key is included, the second is not.
    """
    key = name_key(beginning) or ""
    return key, key + "\U0010ffff"


class Profile(Struct, frozen=True):
    """The data that a pod stores about a user.

    `region_at` is the time at which the region was stated. An event with an older time does not change the region.
    """

    user_id: str
    display_name: str | None = None
    avatar_url: str | None = None
    region: str | None = None
    region_at: int = 0
    circles: tuple[str, ...] = ()
    # Canonical JSON object.
    attributes: str | None = None

    def segments(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Return the segments of these kinds that the user is in, without the global one."""
        return segments_of(kinds, self.region, self.circles)


class ProfileChange(Struct, frozen=True):
    """A change of a profile. Fields that are UNSET stay as they are.

    `circles` replaces all circles; `join` and `leave` add and remove some.
    """

    user_id: str
    display_name: str | UnsetType | None = UNSET
    avatar_url: str | UnsetType | None = UNSET
    region: str | UnsetType | None = UNSET
    circles: tuple[str, ...] | UnsetType = UNSET
    join: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    attributes: str | UnsetType | None = UNSET

    @property
    def moves(self) -> bool:
        """Return True if the change sets the region or the circles."""
        return self.region is not UNSET or self.circles is not UNSET or bool(self.join or self.leave)

    def made_to(self, profile: Profile, at: int) -> Profile:
        """Return `profile` with this change, which was made at the instant `at`."""
        circles = profile.circles if self.circles is UNSET else self.circles
        circles = tuple(sorted({*circles, *self.join} - set(self.leave)))
        changed = replace(profile, circles=circles)
        if self.display_name is not UNSET:
            changed = replace(changed, display_name=self.display_name)
        if self.avatar_url is not UNSET:
            changed = replace(changed, avatar_url=self.avatar_url)
        if self.attributes is not UNSET:
            changed = replace(changed, attributes=self.attributes)
        if self.region is not UNSET:
            # Even if the region is the same, so that an older event that arrives later does not change it.
            changed = replace(changed, region=self.region, region_at=max(at, profile.region_at))
        return changed


def hidden_on(board_id: int, hides: Mapping[int, Hidden]) -> Hidden:
    """Return how a user is hidden on a board. `hides` maps board ids to states; 0 means all boards of the pod.

    YES takes precedence over SHADOW.
    """
    return min((hidden for where, hidden in hides.items() if where in {0, board_id}), default=Hidden.NO)


def segments_of(kinds: Iterable[str], region: str | None, circles: Iterable[str]) -> tuple[str, ...]:
    kinds = set(kinds)
    regions = [f"{SegmentKind.REGION}:{region}"] if region is not None and SegmentKind.REGION in kinds else []
    return (*regions, *(f"{SegmentKind.CIRCLE}:{circle}" for circle in sorted(circles) if SegmentKind.CIRCLE in kinds))
