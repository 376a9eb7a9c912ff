"""Positions in the ledger: what was known of it when rows were read.

A database can come back with less than it had: a standby that lagged behind is promoted, a backup is restored. What
happened before and after that are two histories, and rows of one must not be mixed with rows of the other.
"""

from msgspec import Struct


class AsOf(Struct, frozen=True):
    """What a server knew of the ledger before it read some rows. The rows may be newer than that, never older.

    `history`: a random name that the ledger takes at its making, and takes anew each time it has lost data.
    `floor`: a version. Erased users up to it may be forgotten: an older row of an unknown user must be read again.
    """

    history: str = ""
    floor: int = 0


class Position(AsOf, frozen=True):
    """A point in a history. `at` is the ledger's own text: what is committed there can be told from what is not."""

    at: str = ""

    @property
    def text(self) -> str:
        """How an index stores it."""
        return f"{self.history} {self.floor} {self.at}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Read `text`. What an older version stored belongs to no history."""
        history, _, rest = text.partition(" ")
        floor, _, at = rest.partition(" ")
        return cls(history, int(floor), at) if floor.isdigit() else cls("", 0, text)
