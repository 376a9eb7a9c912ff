"""HTTP clients that measure: a closed loop for rates, an open loop for response times at a given rate."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import httptools

from laurels.errors import Unavailable

SEED = 1
WARM_UP_S = 0.3
# How long to wait for a response that is late.
LAST_S = 10.0
# In an open loop, requests are sent in groups, because a timer per request would cost more than the request.
SEND_EVERY_S = 0.005
# In place of a status: the connection was lost.
LOST = 0


class Connection(asyncio.Protocol):
    """An HTTP/1.1 connection with one request at a time.

    `answered` is called with the status of each response, and with 0 if the connection is lost.
    """

    def __init__(self, answered: "Callable[[Connection, int], None]") -> None:
        self._answered = answered
        self._parser = httptools.HttpResponseParser(self)
        self._is_closing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._answered(self, self._parser.get_status_code())

    def send(self, request: bytes) -> None:
        self._transport.write(request)

    def close(self) -> None:
        self._is_closing = True
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self._is_closing:
            self._is_closing = True
            self._answered(self, LOST)

    @property
    def is_lost(self) -> bool:
        return self._is_closing


def _endless(requests: Sequence[bytes]) -> Iterator[bytes]:
    rng = random.Random(SEED)
    while True:
        yield requests[rng.randrange(len(requests))]


def _need_success(bad: set[int]) -> None:
    if bad:
        told = ["connections were lost"] if LOST in bad else []
        told += [f"responses had the status {status}" for status in sorted(bad - {LOST})]
        raise Unavailable("internal", f"The measurement failed: {', '.join(told)}.")


async def _open(port: int, count: int, answered: Callable[[Connection, int], None], host: str) -> list[Connection]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(lambda: Connection(answered), host, port))[1] for _ in range(count)]


async def closed_loop(
    port: int, requests: Sequence[bytes], connections: int, seconds: float, host: str = "127.0.0.1"
) -> float:
    """Return responses per second: each connection sends its next request when it has the response to the last one.

    Raises Unavailable if a response has another status than 2xx.
    """
    loop = asyncio.get_running_loop()
    stream = _endless(requests)
    count = 0
    bad: set[int] = set()
    stopping = False

    def answered(connection: Connection, status: int) -> None:
        nonlocal count
        count += 1
        if not 200 <= status < 300:
            bad.add(status)
        if not stopping and not connection.is_lost:
            connection.send(next(stream))

    opened = await _open(port, connections, answered, host)
    for each in opened:
        each.send(next(stream))
    await asyncio.sleep(WARM_UP_S)
    before, start = count, loop.time()
    await asyncio.sleep(seconds)
    # A slow server gets the time for at least one response, because a rate of zero says nothing.
    while count == before and loop.time() < start + LAST_S:
        await asyncio.sleep(SEND_EVERY_S)
    rate = (count - before) / (loop.time() - start)
    stopping = True
    await asyncio.sleep(WARM_UP_S)
    for each in opened:
        each.close()
    _need_success(bad)
    return rate


async def send_all(port: int, requests: Sequence[bytes], connections: int, host: str = "127.0.0.1") -> None:
    """Send each request once, and return when all are answered.

    Raises Unavailable if a response has another status than 2xx.
    """
    stream = iter(requests)
    bad: set[int] = set()
    done = asyncio.Event()
    unanswered = len(requests)

    def answered(connection: Connection, status: int) -> None:
        nonlocal unanswered
        unanswered -= 1
        if not 200 <= status < 300:
            bad.add(status)
        if bad or unanswered == 0:
            done.set()
        elif (request := next(stream, None)) is not None:
            connection.send(request)

    opened = await _open(port, min(connections, len(requests)), answered, host)
    for each in opened:
        each.send(next(stream))
    await done.wait()
    for each in opened:
        each.close()
    _need_success(bad)


async def open_loop(
    port: int, loads: Sequence[tuple[Sequence[bytes], float]], connections: int, seconds: float
) -> list[list[float]]:
    """Return the response times in seconds, by load. Each load is a list of requests and their rate per second.

    A request is due at its time whether or not others were answered. A response time counts from then, so a server that
    falls behind can't hide it.
    """
    running = _OpenLoop(loads)
    running.idle += await _open(port, connections, running.answered, "127.0.0.1")
    await running.run(seconds)
    _need_success(running.bad)
    return running.times


class _OpenLoop:
    def __init__(self, loads: Sequence[tuple[Sequence[bytes], float]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._rates = [rate for _, rate in loads]
        self._streams = [_endless(requests) for requests, _ in loads]
        # By load: when the requests are due that no connection was free for, oldest first.
        self._waiting: list[deque[float]] = [deque() for _ in loads]
        # The load and the due time of the request that a connection has sent.
        self._sent: dict[Connection, tuple[int, float]] = {}
        self.idle: list[Connection] = []
        self.times: list[list[float]] = [[] for _ in loads]
        self.bad: set[int] = set()

    def answered(self, connection: Connection, status: int) -> None:
        if not 200 <= status < 300:
            self.bad.add(status)
        if connection.is_lost:
            self._sent.pop(connection, None)
            self.idle = [each for each in self.idle if each is not connection]
            return
        number, due = self._sent.pop(connection)
        self.times[number].append(self._loop.time() - due)
        self.idle.append(connection)
        self._send()

    def _send(self) -> None:
        for number, dues in enumerate(self._waiting):
            while dues and self.idle:
                connection = self.idle.pop()
                self._sent[connection] = (number, dues.popleft())
                connection.send(next(self._streams[number]))

    async def run(self, seconds: float) -> None:
        start = self._loop.time()
        offered = [0] * len(self._rates)
        while (passed := self._loop.time() - start) < seconds:
            for number, rate in enumerate(self._rates):
                until = int(passed * rate)
                self._waiting[number].extend(start + each / rate for each in range(offered[number], until))
                offered[number] = until
            self._send()
            await asyncio.sleep(SEND_EVERY_S)
        await self._wait_for_the_last()
        for each in [*self.idle, *self._sent]:
            each.close()

    async def _wait_for_the_last(self) -> None:
        end = self._loop.time() + LAST_S
        while (self._sent or any(self._waiting)) and self._loop.time() < end:
            await asyncio.sleep(SEND_EVERY_S)
        # What has no response yet took at least this long.
        late = [*self._sent.values(), *((number, due) for number, dues in enumerate(self._waiting) for due in dues)]
        for number, due in late:
            self.times[number].append(self._loop.time() - due)
