"""The hot lane answers as the ordinary way does: the same requests, sent both ways, get the same bytes."""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from laurels.core.board import Status
from laurels.core.windows import ALL_TIME
from laurels.http import call, protocol
from laurels.http.application import Application
from laurels.http.hot_lane import HotLane
from laurels.http.protocol import BoundedProtocol
from laurels.http.routes import BOARD, ROUTES, build_app
from laurels.ports import Key, Role
from laurels.server import listen
from laurels.service.laurels import Laurels
from laurels.service.write.submissions import Submission
from support.effort import examples
from support.people import held
from support.running import PLAIN
from support.seasons import create, pass_days
from support.services import Stage

KEEP_ALIVE_S = 1
LAST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
# The parts of a response that differ between two calls: the date, an event id that the server made, and whether the
# index of that server could answer at that moment.
VOLATILE = re.compile(rb'(?<=\ndate: )[^\r]+|(?<="eventId":")[0-9a-f]{32}(?=")')
DEGRADED = b"laurels-degraded: read-from-ledger\r\n"
KEYS = {
    "admin": "admin",
    "server": "lrl_000000000001_server",
    "client": "lrl_000000000002_client",
    "other": "lrl_000000000003_other",
    "unknown": "lrl_000000000004_unknown",
}
BOARDS = [
    # A board may have the name of a part of a path.
    {"UUID": "users", "name": "Users", "rule": "increment", "public": True},
    {"UUID": "private", "name": "Private", "rule": "best", "order": "asc", "ties": "latest", "capacity": 3},
    {
        "UUID": "regions",
        "name": "Regions",
        "rule": "increment",
        "segments": ["global", "region"],
        "public": True,
        "windows": ["daily", "all"],
    },
    {"UUID": "buffered", "name": "Buffered", "rule": "latest", "flushMs": 60_000, "public": True},
    {"UUID": "ahead", "name": "Ahead", "startTime": "2099-01-01T00:00:00Z", "public": True},
    {"UUID": "bounded", "name": "Bounded", "minScore": 0, "maxScore": 100, "public": True, "ties": "shared"},
]


class Pair:
    """Two servers with the same data. Only the first has the hot lane."""

    def __init__(self, run: Callable[..., object], stages: list[Stage], ports: list[int], lane: HotLane) -> None:
        self.run, self.ports, self.lane = run, ports, lane
        self._clocks = [stage.clock for stage in stages]
        self.is_embedded = stages[0].kind == "embedded"

    def send(self, pieces: list[bytes], *, one_by_one: bool = False) -> tuple[bytes, bytes]:
        """Send the same bytes to both servers, and return their responses.

        `one_by_one`: each piece is a request, sent after the response to the one before it.
        """
        for clock in self._clocks:
            clock.now += 1_000_000
        answers = [self.run(_converse(port, pieces) if one_by_one else _exchange(port, pieces)) for port in self.ports]
        hot, ordinary = [
            VOLATILE.sub(b"-", answer.replace(DEGRADED, b"")) for answer in answers if isinstance(answer, bytes)
        ]
        return hot, ordinary


async def _exchange(port: int, pieces: list[bytes]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""

    async def read() -> None:
        # Meanwhile, because what has arrived is lost if a later write fails.
        nonlocal answer
        with contextlib.suppress(ConnectionError):
            while some := await reader.read(65536):
                answer += some

    reading = asyncio.create_task(read())
    try:
        # RuntimeError: uvloop's transport is closed. A server may refuse a request before all of it has arrived.
        with contextlib.suppress(ConnectionError, RuntimeError):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.002)
        async with asyncio.timeout(10):
            await reading
    except TimeoutError:
        answer += b"TimeoutError"
    finally:
        reading.cancel()
        writer.close()
    return answer


async def _converse(port: int, requests: list[bytes]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    for request in requests:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        answer += head + await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    writer.close()
    return answer


async def _stay(port: int, first: bytes, second: bytes, seconds: float) -> bool:
    """Return True if a connection with these two messages is open after some time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    await reader.readuntil(b"}")
    writer.write(second)
    ends = asyncio.get_running_loop().time() + seconds
    try:
        while asyncio.get_running_loop().time() < ends:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    if not await reader.read(65536):
                        return False
        return True
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def _serving(app: Application) -> AsyncIterator[int]:
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=BoundedProtocol, lifespan="off", log_config=None, access_log=False, proxy_headers=False
        )
    )
    listening = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def _prepare(laurels: Laurels, port: int) -> None:
    """Create boards, names and keys, the same on both servers."""
    await laurels.access.create_pod("other", "Other")
    for role, pod in ((Role.SERVER, "default"), (Role.CLIENT, "default"), (Role.SERVER, "other")):
        token = KEYS["other" if pod == "other" else role.value]
        digest = hashlib.sha256(token.encode()).digest()
        await laurels.access.adopt_key(Key(token.split("_")[1], pod, role, None, digest, 0))
    headers = {"X-API-Key": KEYS["server"]}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers, verify=PLAIN) as client:
        for board in BOARDS:
            assert (await client.post("/leaderboards", json=board)).status_code == 201
        named = await client.put("/users/ada", json={"displayName": "Ada", "region": "eu"})
        assert named.status_code == 200, named.text
        for number, user in enumerate(("ada", "bob", "日", "a/b", "eve")):
            for scored_board in ("default", "private", "regions", "bounded", "users"):
                path = f"/leaderboards/{scored_board}/users/{user.replace('/', '%2F')}"
                scored = await client.put(path, json={"score": number * 7 % 3, "eventId": f"first-{user}"})
                assert scored.status_code == 200, scored.text
        hidden = await client.put("/leaderboards/default/users/eve/hidden", json={"reason": "cheat", "shadow": True})
        assert hidden.status_code == 200, hidden.text


@pytest.fixture(scope="module", params=["embedded", "shared"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("hot")
    stages = [Stage(request.param, folder / name) for name in ("hot", "ordinary")]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = contextlib.AsyncExitStack()
        lanes: list[HotLane] = []

        async def start() -> list[int]:
            ports = []
            for stage in stages:
                laurels = await stack.enter_async_context(stage.running())
                app = build_app(laurels)
                assert isinstance(app, Application)
                assert app.hot_lane is not None
                lanes.append(app.hot_lane)
                if stage is not stages[0]:
                    app.hot_lane = None
                ports.append(await stack.enter_async_context(_serving(app)))
                await _prepare(laurels, ports[-1])
            return ports

        try:
            ports = runner.run(start())
            yield Pair(runner.run, stages, ports, lanes[0])
        finally:
            runner.run(stack.aclose())


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (call, protocol):
        monkeypatch.setattr(module, "BODY_TIMEOUT_S", 0.3)


boards = st.sampled_from(
    ["default", *(str(board["UUID"]) for board in BOARDS), "nosuch", "d%65fault", "%ff", "a%00b", ""]
)
users = st.sampled_from(["ada", "bob", "%E6%97%A5", "a%2Fb", "eve", "nobody", "%ff", "%07", "", "x" * 300])
queries = st.sampled_from(
    [
        "",
        "?",
        "?limit=2",
        "?limit=2&offset=1",
        "?limit=0",
        "?limit=x",
        "?limit=1&limit=1",
        "?window=all",
        "?window=daily",
        "?window=nosuch",
        "?period=current",
        "?period=previous",
        "?period=nosuch",
        "?segment=region:eu",
        "?segment=circle:a",
        "?segment=region:",
        "?order=reverse",
        "?percent=40",
        "?fill=true&above=1",
        "?fill=x",
        "?previous=true",
        "?ranking=dense",
        "?ranking=competition",
        "?ranking=ordinal",
        "?ranking=x",
        "?viewer=eve",
        "?viewer=ada",
        "?above=1&below=0",
        "?above=-1",
        "?unknown=1",
        "?limit=1&window=all&ranking=dense",
        "?limit=%32",
        "#top",
    ]
)
bodies = st.sampled_from(
    [
        b'{"score": 5}',
        b'{"score": 5, "eventId": "one"}',
        b'{"score": 6, "eventId": "one"}',
        b'{"score": 0.1}',
        b"",
        b'{"score": -3.5, "metadata": {"car": "red"}, "region": "us"}',
        b'{"score": "5"}',
        b'{"score": 1e999}',
        b"{",
        b"[]",
        b'{"score": 1, "timestamp": "2055-01-15T00:00:00.1234567Z"}',
        b'{"score": 1, "timestamp": "1960-01-01T00:00:00Z"}',
        b'{"score": 9007199254740993}',
        b'{"points": 1}',
        b'{"score": 1, "podId": "default"}',
        b"\xff",
        b'{"score": 1}' * 2,
        b'{"score": 200, "eventId": ""}',
        b'{"scores": []}',
        b'{"scores": [{"userId": "ada", "score": 1, "eventId": "x"}]}',
        b'{"scores": [{"userId": "ada", "score": 1}, {"userId": "", "score": 1}, {"score": 1}, 5]}',
        b'{"score": 1, "metadata": "' + b"x" * 70_000 + b'"}',
    ]
)
keys = st.one_of(
    st.sampled_from([f"X-API-Key: {key}\r\n" for key in KEYS.values()]),
    st.sampled_from([f"Authorization: Bearer {key}\r\n" for key in KEYS.values()]),
    st.sampled_from(
        ["", "Authorization: Basic x\r\n", "authorization: bearer admin \r\nX-API-Key: x\r\n", "x-api-key: \r\n"]
    ),
)
others = st.lists(
    st.sampled_from(
        [
            "Connection: keep-alive\r\n",
            "Accept: */*\r\n",
            "Idempotency-Key: k1\r\n",
            "Idempotency-Key: \r\n",
            "Expect: 100-continue\r\n",
            "X-Long: " + "x" * 3000 + "\r\n",
        ]
    ),
    max_size=2,
)
media_types = st.sampled_from(
    ["Content-Type: application/json\r\n"] * 4
    + [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/json; charset=utf-8\r\n",
        "content-type: a/b+json\r\n",
    ]
)


@st.composite
def requests(draw: st.DrawFn, version: str = "1.1", ending: str = "") -> bytes:
    """Draw the bytes of a request to one of the hot routes: valid, odd or broken."""
    board, user = draw(boards), draw(users)
    read = st.sampled_from([f"{board}/top", f"{board}/users/{user}/rank", f"{board}/users/{user}/around"])
    method, address = draw(
        st.one_of(
            st.tuples(st.sampled_from(["GET"] * 6 + ["HEAD", "POST"]), read),
            st.tuples(st.sampled_from(["PUT"] * 6 + ["DELETE", "GET"]), st.just(f"{board}/users/{user}")),
            st.tuples(st.sampled_from(["POST"] * 6 + ["PUT"]), st.just(f"{board}/scores")),
        )
    )
    head = f"{method} /api/v1/leaderboards/{address}{draw(queries)} HTTP/{version}\r\nHost: x\r\n"
    head += draw(keys) + "".join(draw(others)) + ending
    if method in {"GET", "HEAD", "DELETE"} and draw(st.integers(0, 9)):
        return head.encode() + b"\r\n"
    body, head = draw(bodies), head + draw(media_types)
    if ending or version != "1.1":
        # A connection that is closed while data arrives is reset, and the response may be lost.
        body = body[:1000]
    if draw(st.integers(0, 9)) == 0:
        return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


# The last request on a connection: the server closes it.
last_requests = st.one_of(
    st.just(LAST),
    requests(ending="Connection: close\r\n"),
    requests(version="1.0"),
    requests(ending="Connection: Upgrade\r\nUpgrade: h2c\r\nConnection: close\r\n"),
)


@st.composite
def exchanges(draw: st.DrawFn) -> list[bytes]:
    """Draw what a client sends on one connection: pipelined requests, cut into pieces anywhere."""
    sent = b"".join(draw(st.lists(requests(), max_size=4)))
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=3)))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    pieces[-1] += draw(last_requests)
    return [piece for piece in pieces if piece]


@st.composite
def repetitions(draw: st.DrawFn) -> list[bytes]:
    """Draw requests that are sent one by one, each twice: the lane remembers the head of the first."""
    return [piece for each in draw(st.lists(requests(), min_size=1, max_size=4)) for piece in (each, each)] + [LAST]


# uvicorn refuses what is not HTTP at once, before it answers earlier requests, so this comes alone.
broken = st.sampled_from(
    [[b"GET /api/v1/leaderboards/default/top HTTP/1.1\r\nno colon\r\n\r\n"], [b"\r\nGET / HTTP/1.1 \r\n\r\n"]]
)


@settings(max_examples=examples(400))
@given(pieces=st.one_of(*[exchanges(), repetitions()] * 5, broken))
def test_both_ways_answer_with_the_same_bytes(pair: Pair, pieces: list[bytes]) -> None:
    hot, ordinary = pair.send(pieces)
    assert hot == ordinary


def test_plain_calls_take_the_hot_lane(pair: Pair) -> None:
    board = b"/api/v1/leaderboards/default"
    key = b"Host: x\r\nX-API-Key: admin\r\n"
    calls = []
    # Writes first, because another test may have removed the users.
    for method, address, body in (
        (b"PUT", b"/users/ada", b'{"score": 1}'),
        (b"PUT", b"/users/bob", b'{"score": 21}'),
        (b"POST", b"/scores", b'{"scores": [{"userId": "ada", "score": 1}]}'),
    ):
        head = key + b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        calls.append(b"%b %b%b HTTP/1.1\r\n%b\r\n%b" % (method, board, address, head, body))
    calls += [
        b"GET %b%b HTTP/1.1\r\n%b\r\n" % (board, address, key)
        for address in (b"/top", b"/users/ada/rank", b"/users/ada/around", b"/users/bob/around?above=1&window=all")
    ]
    for each in calls:
        taken, recalled = pair.lane.taken, pair.lane.recalled
        hot, ordinary = pair.send([each] * 3, one_by_one=True)
        assert hot == ordinary
        assert hot.count(b"HTTP/1.1 200 OK") == 3
        assert (pair.lane.taken - taken, pair.lane.recalled - recalled) == (3, 2)


def test_line_breaks_after_a_request_are_not_remembered_as_its_body(pair: Pair) -> None:
    top = b"GET /api/v1/leaderboards/default/top?limit=1 HTTP/1.1\r\nHost: breaks\r\n\r\n"
    hot, _ = pair.send([top + b"\r\n" * (len(LAST) // 2)], one_by_one=True)
    assert hot.startswith(b"HTTP/1.1 200 OK")
    # As many bytes as the line breaks, but a request.
    following = LAST if len(LAST) % 2 == 0 else LAST.replace(b"Host: x", b"Host: xy")
    hot, ordinary = pair.send([top + following])
    assert hot == ordinary
    assert hot.count(b"HTTP/1.1 200 OK") == 2


def test_board_with_the_name_of_a_path_part_is_written_by_its_users(pair: Pair) -> None:
    board, key = b"/api/v1/leaderboards/users", b"Host: x\r\nX-API-Key: admin\r\n"
    head = key + b"Content-Type: application/json\r\nContent-Length: 12\r\n"
    for user in (b"users", b"bob", b"top"):
        put = b'PUT %b/users/%b HTTP/1.1\r\n%b\r\n{"score": 1}' % (board, user, head)
        hot, ordinary = pair.send([put] * 2, one_by_one=True)
        assert hot == ordinary
        assert hot.count(b'"userId":"%b"' % user) == 2
    for path in (b"top", b"events", b"users/bob", b"users/users/rank", b"users/bob/users", b"users/users/users"):
        hot, ordinary = pair.send([b"GET %b/%b HTTP/1.1\r\n%b\r\n" % (board, path, key)] * 2, one_by_one=True)
        assert hot == ordinary


def test_batch_that_arrives_in_pieces_is_answered_in_the_lane(pair: Pair) -> None:
    items = b",".join(b'{"userId": "user-%080d", "score": %d}' % (number, number) for number in range(1000))
    body = b'{"scores": [%b]}' % items
    head = (
        b"POST /api/v1/leaderboards/default/scores HTTP/1.1\r\nHost: x\r\nX-API-Key: admin\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    taken = pair.lane.taken
    hot, ordinary = pair.send([head + body[:10], body[10:60_000], body[60_000:], LAST])
    assert hot == ordinary
    assert hot.count(b'"accepted"') == 1000
    assert pair.lane.taken == taken + 1


def test_read_of_a_period_that_another_server_has_frozen_returns_its_final_ranks(tmp_path: Path) -> None:
    """The hot read finds no ranking, asks the ledger, reloads the board, and reads the final ranks."""
    stage = Stage("shared", tmp_path)
    get = b"GET /api/v1/leaderboards/board/users/ada/rank HTTP/1.1\r\nHost: x\r\nX-API-Key: admin\r\n\r\n"

    async def play() -> None:
        async with stage.running() as first, stage.running() as late:
            await create(first, windows=(ALL_TIME,), grace_s=0)
            await late.boards.reload()
            app = build_app(late)
            assert isinstance(app, Application)
            assert app.hot_lane is not None
            async with _serving(app) as port:
                await first.submissions.submit(held(first), Submission("ada", 5))
                before = await _converse(port, [get])
                # From here on, this server learns nothing of changes on the other one.
                late.registry.reloads = []
                await first.boards.change(held(first), {}, Status.ENDED)
                await pass_days(first, stage, 1)
                after = await _converse(port, [get])
                assert app.hot_lane.taken == 2
        assert before.startswith(b"HTTP/1.1 200 OK")
        assert after.partition(b"\r\n\r\n")[2] == before.partition(b"\r\n\r\n")[2]

    asyncio.run(play())


def test_queued_request_is_not_cut_off_as_an_idle_connection(pair: Pair) -> None:
    get = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    stream = b"GET /api/v1/leaderboards/default/stream HTTP/1.1\r\nHost: x\r\n\r\n"
    assert pair.run(_stay(pair.ports[0], get, get + stream, 2.5 * KEEP_ALIVE_S))


def test_hot_routes_are_those_that_carry_the_traffic() -> None:
    hot = {(each.method, each.path.removeprefix(BOARD)) for each in ROUTES if each.endpoint.traits.hot is not None}
    assert hot == {
        ("GET", "/top"),
        ("GET", "/users/{userId}/rank"),
        ("GET", "/users/{userId}/around"),
        ("PUT", "/users/{userId}"),
        ("POST", "/scores"),
    }
