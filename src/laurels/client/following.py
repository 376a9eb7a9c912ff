"""Following a board: what frames make of what is seen, and where to go on after a break. Nothing is sent here."""

import msgspec
from msgspec import UNSET

from laurels.client.trying import error_from
from laurels.http.answers import Entry
from laurels.http.live_frames import ChangesFrame, HeartbeatFrame, LiveBoard, LiveFrame, ProblemFrame

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

    @property
    def headers(self) -> dict[str, str]:
        return {"Last-Event-ID": self._position} if self._position else {}

    @property
    def failures(self) -> int:
        """Connections in a row that brought nothing."""
        return self._failures

    def take(self, line: str) -> bool:
        """Take a line of the stream; whether there is something new to see."""
        name, _, value = line.partition(": ")
        if name == "id":
            self._id = value
        elif name == "data":
            changed = self.view.apply(_decoder.decode(value))
            self._position = self._id
            self._failures = 0
            return changed
        return False

    def lost(self) -> None:
        """The connection is gone."""
        self._failures += 1

    def start_again(self) -> None:
        """Something is missing: all of it is needed."""
        self._position = ""
