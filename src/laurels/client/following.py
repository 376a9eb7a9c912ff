"""Following a board: what frames make of what is seen, and where to go on after a break. Nothing is sent here."""

from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from laurels.client.trying import error_from
from laurels.http.answers import Entry
from laurels.http.live_answers import ChangesFrame, HeartbeatFrame, LiveBoard, LiveFrame, ProblemFrame

# Heartbeats come more often than that.
SILENCE_S = 40.0

_decoder = msgspec.json.Decoder(LiveFrame)
_FIELDS = Entry.__struct_fields__


class Gap(Exception):
    """A frame is missing."""


class LiveView:
    """A board as it is now. `around`: the followed user and the neighbours; empty while they are not ranked."""

    def __init__(self) -> None:
        self.users: list[Entry] = []
        self.around: list[Entry] = []
        self.total_users = 0
        self.board: LiveBoard | None = None
        # The ranks come straight from the ledger, for the index can't be asked.
        self.degraded = False
        self._sequences: dict[str, int] = {}

    def apply(self, frame: LiveFrame) -> bool:
        """Take a frame over; whether there is something new to see."""
        if isinstance(frame, HeartbeatFrame):
            return False
        if isinstance(frame, ProblemFrame):
            raise error_from(frame.problem)
        shown = self.around if frame.view == "around" else self.users
        if isinstance(frame, ChangesFrame):
            if frame.sequence != self._sequences.get(frame.view, 0) + 1:
                raise Gap
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


class Following:
    """The state of one subscription over all its connections."""

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
        """Connections in a row that brought nothing."""
        return self._failures

    def take(self, chunk: bytes) -> Iterator[LiveView]:
        """Take what came of the stream; gives the view once for each frame that there is something new to see of."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            # Only at these ends: a name may have what others take for the end of a line.
            name, _, value = line.partition(b": ")
            if name == b"id":
                self._id = value.decode()
            elif name == b"data":
                try:
                    changed = self.view.apply(_decoder.decode(value))
                except msgspec.DecodeError as error:
                    raise Gap from error
                self._position = self._id
                self._failures = 0
                if changed:
                    yield self.view

    def lost(self) -> None:
        """The connection is gone."""
        self._failures += 1
        self._rest = b""

    def start_again(self) -> None:
        """Something is missing: all of it is needed."""
        self._position = ""
