"""Subscribers to live updates that record what they received."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

from laurels.client import AsyncClient, LiveView
from laurels.http.live_answers import ChangesFrame, HeartbeatFrame, LiveFrame, ProblemFrame

decode_frame = msgspec.json.Decoder(LiveFrame).decode

Seen = tuple[tuple[str, int, float], ...]


def seen(entries: Any) -> Seen:
    return tuple((entry.user_id, entry.rank, entry.score) for entry in entries)


def live_url(url: str, board: str, **query: Any) -> str:
    return f"{url.replace('http', 'ws', 1)}/api/v1/leaderboards/{quote(board, safe='')}/live?{urlencode(query)}"


@contextlib.asynccontextmanager
async def watching(url: str, board: str, key: str | None = None, **query: Any) -> AsyncIterator[ClientConnection]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with connect(live_url(url, board, **query), additional_headers=headers) as socket:
        yield socket


async def next_frame(socket: ClientConnection) -> Any:
    """Return the next frame that is not a heartbeat."""
    while True:
        frame = decode_frame(await asyncio.wait_for(socket.recv(), 30))
        if not isinstance(frame, HeartbeatFrame):
            return frame


class Watcher:
    """A WebSocket subscriber to the top and to one user's neighbours.

    It reconnects after every disconnect and resumes from the last frames it received.
    """

    def __init__(
        self, urls: list[str], board: str, limit: int, user_id: str, choose: Callable[[list[str]], str]
    ) -> None:
        self._urls = urls
        self._board = board
        self._limit = limit
        self.user_id = user_id
        self._choose = choose
        self._ids: dict[str, str] = {}
        self._socket: ClientConnection | None = None
        self.view = LiveView()
        self.tops: list[Seen] = []
        self.arounds: list[Seen] = []
        self.connections = 0
        # Connections that resumed: the first frame had changes, not a snapshot.
        self.resumed = 0

    def drop(self) -> None:
        """Abort the connection without a close frame, as a network failure does."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, websockets.WebSocketException, TimeoutError):
                await self._connect()
            await asyncio.sleep(0.05)

    async def _connect(self) -> None:
        query: dict[str, Any] = {"limit": self._limit, "userId": self.user_id, "above": 1, "below": 1}
        if self._ids:
            query["after"] = ",".join(self._ids.values())
        async with watching(self._choose(self._urls), self._board, **query) as socket:
            self._socket = socket
            self.connections += 1
            first = True
            async for message in socket:
                frame = decode_frame(message)
                if isinstance(frame, ProblemFrame):
                    assert frame.problem.retryable, frame.problem
                    return
                if isinstance(frame, HeartbeatFrame):
                    continue
                # The server never repeats a frame of a sequence.
                assert self._ids.get(frame.view) != frame.id
                if first and isinstance(frame, ChangesFrame):
                    self.resumed += 1
                first = False
                self.view.apply(frame)
                self._ids[frame.view] = frame.id
                (self.tops if frame.view == "top" else self.arounds).append(
                    seen(self.view.users if frame.view == "top" else self.view.around)
                )


class Streamer:
    """A subscriber to the top that uses the Python client, which reads server-sent events."""

    def __init__(self, url: str, board: str, limit: int) -> None:
        self._url = url
        self._board = board
        self._limit = limit
        self.view: LiveView | None = None
        self.tops: list[Seen] = []

    async def run(self) -> None:
        async with AsyncClient(self._url) as client:
            async for view in client.live(self._board, self._limit):
                self.view = view
                self.tops.append(seen(view.users))
