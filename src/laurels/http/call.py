"""One call: what a handler gets, and the way from a request to a handler and back.

A handler is `async def name(call: Call[Query, Body]) -> Answer`. Its annotations say how to read the request and
what the OpenAPI document says about it.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cached_property
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from laurels.core.board import Board
from laurels.core.people import GLOBAL
from laurels.core.windows import Period
from laurels.errors import Invalid, LaurelsError, Malformed, NotFound, Slow, TooLarge, Unauthenticated, WrongMediaType
from laurels.http.decode import decode_body, decode_texts, decode_value
from laurels.http.fields import IdempotencyKey, UserId
from laurels.http.live import KEY_PROTOCOL, Interrupted, Live
from laurels.http.page_cache import PageCache
from laurels.http.problems import problem_response
from laurels.http.protocol import Link
from laurels.service.access import Caller
from laurels.service.laurels import Laurels
from laurels.service.rank_source import Shown

Q = TypeVar("Q")
B = TypeVar("B")
T = TypeVar("T")

Handler = Callable[[Any], Awaitable[Any]]
# Says who may make a call, by raising; sets `call.board` where the call is about one.
Guard = Callable[["Call[Any, Any]"], None]

BODY_TIMEOUT_S = 30
# Ranks straight from the ledger: right, and slower.
DEGRADED = {"Laurels-Degraded": "read-from-ledger"}
_encoder = msgspec.json.Encoder()


class Call(Generic[Q, B]):
    """`query`, `body` and `board` are read and checked; the path's parts are checked when they are asked for."""

    query: Q
    body: B
    board: Board

    def __init__(self, request: HTTPConnection) -> None:
        self._request = request
        self.laurels: Laurels = request.app.laurels
        self.pages: PageCache = request.app.pages
        self.degraded = False
        self.shown_period: Period | None = None

    def show(self, shown: Shown[T]) -> T:
        """What was read; where it came from is told in a header."""
        self.degraded = self.degraded or shown.degraded
        self.shown_period = shown.period
        return shown.value

    @property
    def told_of(self) -> dict[str, str]:
        """The window, the period and the segment that was shown."""
        assert self.shown_period is not None, "reads of ranks say which period they are of"
        segment = getattr(self.query, "segment", None) or GLOBAL
        return {"window": self.shown_period.window, "period": self.shown_period.name, "segment": segment}

    @cached_property
    def caller(self) -> Caller:
        return self.laurels.access.authenticate(self.token)

    @cached_property
    def token(self) -> str | None:
        return _token(self._request)

    @property
    def is_socket(self) -> bool:
        return bool(self._request.scope["type"] == "websocket")

    @property
    def last_event_id(self) -> str | None:
        return self._request.headers.get("last-event-id")

    @property
    def link(self) -> Link:
        """The connection that this came by."""
        link: Link = self._request.scope["state"]["link"]
        return link

    @cached_property
    def user_id(self) -> str:
        return str(decode_value(self.path("userId"), UserId, "userId"))

    @property
    def idempotency_key(self) -> str | None:
        key = self._request.headers.get("idempotency-key")
        return None if key is None else str(decode_value(key, IdempotencyKey, "Idempotency-Key"))

    def path(self, name: str) -> str:
        part = str(self._request.path_params[name])
        if "\0" in part and name != "userId":
            # Nothing that is stored has one, and not every store can be asked for it.
            raise NotFound("no_such_address", "No name in an address has a zero byte.")
        return part

    @property
    def board_uuid(self) -> str:
        if not self.path("UUID"):
            raise NotFound("no_such_address", "The address names no board. The calls are listed at /docs.")
        return self.path("UUID")


class Answered(Generic[B]):
    """An answer whose status depends on what it says."""

    def __init__(self, answer: B, status: int, headers: dict[str, str] | None = None) -> None:
        self.answer = answer
        self.status = status
        self.headers = headers


class Encoded(Generic[B]):
    """An answer that is already JSON."""

    def __init__(self, body: bytes) -> None:
        self.body = body


class Streamed:
    """An answer that is sent line by line, as JSON lines."""

    def __init__(self, lines: AsyncIterator[Any]) -> None:
        self.lines = lines


class Text:
    """An answer that is not JSON."""

    def __init__(self, body: bytes, media_type: str) -> None:
        self.body = body
        self.media_type = media_type


class Endpoint:
    """A handler made into something that the router can call."""

    def __init__(
        self, handler: Handler, guard: Guard, *, status: int, body_bytes: int, needs_ledger: bool = True
    ) -> None:
        self.handler = handler
        self.guard = guard
        self.status = status
        self.needs_ledger = needs_ledger
        hints = get_type_hints(handler)
        (call,) = [hint for name, hint in hints.items() if name != "return"]
        self.query_type, body_type = get_args(call)
        self.body_type: Any = None if body_type is type(None) else body_type
        returned = hints["return"]
        self.answer_type = get_args(returned)[0] if get_origin(returned) in {Answered, Encoded} else returned
        self.summary, _, self.description = inspect.cleandoc(handler.__doc__ or "").partition("\n\n")
        self._decoder = None if self.body_type is None else msgspec.json.Decoder(self.body_type)
        # Where every field has a default, nothing at all is an empty object.
        self._takes_nothing = self._decoder is not None and _decodes(self._decoder, b"{}")
        self.body_bytes = body_bytes

    async def __call__(self, request: Request) -> ASGIApp:
        try:
            call = self._begin(request)
            if self._decoder is not None:
                call.body = decode_body(await self._body(request), self._decoder)
            answer = await self.handler(call)
        except LaurelsError as error:
            if error.retryable and self.answer_type is Live and _is_event_source(request):
                return Interrupted(error)
            return problem_response(error)
        if isinstance(answer, Live):
            return answer
        response = self._response(answer)
        if call.degraded:
            response.headers.update(DEGRADED)
        return response

    async def open_live(self, connection: HTTPConnection) -> Live:
        """What is sent over a WebSocket."""
        if self.answer_type is not Live:
            raise NotFound("no_such_address", "There is no WebSocket at this address. The calls are listed at /docs.")
        live: Live = await self.handler(self._begin(connection))
        return live

    def _begin(self, connection: HTTPConnection) -> Call[Any, Any]:
        call: Call[Any, Any] = Call(connection)
        if self.needs_ledger:
            call.laurels.require_open()
        # Before anything is read of what is sent: a stranger's large body is not worth the time.
        self.guard(call)
        call.query = self._query(connection)
        if getattr(call.query, "viewer", None) is not None:
            # Whoever may say whose eyes these are can find out who is hidden: not everybody, and no other pod.
            call.caller.require_key()
            if hasattr(call, "board"):
                call.laurels.boards.to_read_with_key(call.caller, call.board.uuid)
        return call

    def _response(self, answer: Any) -> Response:
        if isinstance(answer, Encoded):
            return Response(answer.body, self.status, media_type="application/json")
        if isinstance(answer, Answered):
            return Response(_encoder.encode(answer.answer), answer.status, answer.headers, "application/json")
        if isinstance(answer, Text):
            return Response(answer.body, self.status, media_type=answer.media_type)
        if isinstance(answer, Streamed):
            return StreamingResponse(_lines(answer.lines), self.status, media_type="application/x-ndjson")
        return Response(_encoder.encode(answer), self.status, media_type="application/json")

    def _query(self, request: HTTPConnection) -> Any:
        if not request.scope["query_string"]:
            return self.query_type()
        texts: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if name in texts:
                raise Invalid("wrong_length", f"{name} is given twice.", field=name, rule="at most once")
            texts[name] = value
        return decode_texts(texts, self.query_type)

    async def _body(self, request: Request) -> bytes:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
        if not media_type and not has_body and self._takes_nothing:
            return b"{}"
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise WrongMediaType(
                "media_type_not_json",
                f"Send the body with 'Content-Type: application/json' (it was {media_type or 'missing'}).",
                field="Content-Type",
                rule="application/json",
            )
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.body_bytes:
                        raise TooLarge(
                            "body_too_large",
                            f"The body is over {self.body_bytes} bytes. Send less at a time.",
                            rule=f"<= {self.body_bytes} bytes",
                        )
        except TimeoutError:
            raise Slow("body_timeout", f"The body did not arrive within {BODY_TIMEOUT_S} s.") from None
        except ClientDisconnect:
            raise Malformed("invalid_json", "The body ended early.") from None
        return bytes(body)


def _is_event_source(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def _decodes(decoder: "msgspec.json.Decoder[Any]", body: bytes) -> bool:
    try:
        decoder.decode(body)
    except msgspec.ValidationError:
        return False
    return True


def _token(request: HTTPConnection) -> str | None:
    for protocol in request.scope.get("subprotocols", ()):
        if protocol.startswith(KEY_PROTOCOL):
            return str(protocol.removeprefix(KEY_PROTOCOL))
    authorization = request.headers.get("authorization")
    if authorization is None:
        return request.headers.get("x-api-key")
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("key_unknown", "Send the key as 'Authorization: Bearer KEY'.", field="Authorization")
    return token.strip()


async def _lines(values: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for value in values:
        yield _encoder.encode(value) + b"\n"
