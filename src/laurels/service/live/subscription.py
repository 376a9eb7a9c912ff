"""One who looks: by which right, at what, and up to which frame they have it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from laurels.errors import LaurelsError
from laurels.service.live.view import Frame, Look, View


class Audience:
    """Who looks, and by which right. `check` raises once they may not any more; `cut` ends their connection."""

    def __init__(self, key_id: str, check: Callable[[], None], cut: Callable[[], None]) -> None:
        self.key_id = key_id
        self.check = check
        self.cut = cut


class Subscription:
    """What one connection looks at. `take`, send, `wait`, until `ended` says why it is over."""

    def __init__(self, audience: Audience, looks: Sequence[Look]) -> None:
        self.audience = audience
        self.looks = looks
        self._views: list[View] = []
        self._seen: list[int | None] = []
        self._wake = asyncio.Event()
        self.wants_heartbeat = False
        # Since when a frame has been on its way out.
        self.sending_since: float | None = None
        self.ended: LaurelsError | None = None

    def begin(self, views: list[View], after: str | None) -> None:
        positions = dict(_positions(after))
        self._views = views
        self._seen = [positions.get(view.id) for view in views]

    def take(self) -> Iterator[Frame]:
        """All that leads to the present, one by one; what is taken next begins there."""
        for number, view in enumerate(self._views):
            for frame in view.after(self._seen[number]):
                self._seen[number] = frame.sequence
                yield frame

    @property
    def position(self) -> str:
        """Where to go on after a break: see `LiveHub.subscribe`."""
        return ",".join(
            f"{view.id}-{seen}" for view, seen in zip(self._views, self._seen, strict=True) if seen is not None
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
    """What a position says; one that can't be read is none."""
    found: list[tuple[str, int]] = []
    for part in (after or "").split(","):
        view_id, _, sequence = part.partition("-")
        if sequence.isascii() and sequence.isdigit() and len(sequence) < 16:
            found.append((view_id, int(sequence)))
    return found
