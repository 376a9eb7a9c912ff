"""A subscription: its access rights, its views, and the last frame taken from each."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from laurels.errors import LaurelsError
from laurels.service.live.view import Frame, View, ViewSpec


class SubscriberAccess:
    """The key and the address of a subscriber, the pod of the board that it watches, and control of its connection.

    `is_from_outside`: anybody can be this caller. `check` raises once the subscriber may no longer read; `cut` closes
    the connection.
    """

    def __init__(
        self,
        key_id: str,
        pod_id: str,
        check: Callable[[], None],
        cut: Callable[[], None],
        *,
        address: str = "",
        is_from_outside: bool = False,
    ) -> None:
        self.key_id = key_id
        self.pod_id = pod_id
        self.check = check
        self.cut = cut
        self.address = address
        self.is_from_outside = is_from_outside

    @property
    def is_anonymous(self) -> bool:
        return not self.key_id


class Subscription:
    """The views that one connection watches.

    Use: `take` frames, send them, `wait`, and repeat until `ended` is set to the reason for the end.
    """

    def __init__(self, audience: SubscriberAccess, specs: Sequence[ViewSpec]) -> None:
        self.audience = audience
        self.specs = specs
        self.views: list[View] = []
        self._seen: list[int | None] = []
        self._wake = asyncio.Event()
        self.wants_heartbeat = False
        # When the send in progress began; None if there is none.
        self.sending_since: float | None = None
        self.ended: LaurelsError | None = None

    def begin(self, views: list[View], after: str | None) -> None:
        positions = dict(_positions(after))
        self.views = views
        self._seen = [positions.get(view.id) for view in views]

    def take(self) -> Iterator[Frame]:
        """Yield the frames that lead to the current state; the next call starts from there."""
        for number, view in enumerate(self.views):
            for frame in view.after(self._seen[number]):
                self._seen[number] = frame.sequence
                yield frame

    @property
    def position(self) -> str:
        """Return the position from which to resume: see `LiveHub.subscribe`."""
        return ",".join(
            f"{view.id}-{seen}" for view, seen in zip(self.views, self._seen, strict=True) if seen is not None
        )

    async def wait(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    def wake(self) -> None:
        self._wake.set()

    def end(self, error: LaurelsError) -> None:
        self.ended = self.ended or error
        self._wake.set()


def _positions(after: str | None) -> list[tuple[str, int]]:
    """Return the view ids and sequences in a position, without parts that can't be parsed."""
    found: list[tuple[str, int]] = []
    for part in (after or "").split(","):
        view_id, _, sequence = part.partition("-")
        if sequence.isascii() and sequence.isdigit() and len(sequence) < 16:
            found.append((view_id, int(sequence)))
    return found
