"""The state of a live subscription: the view that its frames build, and where to resume after a lost connection.

Nothing is sent here.
"""

from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from laurels.client.retry import error_from
from laurels.http.answers import Entry
from laurels.http.live_answers import ChangesFrame, HeartbeatFrame, LiveBoard, LiveFrame, ProblemFrame

# Heartbeats are more frequent, so a longer silence means that the connection is lost.
SILENCE_S = 40.0

_decoder = msgspec.json.Decoder(LiveFrame)
_FIELDS = Entry.__struct_fields__


class MissingFrame(Exception):
    """A frame is missing or can't be decoded."""


class LiveView:
    """The current state of a board.

    `around` has the followed user and the neighbours. It is empty while the user is not ranked.
    """

    def __init__(self) -> None:
        self.users: list[Entry] = []
        self.around: list[Entry] = []
        self.total_users = 0
        self.board: LiveBoard | None = None
        # True if the ranks come from the ledger because the index can't be read.
        self.degraded = False
        self._sequences: dict[str, int] = {}

    def apply(self, frame: LiveFrame) -> bool:
        """Apply a frame, and return whether the view has changed.

        Raises `MissingFrame` if a frame before this one is missing, and the error of a problem frame.
        """
        if isinstance(frame, HeartbeatFrame):
            return False
        if isinstance(frame, ProblemFrame):
            raise error_from(frame.problem)
        shown = self.around if frame.view == "around" else self.users
        if isinstance(frame, ChangesFrame):
            if frame.sequence != self._sequences.get(frame.view, 0) + 1:
                raise MissingFrame
            for row in frame.rows:
                entry = Entry(**{name: getattr(row, name) for name in _FIELDS})
                if row.position < len(shown):
                    shown[row.position] = entry
                else:
                    shown.append(entry)
            del shown[frame.length :]
        else:
            shown[:] = frame.users
        self._sequences[frame.view] = frame.sequence
        self.total_users = frame.total_users
        self.degraded = frame.degraded is True
        if frame.board is not UNSET:
            self.board = frame.board
        return True


class LiveSubscription:
    """The state of one subscription across all its connections."""

    def __init__(self) -> None:
        self.view = LiveView()
        self._position = ""
        self._id = ""
        self._failures = 0
        self._rest = b""

    @property
    def headers(self) -> dict[str, str]:
        return {"Last-Event-ID": self._position} if self._position else {}

    @property
    def failures(self) -> int:
        """Return the number of connections in a row that received no frame."""
        return self._failures

    def take(self, chunk: bytes) -> Iterator[LiveView]:
        """Read a chunk of the stream, and yield the view after each frame that changed it."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            # Lines end only at line feeds: a name may contain other characters that end a line elsewhere.
            name, _, value = line.partition(b": ")
            if name == b"id":
                self._id = value.decode()
            elif name == b"data":
                try:
                    changed = self.view.apply(_decoder.decode(value))
                except msgspec.DecodeError as error:
                    raise MissingFrame from error
                self._position = self._id
                self._failures = 0
                if changed:
                    yield self.view

    def lost(self) -> None:
        """Record that the connection was lost."""
        self._failures += 1
        self._rest = b""

    def start_again(self) -> None:
        """Request the whole view with the next connection, because a frame is missing."""
        self._position = ""
