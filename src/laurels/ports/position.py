"""Positions in the ledger, and the knowledge of the ledger with which rows were read.

A database can come back with less data than it had: a lagging standby is promoted, or a backup is restored. The time
before and the time after are two histories, and rows of one must not be mixed with rows of the other.
"""

from msgspec import Struct


class AsOf(Struct, frozen=True):
    """What a server knew of the ledger before it read some rows. The rows may be newer, never older.

    `history` is a random name. The ledger chooses it when it is created, and a new one each time it has lost data.
    `floor` is a version: erased users up to it may be forgotten, so an older row of an unknown user must be read again.
    """

    history: str = ""
    floor: int = 0


class Position(AsOf, frozen=True):
    """A point in a history.

    `at` is text that only the ledger interprets. It separates what was committed at that point from what was not.
    """

    at: str = ""

    @property
    def text(self) -> str:
        """Return the position as the text that an index stores."""
        return f"{self.history} {self.floor} {self.at}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Parse the text of a position. Text that an older version of Laurels stored belongs to no history."""
        history, _, rest = text.partition(" ")
        floor, _, at = rest.partition(" ")
        return cls(history, int(floor), at) if floor.isdigit() else cls("", 0, text)
