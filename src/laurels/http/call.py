"""Calls of the API: the value that a handler receives, and the path from a request to its handler and back.

A handler is `async def name(call: Call[Query, Body]) -> Answer`. Its annotations define how the request is decoded and
how the OpenAPI document describes it.
"""

import asyncio
import inspect
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp
from starlette.types import Scope as AsgiScope

from laurels.core import limits
from laurels.core.board import Board, PublicField
from laurels.core.people import GLOBAL, SegmentKind
from laurels.core.windows import Period
from laurels.errors import (
    Forbidden,
    Invalid,
    LaurelsError,
    Malformed,
    NotFound,
    Slow,
    TooLarge,
    Unauthenticated,
    WrongMediaType,
)
from laurels.http.addresses import Addresses
from laurels.http.body_room import BodyRoom
from laurels.http.cross_origin import need_origin
from laurels.http.decode import decode_body, decode_texts, decode_value
from laurels.http.fields import BoardUuid, IdempotencyKey, UserId
from laurels.http.live import KEY_PROTOCOL, Interrupted, Live
from laurels.http.page_cache import PageCache
from laurels.http.problems import PRIVATE, problem_response
from laurels.http.protocol import BODY_DUE, BODY_TIMEOUT_S, Headers, Link
from laurels.http.recent import Recent
from laurels.http.routing import decode_part
from laurels.http.sight import Sight
from laurels.ports import Scope
from laurels.service.boards.caller import ANONYMOUS, Caller
from laurels.service.laurels import Laurels
from laurels.service.read.rank_source import ReadResult
from laurels.service.traffic import Gate, Work

Q = TypeVar("Q")
B = TypeVar("B")
T = TypeVar("T")

Handler = Callable[[Any], Awaitable[Any]]
# Checks the permission for a call, and raises if it is missing. Sets `call.board` if the call is about a board.
Guard = Callable[["Call[Any, Any]"], None]

# Header of ranks that were read from the ledger: correct, but slower than the index.
DEGRADED = {"Laurels-Degraded": "read-from-ledger"}
# Errors that a key or a board which another server has just created can cause.
MAY_BE_NEW = {"key_unknown", "key_required", "board_not_found"}
# How often metrics and the readiness are made anew for callers from other machines.
METRICS_EVERY_S = 1.0
READINESS_EVERY_S = 0.5
# Longer numbers are no lengths of bodies.
LENGTH_DIGITS = 12
CIRCLE = f"{SegmentKind.CIRCLE}:"
# Valid user ids without percent-encoding.
_PLAIN_ID = re.compile(rb"[0-9A-Za-z_.-]{1,%d}" % limits.USER_ID_CHARS)
_encoder = msgspec.json.Encoder()


class ShownRanking(TypedDict):
    """The fields of an answer that name the ranking it is about."""

    window: str
    period: str
    segment: str


class Call(Generic[Q, B]):
    """A request, decoded for its handler.

    `query`, `body` and `board` are already validated. Parts of the path are validated when they are read. `headers` has
    lower-case names. `scope` is the ASGI scope; None in the hot lane.
    """

    query: Q
    body: B
    board: Board

    def __init__(
        self,
        laurels: Laurels,
        pages: PageCache,
        path_parts: dict[str, str],
        headers: Headers,
        scope: AsgiScope | None = None,
    ) -> None:
        self.laurels = laurels
        self.pages = pages
        self._path_parts = path_parts
        self._headers = headers
        self._scope = scope
        # The call needs no key, so it needs no scope either. The guard sets it.
        self.is_public = False
        self.degraded = False
        self.shown_period: Period | None = None
        # What the audit log shows of a change: an answer, or a dict with its fields.
        self.changed_from: Any = None
        self.changed_to: Any = None

    def show(self, shown: ReadResult[T]) -> T:
        """Return the value that was read, and note its period and whether to send the `Laurels-Degraded` header."""
        self.degraded = self.degraded or shown.degraded
        self.shown_period = shown.period
        return shown.value

    def note_change(self, before: Any, after: Any) -> None:
        """Note for the audit log what the call changed. None: there is no state before, or after, the call."""
        self.changed_from, self.changed_to = before, after

    @property
    def shown_ranking(self) -> ShownRanking:
        """Return the window, the period and the segment of the ranks in the answer."""
        assert self.shown_period is not None, "a read of ranks returns their period"
        segment = getattr(self.query, "segment", None) or GLOBAL
        return {"window": self.shown_period.window, "period": self.shown_period.name, "segment": segment}

    @cached_property
    def caller(self) -> Caller:
        return self.laurels.access.authenticate(self.token)

    @cached_property
    def token(self) -> str | None:
        """Return the key that the caller sent, or None."""
        for protocol in () if self._scope is None else self._scope.get("subprotocols", ()):
            if protocol.startswith(KEY_PROTOCOL):
                return str(protocol.removeprefix(KEY_PROTOCOL))
        authorization = self.header(b"authorization")
        if authorization is None:
            return self.header(b"x-api-key")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated("key_unknown", "Send the key as 'Authorization: Bearer KEY'.", field="Authorization")
        return token.strip()

    def header(self, name: bytes) -> str | None:
        """Return the first value of a header."""
        for each, value in self._headers:
            if each == name:
                return value.decode("latin-1")
        return None

    @cached_property
    def address(self) -> str:
        """Return the address of the client; empty for a local socket."""
        assert self._scope is not None, "the hot lane is told the address"
        return client_address(self._scope)

    @property
    def recent(self) -> "RecentChecks":
        """Return the last results of the checks that need no key."""
        assert self._scope is not None, "these calls are not in the hot lane"
        recent: RecentChecks = self._scope["app"].recent
        return recent

    @property
    def sight(self) -> Sight:
        assert self._scope is not None, "the hot lane has its own"
        sight: Sight = self._scope["app"].sight
        return sight

    @property
    def route(self) -> str:
        """Return the method and the path of the call, as in the route table."""
        assert self._scope is not None, "the hot lane knows the route"
        route: str = self._scope["app"].route_of(self._scope["route"])
        return route

    @property
    def path_parts(self) -> Mapping[str, str]:
        return self._path_parts

    @property
    def headers(self) -> Headers:
        return self._headers

    @property
    def body_or_none(self) -> B | None:
        return getattr(self, "body", None)

    @property
    def pod_id(self) -> str | None:
        """Return the pod that the call is about, as far as the guard knows."""
        if hasattr(self, "board"):
            return self.board.pod_id
        return self._path_parts.get("podId") if self.caller.is_admin else self.caller.pod_id

    @property
    def is_socket(self) -> bool:
        return self._scope is not None and bool(self._scope["type"] == "websocket")

    @property
    def last_event_id(self) -> str | None:
        return self.header(b"last-event-id")

    @property
    def link(self) -> Link:
        """Return the connection of the request."""
        assert self._scope is not None, "calls that use their connection are not in the hot lane"
        link: Link = self._scope["state"]["link"]
        return link

    @cached_property
    def user_id(self) -> str:
        return str(decode_value(self.path("userId"), UserId, "userId"))

    @staticmethod
    def decode_user(part: bytes) -> str:
        """Decode and validate a user id in a path."""
        if _PLAIN_ID.fullmatch(part):
            return part.decode("ascii")
        return str(decode_value(decode_part(part), UserId, "userId"))

    def again(self, user_id: str, headers: Headers) -> "Call[Q, B]":
        """Return the same call about another user, without its body."""
        call: Call[Q, B] = Call(self.laurels, self.pages, self._path_parts, headers)
        call.board, call.query, call.user_id = self.board, self.query, user_id
        return call

    @property
    def idempotency_key(self) -> str | None:
        key = self.header(b"idempotency-key")
        return None if key is None else str(decode_value(key, IdempotencyKey, "Idempotency-Key"))

    def path(self, name: str) -> str:
        part = self._path_parts[name]
        if "\0" in part and name != "userId":
            # No stored name has a zero byte, and PostgreSQL rejects it in a query.
            raise NotFound("no_such_address", "A name in the path can't contain a zero byte.")
        return part

    @property
    def board_uuid(self) -> str:
        if not self.path("UUID"):
            raise NotFound("no_such_address", "The path names no board. All endpoints are listed at /docs.")
        return self.path("UUID")


class RecentChecks:
    """The last metrics and the last state of the dependencies, because everybody may ask for them."""

    def __init__(self) -> None:
        self.metrics: Recent[bytes] = Recent(METRICS_EVERY_S)
        self.readiness: Recent[Any] = Recent(READINESS_EVERY_S)


def _call_of(connection: HTTPConnection) -> Call[Any, Any]:
    scope = connection.scope
    call: Call[Any, Any] = Call(scope["app"].laurels, scope["app"].pages, scope["path_params"], scope["headers"], scope)
    # The application reads the pod of the call from it (http/cross_origin.py).
    scope.setdefault("state", {})["call"] = call
    return call


def client_address(scope: AsgiScope) -> str:
    """Return the address of the client of a request; empty for a local socket."""
    peer: tuple[str, int] | None = scope.get("client")
    addresses: Addresses = scope["app"].addresses
    return "" if peer is None else addresses.of(peer[0], scope["headers"])


class Answered(Generic[B]):
    """An answer with a status that the handler chooses."""

    def __init__(self, answer: B, status: int, headers: dict[str, str] | None = None) -> None:
        self.answer = answer
        self.status = status
        self.headers = headers


class Encoded(Generic[B]):
    """An answer that is already JSON."""

    def __init__(self, body: bytes) -> None:
        self.body = body


class Streamed:
    """An answer that is streamed as JSON lines."""

    def __init__(self, lines: AsyncIterator[Any]) -> None:
        self.lines = lines


class Text:
    """An answer that is not JSON."""

    def __init__(self, body: bytes, media_type: str) -> None:
        self.body = body
        self.media_type = media_type


def status_of(answer: Any, status: int) -> int:
    """Return the status of an answer. `status`: that of a plain one."""
    return answer.status if isinstance(answer, Answered) else status


# Called once with the answer of a call, or with the error to respond with.
Finish = Callable[[Any], None]


class HotPlan(NamedTuple):
    """How the hot lane answers a kind of call between two instants.

    The lane tries three ways, in this order. `answer_now` returns the body of a response with status 200 for a user, or
    None if the answer is not in memory. `start` starts the work and calls `Finish` later, or raises the error. The
    handler of the route runs without a task, so it must not use `asyncio.timeout`.
    """

    answer_now: Callable[[str], bytes | None] | None = None
    start: Callable[["Call[Any, Any]", Finish], None] | None = None
    since: float = -math.inf
    until: float = math.inf


class Traits(NamedTuple):
    """The properties of a route, in addition to its handler and guard. The server and the OpenAPI document use them."""

    status: int = 200
    body_bytes: int = limits.BODY_BYTES
    # False: the call answers before the ledger is open.
    needs_ledger: bool = True
    # The call needs a body even if every field of it has a default.
    needs_body: bool = False
    # The call takes an Idempotency-Key header.
    idempotency_key: bool = False
    # The call may return 202: the server spooled the write until the ledger is reachable.
    may_spool: bool = False
    # The call may return 202: the work continues after the response.
    may_continue: bool = False
    # Returns how the hot lane (http/hot_lane.py) answers calls like this one, or None if it does not. Only routes with
    # this function are in the lane.
    hot: Callable[[Call[Any, Any]], HotPlan | None] | None = None
    # The scope that a key needs for the call; None: the call needs no key at all.
    scope: Scope | None = Scope.READ
    # The call may be refused when the server is overloaded.
    sheds: bool = True
    # Returns about how many rows a call reads; calls with many take turns (http/heavy_reads.py).
    rows: "Callable[[Call[Any, Any]], int] | None" = None
    # The call is stored in the audit log; or some of these calls are.
    audited: "bool | Callable[[Call[Any, Any]], bool]" = False
    # The call is about the data of the user in its path.
    personal: bool = False
    # The response is a WebSocket.
    websocket: bool = False
    # The body of a 503 is that of a 200.
    answers_503: bool = False
    # A score for a board that does not exist creates it if a template of the pod says so.
    creates_board: bool = False
    # Error statuses in addition to those that all calls with this guard, method and body have.
    errors: tuple[int, ...] = ()


class Endpoint:
    """A handler with its guard, decoders and limits, which the application calls with a request."""

    def __init__(self, handler: Handler, guard: Guard, traits: Traits) -> None:
        self.handler = handler
        self.guard = guard
        self.traits = traits
        hints = get_type_hints(handler)
        (call,) = [hint for name, hint in hints.items() if name != "return"]
        self.query_type, body_type = get_args(call)
        self.body_type: Any = None if body_type is type(None) else body_type
        returned = hints["return"]
        self.answer_type = get_args(returned)[0] if get_origin(returned) in {Answered, Encoded} else returned
        self.work = None
        if traits.sheds and traits.scope is not None:
            self.work = Work.READ if traits.scope is Scope.READ else Work.WRITE
        summary, _, self.description = inspect.cleandoc(handler.__doc__ or "").partition("\n\n")
        self.summary = summary.removesuffix(".")
        self._decoder = None if self.body_type is None else msgspec.json.Decoder(self.body_type)
        self._no_query = self.query_type()
        # If every field has a default, a missing body counts as an empty object, unless it would replace something.
        self.takes_nothing = self._decoder is not None and not traits.needs_body and _decodes(self._decoder, b"{}")

    async def __call__(self, request: Request) -> ASGIApp:
        call = _call_of(request)
        try:
            await self._begin(call, request.scope["query_string"])
            if self._decoder is not None:
                call.body = self.decode(await self._body(request, call))
            answer = await self.handler(call)
        except LaurelsError as error:
            if error.retryable and self.answer_type is Live and "text/event-stream" in (call.header(b"accept") or ""):
                return Interrupted(error)
            return problem_response(error)
        if isinstance(answer, Live):
            return answer
        return self.response(answer, call)

    async def open_live(self, connection: HTTPConnection) -> Live:
        """Return the live subscription to send over a WebSocket; raise `NotFound` if the handler has none."""
        if self.answer_type is not Live:
            raise NotFound("no_such_address", "There is no WebSocket at this path. All endpoints are listed at /docs.")
        call = _call_of(connection)
        await self._begin(call, connection.scope["query_string"])
        need_origin(call.laurels, connection.scope)
        live: Live = await self.handler(call)
        return live

    async def _begin(self, call: Call[Any, Any], query_string: bytes) -> None:
        """Do as `begin`, but look for a new key or board in the ledger before the call is refused."""
        try:
            try:
                self.begin(call, query_string)
            except (NotFound, Unauthenticated) as error:
                if error.code not in MAY_BE_NEW:
                    raise
                self._admit(call, ANONYMOUS, None)
                await call.laurels.access.look_again()
                await self._begin_again(call, query_string)
        except Unauthenticated as error:
            if error.code != "key_required":
                call.laurels.traffic.note_wrong_key(call.address)
            raise
        if self.traits.scope is not None:
            self._admit(call, call.caller, call.pod_id)
        else:
            self._admit(call, ANONYMOUS, None)

    async def _begin_again(self, call: Call[Any, Any], query_string: bytes) -> None:
        """Do as `begin`, but create the board of a score if a template of the pod says so."""
        try:
            self.begin(call, query_string)
        except NotFound as error:
            if error.code != "board_not_found" or not self.traits.creates_board:
                raise
            try:
                uuid = str(decode_value(call.board_uuid, BoardUuid, "UUID"))
            except LaurelsError:
                # No board can have this UUID.
                raise error from None
            if await call.laurels.templates.create_for_score(call.caller, uuid) is None:
                raise
            self.begin(call, query_string)

    def gate(self, call: Call[Any, Any]) -> Gate:
        """Return the gate of calls like this one."""
        return call.laurels.traffic.gate(call.caller, call.pod_id, self.work)

    def _admit(self, call: Call[Any, Any], caller: Caller, pod_id: str | None) -> None:
        traffic = call.laurels.traffic
        gate = traffic.gate(caller, pod_id, self.work)
        length = call.header(b"content-length") or ""
        if gate.sheds(int(length) if length.isascii() and length.isdigit() and len(length) < LENGTH_DIGITS else 0):
            raise traffic.overloaded
        refused = gate.refuse(call.address)
        if refused is not None:
            raise refused

    def begin(self, call: Call[Any, Any], query_string: bytes) -> None:
        """Check that the call is allowed, and decode its query. Raises the error to respond with."""
        if self.traits.needs_ledger:
            call.laurels.require_open()
        # Check the permission before the body is read, so that strangers can't make the server read large bodies.
        self.guard(call)
        if self.traits.scope is not None:
            self._permit(call, self.traits.scope)
        call.query = self._query(query_string)
        if (pod_id := getattr(call.query, "pod_id", None)) is not None:
            self._need_own_pod(call.caller, pod_id)
        if hasattr(call.query, "viewer"):
            self._check_viewer(call)
        if hasattr(call, "board") and str(getattr(call.query, "segment", None)).startswith(CIRCLE):
            need_circle(call.caller, call.board)

    def _permit(self, call: Call[Any, Any], scope: Scope) -> None:
        """Check the scope of the caller and, if the call is about a person, that the caller may see that person."""
        caller = call.caller
        if not call.is_public:
            caller.require_scope(scope)
        if self.traits.personal:
            caller.require_person(call.user_id)
        if (pod_id := call.path_parts.get("podId")) is not None:
            self._need_own_pod(caller, pod_id)

    @staticmethod
    def _need_own_pod(caller: Caller, pod_id: str) -> None:
        """Raise the error of an unknown pod if a key names another pod than its own."""
        if caller.role is not None:
            caller.require_pod(pod_id)

    def _check_viewer(self, call: Call[Any, Any]) -> None:
        """Check the viewer of a read: a caller who chooses any viewer can find out who is shadow-banned.

        The viewer of a read with a player token is the player.
        """
        caller, viewer = call.caller, call.query.viewer
        if caller.player is not None and viewer is None:
            if not hasattr(call, "board") or caller.belongs_to(call.board):
                call.query = msgspec.structs.replace(call.query, viewer=caller.player)
        elif viewer is not None:
            caller.require_key()
            if hasattr(call, "board"):
                call.laurels.boards.to_read_with_key(caller, call.board.uuid)
            caller.require_person(viewer)

    def need_json(self, call: Call[Any, Any]) -> bool:
        """Return True if the call has a body. Raises `WrongMediaType` if that is not JSON, or is missing."""
        media_type = (call.header(b"content-type") or "").partition(";")[0].strip().lower()
        has_body = call.header(b"transfer-encoding") is not None or call.header(b"content-length") not in {None, "0"}
        if not media_type and not has_body and self.takes_nothing:
            return False
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise WrongMediaType(
                "media_type_not_json",
                f"Send the body with 'Content-Type: application/json' (it was {media_type or 'missing'}).",
                field="Content-Type",
                rule="application/json",
            )
        return True

    def decode(self, body: bytes) -> Any:
        """Decode the body of a call. Raises `Malformed` or `Invalid`."""
        assert self._decoder is not None, "the call has a body"
        try:
            return decode_body(body, self._decoder)
        except Invalid as error:
            if error.code == "unknown_field" and error.field == "podId" and hasattr(self.query_type, "pod_id"):
                error.message = "This call takes podId in the query string: add ?podId=POD to the URL."
            raise

    def encode(self, answer: Any) -> tuple[int, bytes]:
        """Return the status and the body of an answer that is JSON and has no headers of its own."""
        if isinstance(answer, Encoded):
            return self.traits.status, answer.body
        if isinstance(answer, Answered):
            return answer.status, _encoder.encode(answer.answer)
        return self.traits.status, _encoder.encode(answer)

    def response(self, answer: Any, call: Call[Any, Any]) -> Response:
        if isinstance(answer, Text):
            response = Response(answer.body, self.traits.status, media_type=answer.media_type)
        elif isinstance(answer, Streamed):
            response = StreamingResponse(_lines(answer.lines), self.traits.status, media_type="application/x-ndjson")
        else:
            status, body = self.encode(answer)
            headers = answer.headers if isinstance(answer, Answered) else None
            response = Response(body, status, headers, "application/json")
        if self.is_private(call):
            response.headers.update(PRIVATE)
        if call.degraded:
            response.headers.update(DEGRADED)
        return response

    def is_private(self, call: Call[Any, Any]) -> bool:
        """Return True if no cache may keep the answer.

        The calls in the hot lane show what everybody sees, unless the board is private, or they show it to one player,
        the ranking of a circle, or more than names.
        """
        if self.traits.hot is None or call.caller.player is not None:
            return True
        if self.body_type is not None:
            return False
        query = call.query
        if getattr(query, "include", None) is not None:
            return True
        return not call.board.public or query.viewer is not None or str(query.segment).startswith(CIRCLE)

    def _query(self, query_string: bytes) -> Any:
        if not query_string:
            return self._no_query
        texts: dict[str, str] = {}
        for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
            if name in texts:
                raise Invalid(
                    "wrong_length",
                    f"The query parameter {name} is given more than once.",
                    field=name,
                    rule="at most once",
                )
            texts[name] = value
        return decode_texts(texts, self.query_type)

    async def _body(self, request: Request, call: Call[Any, Any]) -> bytes:
        if not self.need_json(call):
            return b"{}"
        # The hot lane may have waited for a part of the body already.
        due = request.scope.get("state", {}).get(BODY_DUE)
        room: BodyRoom = request.scope["app"].body_room
        with room.open(call.address) as body:
            try:
                async with asyncio.timeout_at(
                    asyncio.get_running_loop().time() + BODY_TIMEOUT_S if due is None else due
                ):
                    async for chunk in request.stream():
                        body.add(chunk)
                        if len(body.content) > self.traits.body_bytes:
                            raise TooLarge(
                                "body_too_large",
                                f"The body is larger than {self.traits.body_bytes} bytes. Split the request.",
                                rule=f"<= {self.traits.body_bytes} bytes",
                            )
            except TimeoutError:
                raise Slow("body_timeout", f"The body did not arrive within {BODY_TIMEOUT_S} s.") from None
            except ClientDisconnect:
                raise Malformed("invalid_json", "The client disconnected before the body was complete.") from None
            return bytes(body.content)


def need_circle(caller: Caller, board: Board) -> None:
    """Raise the error of a caller who may not see the rankings of the board's circles."""
    if not caller.sees_field(board, PublicField.CIRCLES):
        caller.require_key()
        raise Forbidden("role_forbidden", "Only keys of the board's own pod may read the rankings of circles.")


def _decodes(decoder: "msgspec.json.Decoder[Any]", body: bytes) -> bool:
    try:
        decoder.decode(body)
    except msgspec.ValidationError:
        return False
    return True


async def _lines(values: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for value in values:
        yield _encoder.encode(value) + b"\n"
