"""The ASGI application: it routes a request to its endpoint and sends the answer."""

import time
from collections.abc import Iterable

import structlog
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from laurels import tracing
from laurels.errors import Forbidden, LaurelsError, NotFound, WrongMethod
from laurels.http.addresses import Addresses, read_networks
from laurels.http.body_room import BodyRoom
from laurels.http.call import Endpoint, RecentChecks, client_address
from laurels.http.connections import Connections
from laurels.http.cross_origin import is_preflight, origin_of, preflight, with_headers
from laurels.http.hot_lane import HotLane
from laurels.http.live import Live, serve_socket
from laurels.http.page_cache import PageCache
from laurels.http.problems import internal_error, problem_of, problem_response
from laurels.http.protocol import IS_TRACED
from laurels.http.routing import Answerer, RouteTree
from laurels.http.sight import NO_ROUTE, Sight, class_of
from laurels.service.boards.caller import ANONYMOUS
from laurels.service.laurels import Laurels
from laurels.settings import LimitSettings, ServerSettings

log = structlog.get_logger()


class Application:
    """The ASGI application. Endpoints access `laurels` and `pages` through the request."""

    def __init__(
        self,
        laurels: Laurels,
        routes: Iterable[tuple[str, str, Answerer]],
        settings: ServerSettings,
        limits: LimitSettings,
    ) -> None:
        self.laurels = laurels
        # Used by the protocol (http/protocol.py).
        self.addresses = Addresses(read_networks(limits.trusted_proxies))
        self.connections = Connections(settings, self.addresses.is_proxy)
        self.sight = Sight(settings.access_log)
        self.pages = PageCache()
        self.recent = RecentChecks()
        self.body_room = BodyRoom()
        self._page_gate = laurels.traffic.gate(ANONYMOUS, None, None)
        self._tree = RouteTree()
        self._routes: dict[Answerer, str] = {}
        for method, path, answerer in routes:
            self._tree.add(method, path, answerer)
            self._routes.setdefault(answerer, f"{method} {path}")
        # Also used by the protocol. None: all requests go the ordinary way.
        self.hot_lane: HotLane | None = HotLane(laurels, self.pages, self._tree, self._routes, self.sight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "websocket":
            await serve_socket(scope, receive, send, lambda: self._open_live(scope))
            return
        assert scope["type"] == "http", scope["type"]
        seen = _Seen(send)
        is_chosen = bool(scope.get("state", {}).get(IS_TRACED))
        with tracing.request(scope["headers"], is_chosen=is_chosen) as trace:
            try:
                await self._answer(scope, receive, seen.send)
            finally:
                pod_id = self._note(scope, seen.began, seen.status, seen.bytes)
                trace.note(self.route_of(scope.get("route")), seen.status, pod_id)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response: ASGIApp
        origin = origin_of(scope)
        asks = origin is not None and is_preflight(scope)
        if origin is not None and not asks:
            send = with_headers(self.laurels, scope, origin, send)
        try:
            if origin is not None and asks:
                self._admit_page(scope)
                response = await self._preflight(scope, origin)
            else:
                answerer = scope["route"] = self._find(scope, scope["method"])
                if not isinstance(answerer, Endpoint):
                    self._admit_page(scope)
                response = await answerer(request)
        except LaurelsError as error:
            response = problem_response(error)
        except Exception:
            log.exception("fault", route=self.route_of(scope.get("route")))
            response = problem_response(internal_error())
        await response(scope, receive, send)

    def _admit_page(self, scope: Scope) -> None:
        """Count the call of a page or a file, which every caller may read, or of a path that does not exist."""
        refused = self._page_gate.refuse(client_address(scope))
        if refused is not None:
            raise refused

    def _note(self, scope: Scope, began: float, status: int, size: int) -> str | None:
        """Count a call that is answered, and return its pod."""
        route = self.route_of(scope.get("route"))
        call = scope.get("state", {}).get("call")
        # None if the key was not valid, or not needed.
        caller = None if call is None else call.__dict__.get("caller")
        pod_id: str | None = call.pod_id if caller is not None else None
        self.sight.note(
            self.sight.meter(route, class_of(caller, pod_id)),
            began,
            status,
            size,
            route=route,
            address=client_address(scope),
            key_id="" if caller is None else caller.key_id,
            headers=scope["headers"],
        )
        return pod_id

    def route_of(self, answerer: Answerer | None) -> str:
        """Return the method and the path of an answerer, as in the route table."""
        return NO_ROUTE if answerer is None else self._routes.get(answerer, NO_ROUTE)

    async def _open_live(self, scope: Scope) -> Live:
        began = time.perf_counter()
        status = 101
        try:
            return await self._find_live(scope)
        except LaurelsError as error:
            status = problem_of(error).status
            raise
        finally:
            self._note(scope, began, status, 0)

    async def _find_live(self, scope: Scope) -> Live:
        answerer = scope["route"] = self._find(scope, "GET")
        if not isinstance(answerer, Endpoint):
            raise NotFound("no_such_address", f"There is no WebSocket at {scope['path']}.")
        try:
            return await answerer.open_live(HTTPConnection(scope))
        except LaurelsError:
            raise
        except Exception as error:
            log.exception("fault", route=self.route_of(answerer))
            raise internal_error() from error

    async def _preflight(self, scope: Scope, origin: str) -> ASGIApp:
        answerers = self._find_path(scope)
        # Of public boards only: whether a private board exists is nobody's business.
        pod_id = self.laurels.boards.pod_of_public(scope["path_params"].get("UUID")) or scope["path_params"].get(
            "podId"
        )
        try:
            return preflight(self.laurels, origin, pod_id, answerers)
        except Forbidden:
            # Another server may have just created the pod or the board, or allowed the origin.
            await self.laurels.access.look_again()
            return preflight(self.laurels, origin, pod_id, answerers)

    def _find(self, scope: Scope, method: str) -> Answerer:
        try:
            return self._find_answerer(scope, method)
        except LaurelsError:
            self._admit_page(scope)
            raise

    def _find_answerer(self, scope: Scope, method: str) -> Answerer:
        answerers = self._find_path(scope)
        answerer = answerers.get("GET" if method == "HEAD" else method)
        if answerer is None:
            allowed = [*answerers, *(["HEAD"] if "GET" in answerers else [])]
            error = WrongMethod(
                "method_not_allowed", f"{method} is not allowed at {scope['path']}. Use {', '.join(allowed)}."
            )
            error.allowed = allowed
            raise error
        return answerer

    def _find_path(self, scope: Scope) -> dict[str, Answerer]:
        """Return the answerers of a path by method."""
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        answerers, scope["path_params"] = self._tree.find(raw_path)
        if not answerers:
            raise NotFound(
                "no_such_address", f"There is no endpoint at {scope['path']}. All endpoints are listed at /docs."
            )
        return answerers


class _Seen:
    """Notes the status and the size of a response while it is sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.began = time.perf_counter()
        # If the client disconnects before the response.
        self.status = 499
        self.bytes = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.bytes += len(message.get("body", b""))
        await self._send(message)
