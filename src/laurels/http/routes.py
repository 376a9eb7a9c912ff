"""The map of the API: every address, its handler, and the application that serves them."""

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
from laurels.http.call import Endpoint, endpoint
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


# The busiest first: the router tries them in this order.
ADDRESSES = [
    Address("Scores", "PUT", USER, endpoint(scores.put_score)),
    Address("Scores", "POST", BOARD + "/scores", endpoint(scores.post_scores, body_bytes=limits.BATCH_BODY_BYTES)),
    Address("Ranks", "GET", BOARD + "/top", endpoint(reads.get_top)),
    Address("Ranks", "GET", USER + "/rank", endpoint(reads.get_rank)),
    Address("Ranks", "GET", USER + "/around", endpoint(reads.get_around)),
    Address("Ranks", "POST", BOARD + "/ranks", endpoint(reads.post_ranks, body_bytes=limits.BATCH_BODY_BYTES)),
    Address("Ranks", "GET", BOARD + "/distribution", endpoint(reads.get_distribution)),
    Address("Ranks", "GET", "/api/v1/users/{userId}/scores", endpoint(reads.get_user_scores)),
    Address("Scores", "DELETE", USER, endpoint(scores.delete_user)),
    Address("Scores", "GET", USER + "/history", endpoint(reads.get_history)),
    Address("Scores", "GET", BOARD + "/events", endpoint(reads.get_events)),
    Address("Boards", "POST", "/api/v1/leaderboards", endpoint(boards.post_board, status=201)),
    Address("Boards", "GET", "/api/v1/leaderboards", endpoint(boards.get_boards)),
    Address("Boards", "GET", BOARD, endpoint(boards.get_board)),
    Address("Boards", "PATCH", BOARD, endpoint(boards.patch_board)),
    Address("Boards", "DELETE", BOARD, endpoint(boards.delete_board)),
    Address("Boards", "GET", BOARD + "/periods", endpoint(boards.get_periods)),
    Address("Pods and keys", "POST", "/api/v1/pods", endpoint(access.post_pod, status=201)),
    Address("Pods and keys", "GET", "/api/v1/pods", endpoint(access.get_pods)),
    Address("Pods and keys", "POST", POD + "/keys", endpoint(access.post_key, status=201)),
    Address("Pods and keys", "GET", POD + "/keys", endpoint(access.get_keys)),
    Address("Pods and keys", "DELETE", POD + "/keys/{keyId}", endpoint(access.delete_key)),
    Address("Short form", "POST", "/v1/scores", endpoint(short.post_short_score)),
    Address("Short form", "GET", "/v1/scores", endpoint(short.get_short_scores)),
    Address("Short form", "GET", "/v1/scores/{userId}", endpoint(short.get_short_score)),
    Address("Operating", "GET", "/healthz", endpoint(operating.get_health)),
    Address("Operating", "GET", "/readyz", endpoint(operating.get_ready)),
    Address("Operating", "GET", "/api/v1/verify", endpoint(operating.get_verify)),
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
        del request
        return HTMLResponse(docs)

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
