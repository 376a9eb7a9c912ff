"""The map of the API: every address, its handler, and the application that serves them."""

import html
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from laurels.core import limits
from laurels.errors import LaurelsError, Malformed
from laurels.http import guards
from laurels.http.call import Endpoint, Guard, Handler
from laurels.http.docs_page import render_docs
from laurels.http.handlers import access, boards, operating, reads, scores, short
from laurels.http.openapi import build_openapi
from laurels.http.page_cache import PageCache
from laurels.http.problems import handle_fault, handle_http_error, handle_laurels_error
from laurels.service.laurels import Laurels

BOARD = "/api/v1/leaderboards/{UUID}"
USER = BOARD + "/users/{userId}"
POD = "/api/v1/pods/{podId}"


class Address(NamedTuple):
    tag: str
    method: str
    path: str
    endpoint: Endpoint


def address(
    tag: str,
    method: str,
    path: str,
    guard: Guard,
    handler: Handler,
    *,
    status: int = 200,
    body_bytes: int = limits.BODY_BYTES,
) -> Address:
    return Address(tag, method, path, Endpoint(handler, guard, status=status, body_bytes=body_bytes))


# The busiest first: the router tries them in this order.
ADDRESSES = [
    address("Scores", "PUT", USER, guards.board_writer, scores.put_score),
    address(
        "Scores", "POST", BOARD + "/scores", guards.board_writer, scores.post_scores, body_bytes=limits.BATCH_BODY_BYTES
    ),
    address("Ranks", "GET", BOARD + "/top", guards.board_reader, reads.get_top),
    address("Ranks", "GET", USER + "/rank", guards.board_reader, reads.get_rank),
    address("Ranks", "GET", USER + "/around", guards.board_reader, reads.get_around),
    address(
        "Ranks", "POST", BOARD + "/ranks", guards.board_reader, reads.post_ranks, body_bytes=limits.RANKS_BODY_BYTES
    ),
    address("Ranks", "GET", BOARD + "/distribution", guards.board_reader, reads.get_distribution),
    address("Ranks", "GET", "/api/v1/users/{userId}/scores", guards.key, reads.get_user_scores),
    address("Scores", "DELETE", USER, guards.board_writer, scores.delete_user),
    address("Scores", "GET", USER + "/history", guards.board_pod_reader, reads.get_history),
    address("Scores", "GET", BOARD + "/events", guards.board_writer, reads.get_events),
    address("Boards", "POST", "/api/v1/leaderboards", guards.writer, boards.post_board, status=201),
    address("Boards", "GET", "/api/v1/leaderboards", guards.known, boards.get_boards),
    address("Boards", "GET", BOARD, guards.board_reader, boards.get_board),
    address("Boards", "PATCH", BOARD, guards.board_writer, boards.patch_board),
    address("Boards", "DELETE", BOARD, guards.board_writer, boards.delete_board),
    address("Boards", "GET", BOARD + "/periods", guards.board_reader, boards.get_periods),
    address("Pods and keys", "POST", "/api/v1/pods", guards.admin, access.post_pod, status=201),
    address("Pods and keys", "GET", "/api/v1/pods", guards.admin, access.get_pods),
    address("Pods and keys", "POST", POD + "/keys", guards.admin, access.post_key, status=201),
    address("Pods and keys", "GET", POD + "/keys", guards.admin, access.get_keys),
    address("Pods and keys", "DELETE", POD + "/keys/{keyId}", guards.admin, access.delete_key),
    address("Short form", "POST", "/v1/scores", guards.default_board_writer, short.post_short_score),
    address("Short form", "GET", "/v1/scores", guards.default_board_reader, short.get_short_scores),
    address("Short form", "GET", "/v1/scores/{userId}", guards.default_board_reader, short.get_short_score),
    address("Operating", "GET", "/healthz", guards.anyone, operating.get_health),
    address("Operating", "GET", "/readyz", guards.anyone, operating.get_ready),
    address("Operating", "GET", "/api/v1/verify", guards.admin, operating.get_verify),
]

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def build_app(laurels: Laurels, lifespan: Lifespan | None = None) -> ASGIApp:
    """The application, and before it the step that keeps a path as it was sent."""
    register_url_convertor("part", _PathPart())
    openapi = build_openapi(ADDRESSES)
    app = Starlette(
        routes=[*_routes(), *_documents(openapi)],
        exception_handlers={
            LaurelsError: handle_laurels_error,
            HTTPException: handle_http_error,
            Exception: handle_fault,
        },
        lifespan=lifespan or _no_lifespan,
    )
    # An address either is one or is not: a redirect would drop the body of a PUT in many clients.
    app.router.redirect_slashes = False
    app.state.laurels = laurels
    app.state.pages = PageCache()
    return _RawPath(app)


def _routes() -> list[Route]:
    """One route a path, so that a wrong method gets 405 with all methods that are right."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for address in ADDRESSES:
        by_path.setdefault(address.path, {})[address.method] = address.endpoint
    return [
        Route(path.replace("}", ":part}"), _by_method(endpoints), methods=list(endpoints))
        for path, endpoints in by_path.items()
    ]


def _by_method(endpoints: dict[str, Endpoint]) -> Callable[[Request], object]:
    async def call(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return call


def _documents(openapi: bytes) -> list[Route]:
    docs = render_docs(openapi)

    async def get_openapi(request: Request) -> Response:
        del request
        return Response(openapi, media_type="application/json")

    async def get_docs(request: Request) -> Response:
        address = html.escape(f"{request.url.scheme}://{request.url.netloc}")
        return HTMLResponse(docs.replace("{{address}}", address))

    async def get_root(request: Request) -> Response:
        del request
        return RedirectResponse("/docs")

    return [Route("/openapi.json", get_openapi), Route("/docs", get_docs), Route("/", get_root)]


@asynccontextmanager
async def _no_lifespan(app: Starlette) -> AsyncIterator[None]:
    del app
    yield


class _PathPart(Convertor[str]):
    """One part of a path, percent-decoded by itself, so that an id may have a slash. May be empty: the id's own
    check then says what is wrong.
    """

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        try:
            return unquote_to_bytes(value).decode()
        except UnicodeDecodeError:
            raise Malformed("invalid_path", "The address has a part that is not UTF-8.", rule="UTF-8") from None

    def to_string(self, value: str) -> str:
        return value


class _RawPath:
    """Lets the router see the path as it was sent: decoded as a whole, `%2F` in an id would look like a slash."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"} and scope.get("raw_path"):
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await self.app(scope, receive, send)
