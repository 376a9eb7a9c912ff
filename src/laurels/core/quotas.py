"""Quotas of a pod: how much of a server the boards of one tenant may use."""

from msgspec import Struct
from msgspec.structs import asdict, replace


class Quotas(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The limits of a pod. None, as part of a pod: the value in the settings. 0: any number."""

    # Boards that are not archived.
    boards: int | None = None
    # Windows with resets, on all of these boards.
    windows: int | None = None
    # The shortest time between two resets of a window.
    min_reset_seconds: int | None = None
    # Users, counted once per board.
    users: int | None = None
    # Accepted events per day (UTC).
    events_per_day: int | None = None
    # Parts of rankings, on all boards that are split: shards times windows.
    parts: int | None = None

    def over(self, defaults: "Quotas") -> "Quotas":
        """Return these quotas, with the default where there is none."""
        return replace(defaults, **{name: value for name, value in asdict(self).items() if value is not None})
