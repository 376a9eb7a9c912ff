"""The hot lane: answers the most frequent calls in the protocol, without ASGI.

These are the routes with `hot` in the route table. The lane uses the same guards, decoders, handlers and encoders as
ASGI calls (call.py), but no scope, no request and response objects, and no task. It takes plain requests only: `enter`
returns None for all others, and protocol.py passes these on to uvicorn.

The result of the guard and of the query's decoder is cached as a plan. A plan serves all calls that differ only in the
user, until a board or a key changes. Most clients send the same head with every request, so the lane also caches heads
by their bytes: a cached head is not parsed again.
"""

import asyncio
import re
from collections.abc import Callable, Generator, Mapping
from functools import lru_cache
from typing import Any

import structlog
from starlette.responses import Response

from laurels import tracing
from laurels.core.instants import SECOND_US
from laurels.errors import LaurelsError, Unavailable
from laurels.http.call import Call, Endpoint, Finish, HotPlan
from laurels.http.page_cache import PageCache
from laurels.http.problems import PRIVATE, internal_error, problem_response
from laurels.http.protocol import Headers
from laurels.http.routing import Answerer, RouteTree, decode_part
from laurels.http.sight import Sight, class_of
from laurels.service.laurels import Laurels

log = structlog.get_logger()

_METHODS = {b"GET": "GET", b"PUT": "PUT", b"POST": "POST"}
# Headers that change how a request is read or answered, with the values that the lane supports.
_SPECIAL: dict[bytes, tuple[bytes, ...]] = {
    b"connection": (b"keep-alive", b"Keep-Alive"),
    b"expect": (),
    # The response depends on the origins that the pod allows.
    b"origin": (),
    b"transfer-encoding": (),
    b"upgrade": (),
}
# Headers that a plan depends on.
_NOTED = {b"authorization", b"x-api-key", b"content-type", b"content-length"}
KEPT_PLANS = 10_000
KEPT_PLANS_US = 60 * SECOND_US
# The maximum number of cached heads, and the maximum size of each; also of the head that a plan is made of.
KEPT_HEADS = 10_000
HEAD_BYTES = 2048
# A URL and a request line with a user: the part before the user, the user, and the part after it. The patterns include
# the board, because "users" is also a valid name of a board.
_URL = re.compile(rb"(/api/v1/leaderboards/[^/?#]+)/users/([^/?#]*)(?:/([^/]*))?")
_LINE = re.compile(rb"([A-Z]+ /api/v1/leaderboards/[^/ ?#]+)/users/([0-9A-Za-z_.-]{1,256})(?=[/ ])(.*)")

_PRIVATE_LINES = b"".join(b"%b: %b\r\n" % (name.lower().encode(), value.encode()) for name, value in PRIVATE.items())

# Called once with the status, the body and the headers of a response. No headers: the body is JSON.
Respond = Callable[[int, bytes, Headers | None], None]


class Plan:
    """A kind of call: the same method, path, query and key, but any user."""

    __slots__ = (
        "answer_now",
        "board_changes",
        "body_bytes",
        "call",
        "endpoint",
        "extra_lines",
        "gate",
        "key_changes",
        "meter",
        "route",
        "sight",
        "since",
        "start",
        "until",
    )

    def __init__(self, endpoint: Endpoint, call: Call[Any, Any], hot: HotPlan, route: str, sight: Sight) -> None:
        self.endpoint = endpoint
        self.route, self.sight = route, sight
        self.meter = sight.meter(route, class_of(call.caller, call.pod_id))
        self.call = call
        # The plan is valid between these instants, as long as these counters of changes stay the same.
        self.key_changes, self.board_changes = call.laurels.access.changes, call.laurels.boards.changes
        self.since = hot.since
        # Not for ever, so that the time of the last use of a key is noted.
        kept_until = call.laurels.clock.now_us() + KEPT_PLANS_US
        self.until = min(hot.until, call.caller.expires_at, kept_until)
        # The limit of the body; 0 if the call has none.
        self.body_bytes = 0 if endpoint.body_type is None else endpoint.traits.body_bytes
        self.answer_now, self.start = hot.answer_now, hot.start
        self.gate = endpoint.gate(call)
        # More lines for the head of a response that is JSON.
        self.extra_lines = _PRIVATE_LINES if endpoint.is_private(call) else b""


class HotCall:
    """A request in the hot lane."""

    __slots__ = ("_body", "_is_shed", "body_bytes", "headers", "length", "plan", "user")

    def __init__(self, plan: Plan, user: str, headers: Headers) -> None:
        self.plan = plan
        self.user = user
        self.headers = headers
        self._body: Any = None
        # The call is refused because of an overload; with a body, that is known before it is decoded.
        self._is_shed = False
        self.body_bytes = plan.body_bytes
        # The length of the body that arrived.
        self.length = 0

    def decode(self, body: bytes) -> bool:
        """Decode the body, and return False if it is invalid."""
        self.length = len(body)
        self._is_shed = self.plan.gate.sheds(len(body))
        if self._is_shed:
            return True
        try:
            self._body = self.plan.endpoint.decode(body)
        except LaurelsError:
            return False
        return True

    def note(self, began: float, address: str, status: int, size: int) -> None:
        """Count the call, which is answered."""
        plan = self.plan
        plan.sight.note(
            plan.meter,
            began,
            status,
            size,
            route=plan.route,
            address=address,
            key_id=plan.call.caller.key_id,
            headers=self.headers,
        )

    def run(self, address: str, respond: Respond) -> None:
        """Answer the call, at once or from a callback. `address`: that of the client."""
        plan = self.plan
        if self._is_shed or (not self.body_bytes and plan.gate.sheds()):
            respond(*_overloaded(plan.call.laurels.traffic.overloaded))
            return
        refused = plan.gate.refuse(address)
        if refused is not None:
            respond(*_problem(refused))
            return
        if plan.answer_now is not None:
            try:
                answer = plan.answer_now(self.user)
            except LaurelsError:
                answer = None
            except Exception:
                log.exception("fault", call=plan.endpoint.summary)
                answer = None
            if answer is not None:
                respond(200, answer, None)
                return
        call = plan.call.again(self.user, self.headers)
        call.body = self._body
        running = _Run(plan.endpoint, call, respond)
        if plan.start is None:
            running.step()
        else:
            running.start(plan.start)


class HotLane:
    def __init__(
        self, laurels: Laurels, pages: PageCache, tree: RouteTree, routes: Mapping[Answerer, str], sight: Sight
    ) -> None:
        self._laurels = laurels
        self._pages = pages
        self._tree = tree
        self._routes = routes
        self._sight = sight
        self._plans: dict[tuple[bytes | None, ...], Plan] = {}
        # Keyed by the head without the user: the plan, the headers and the length of the body.
        self._heads: dict[tuple[bytes, bytes, bytes], tuple[Plan, Headers, int]] = {}
        self.is_traced = False
        # The number of calls that the lane took, and of those whose head was cached.
        self.taken = 0
        self.recalled = 0

    def recall(self, data: bytes) -> tuple[HotCall, bytes] | None:
        """Return the call and its body if `data` is exactly one request with a cached head, otherwise None."""
        if tracing.is_on():
            # `enter` chooses the requests to trace.
            return None
        key, user, body = _split_request(data)
        held = self._heads.get(key)
        if held is None:
            return None
        plan, headers, body_bytes = held
        if len(body) != body_bytes or not self._is_valid(plan):
            return None
        self.taken += 1
        self.recalled += 1
        return HotCall(plan, user, headers), body

    def remember(self, data: bytes, hot: HotCall) -> None:
        """Cache the head of a request that the lane has answered. `data` is exactly that request."""
        key, user, body = _split_request(data)
        # The users differ if the id is percent-encoded, and the lengths if line breaks follow the request.
        if user == hot.user and len(body) == hot.length and len(data) - len(body) <= HEAD_BYTES:
            if len(self._heads) >= KEPT_HEADS:
                self._heads.clear()
            self._heads[key] = (hot.plan, hot.headers, len(body))

    def enter(self, method: bytes, url: bytes, headers: Headers) -> HotCall | None:
        """Return the call if the lane can answer it, otherwise None.

        `is_traced` is then True if the reason is that the call was chosen to be traced.
        """
        self.is_traced = tracing.chooses()
        if self.is_traced:
            return None
        noted = _note(headers)
        if noted is None:
            return None
        path, action, user = _split(url)
        key = (method, path, action, noted.get(b"authorization"), noted.get(b"x-api-key"), noted.get(b"content-type"))
        plan = self._plans.get(key)
        try:
            if plan is None or not self._is_valid(plan):
                plan = self._make_plan(method, url, user, headers)
                if plan is None:
                    return None
                if len(self._plans) >= KEPT_PLANS:
                    self._plans.clear()
                self._plans[key] = plan
            if (noted.get(b"content-length", b"0") == b"0") is (plan.body_bytes > 0):
                return None
            hot = HotCall(plan, "" if user is None else plan.call.decode_user(user), headers)
        except LaurelsError:
            # The ASGI call reports the error.
            return None
        self.taken += 1
        return hot

    def _is_valid(self, plan: Plan) -> bool:
        laurels = self._laurels
        return (
            plan.key_changes == laurels.access.changes
            and plan.board_changes == laurels.boards.changes
            and plan.since <= laurels.clock.now_us() < plan.until
        )

    def _make_plan(self, method: bytes, url: bytes, user: bytes | None, headers: Headers) -> Plan | None:
        path, _, query_string = url.partition(b"?")
        # A plan keeps the whole head in memory.
        is_long = len(url) + sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES
        if is_long or method not in _METHODS or not path.startswith(b"/") or b"#" in url:
            return None
        answerers, path_parts = self._tree.find(path)
        endpoint = answerers.get(_METHODS[method])
        if not isinstance(endpoint, Endpoint) or endpoint.traits.hot is None:
            return None
        if path_parts.get("userId") != (None if user is None else decode_part(user)):
            # The plan would be used for other users.
            return None
        call: Call[Any, Any] = Call(self._laurels, self._pages, path_parts, headers)
        endpoint.begin(call, query_string)
        if call.caller.player is not None:
            # A plan serves calls about all users, but a token is for one.
            return None
        if endpoint.body_type is not None and not endpoint.need_json(call):
            return None
        hot = endpoint.traits.hot(call)
        return None if hot is None else Plan(endpoint, call, hot, self._routes[endpoint], self._sight)


def _split_request(data: bytes) -> tuple[tuple[bytes, bytes, bytes], str, bytes]:
    """Return the head of a request without its user, the user ("" if there is none), and the body."""
    line, _, rest = data.partition(b"\r\n")
    head, _, body = rest.partition(b"\r\n\r\n")
    found = _LINE.fullmatch(line)
    if found is None:
        return (line, b"", head), "", body
    path, user, after = found.groups()
    return (path, after, head), user.decode("ascii"), body


def _note(headers: Headers) -> dict[bytes, bytes] | None:
    """Return the headers that a plan depends on; None if the lane does not support one of the headers."""
    noted: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _NOTED:
            noted.setdefault(name, value)
        elif name in _SPECIAL and value not in _SPECIAL[name]:
            return None
    return noted


def _split(url: bytes) -> tuple[bytes, bytes | None, bytes | None]:
    """Split a URL at its user: PATH/users/USER/ACTION. Without a user, the path is the whole URL."""
    found = _URL.fullmatch(url)
    if found is None:
        return url, None, None
    path, user, action = found.groups()
    return path, action, user


def _problem(error: LaurelsError) -> tuple[int, bytes, Headers]:
    response = problem_response(error)
    return response.status_code, bytes(response.body), response.raw_headers


_overloaded = lru_cache(maxsize=1)(_problem)


class _Run:
    """Runs the handler of a call without a task: the callback of each future that it awaits resumes it.

    The handler must not use anything that needs a current task, such as `asyncio.timeout`.
    """

    __slots__ = ("_call", "_coroutine", "_endpoint", "_respond")

    def __init__(self, endpoint: Endpoint, call: Call[Any, Any], respond: Respond) -> None:
        self._endpoint = endpoint
        self._call = call
        self._respond = respond
        self._coroutine: Generator[Any, None, Any] | None = None

    def start(self, start: Callable[[Call[Any, Any], Finish], None]) -> None:
        """Start a call that is answered by a callback."""
        try:
            start(self._call, self._finish)
        except LaurelsError as error:
            self._finish(error)
        except Exception:
            log.exception("fault", call=self._endpoint.summary)
            self._finish(internal_error())

    def step(self, _done: object = None) -> None:
        """Run the handler until it waits, or is done."""
        if self._coroutine is None:
            self._coroutine = self._endpoint.handler(self._call).__await__()
        try:
            future: asyncio.Future[Any] | None = self._coroutine.send(None)
        except StopIteration as stop:
            self._finish(stop.value)
        except LaurelsError as error:
            self._finish(error)
        except asyncio.CancelledError:
            # The future that it waited for was cancelled.
            self._finish(Unavailable("stopping", "The server is shutting down."))
        except Exception:
            log.exception("fault", call=self._endpoint.summary)
            self._finish(internal_error())
        else:
            if future is None:
                # A bare yield, as in `asyncio.sleep(0)`: continue in the next tick.
                asyncio.get_running_loop().call_soon(self.step)
                return
            # As asyncio.Task does with a future that a coroutine awaits.
            future._asyncio_future_blocking = False  # noqa: SLF001
            future.add_done_callback(self.step)

    def _finish(self, answer: Any) -> None:
        """Send an answer or an error."""
        try:
            if isinstance(answer, LaurelsError):
                self._send(problem_response(answer))
            elif self._call.degraded:
                self._send(self._endpoint.response(answer, self._call))
            else:
                status, body = self._endpoint.encode(answer)
                self._respond(status, body, None)
        except Exception:
            log.exception("fault", call=self._endpoint.summary)
            self._send(problem_response(internal_error()))

    def _send(self, response: Response) -> None:
        self._respond(response.status_code, bytes(response.body), response.raw_headers)
