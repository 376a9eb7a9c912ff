"""What the benchmarks share: the board, names of users, and calls over HTTP."""

import asyncio
import random
import time
from collections.abc import Callable

from laurels.core.board import Board
from laurels.core.order import Ties
from laurels.core.scores import Rule
from laurels.service.laurels import Laurels

BOARD = "bench"
CONNECTIONS = 32
SEED = 1

Figures = dict[str, float]


async def bench_board(laurels: Laurels) -> Board:
    """The board that is measured: made at the first time, then the same."""
    board = Board(
        id=0,
        uuid=BOARD,
        pod_id="default",
        name="Bench",
        rule=Rule.INCREMENT,
        ties=Ties.SHARED,
        public=True,
        created_at=0,
    )
    return await laurels.boards.create(board, None)


def user_name(number: int) -> str:
    """24 characters, as database ids often are."""
    return f"{number:024x}"


async def call_http(port: int, key: str, users: int, seconds: float) -> Figures:
    """How many tops, ranks and single scores a server answers a second."""
    rng = random.Random(SEED)
    board = f"/api/v1/leaderboards/{BOARD}"

    def request(method: str, path: str, body: bytes = b"") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\nX-API-Key: {key}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body

    requests: dict[str, Callable[[], bytes]] = {
        "top": lambda: request("GET", board + "/top"),
        "rank": lambda: request("GET", f"{board}/users/{user_name(rng.randrange(users))}/rank"),
        "single": lambda: request("PUT", f"{board}/users/{user_name(rng.randrange(users))}", b'{"score": 1}'),
    }
    figures: Figures = {}
    for name, make in requests.items():
        end = time.perf_counter() + seconds
        start = time.perf_counter()
        counts = await asyncio.gather(*(connection(port, make, end) for _ in range(CONNECTIONS)))
        figures[name] = sum(counts) / (time.perf_counter() - start)
    return figures


async def connection(port: int, make: Callable[[], bytes], end: float) -> int:
    """A bare HTTP client: one connection, one request after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = 0
    while time.perf_counter() < end:
        writer.write(make())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        count += 1
    writer.close()
    return count
