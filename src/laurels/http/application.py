"""The ASGI application: finds the endpoint of an address and sends what it answers.

Addresses are matched part by part, as they were sent, and each part is percent-decoded by itself, so that an id may
have a slash. A part may be empty: the id's own check then says what is wrong.
"""

from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import unquote_to_bytes

import structlog
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from laurels.errors import InternalError, LaurelsError, Malformed, NotFound, WrongMethod
from laurels.http.call import Endpoint
from laurels.http.live import Live, serve_socket
from laurels.http.page_cache import PageCache
from laurels.http.problems import problem_response
from laurels.service.laurels import Laurels

log = structlog.get_logger()

Answerer = Callable[[Request], Awaitable[ASGIApp]]


class Application:
    """`laurels` and `pages` are what endpoints need; they find the application in the request."""

    def __init__(self, laurels: Laurels, addresses: Iterable[tuple[str, str, Answerer]]) -> None:
        self.laurels = laurels
        self.pages = PageCache()
        self._root = _Node()
        for method, path, answerer in addresses:
            self._root.add(path.encode().split(b"/")[1:], method, answerer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "websocket":
            await serve_socket(scope, receive, send, lambda: self._open_live(scope))
            return
        assert scope["type"] == "http", scope["type"]
        request = Request(scope, receive)
        response: ASGIApp
        try:
            response = await self._find(scope, scope["method"])(request)
        except LaurelsError as error:
            response = problem_response(error)
        except Exception:
            log.exception("fault", method=scope["method"], path=scope["path"])
            response = problem_response(InternalError("internal", "A fault in Laurels. The log has the details."))
        await response(scope, receive, send)

    async def _open_live(self, scope: Scope) -> Live:
        answerer = self._find(scope, "GET")
        if not isinstance(answerer, Endpoint):
            raise NotFound("no_such_address", f"There is no WebSocket at {scope['path']}.")
        try:
            return await answerer.open_live(HTTPConnection(scope))
        except LaurelsError:
            raise
        except Exception as error:
            log.exception("fault", path=scope["path"])
            raise InternalError("internal", "A fault in Laurels. The log has the details.") from error

    def _find(self, scope: Scope, method: str) -> Answerer:
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        node, scope["path_params"] = self._root.walk(raw_path.split(b"/")[1:])
        if node is None or not node.answerers:
            raise NotFound("no_such_address", f"There is nothing at {scope['path']}. The calls are listed at /docs.")
        answerer = node.answerers.get("GET" if method == "HEAD" else method)
        if answerer is None:
            allowed = [*node.answerers, *(["HEAD"] if "GET" in node.answerers else [])]
            error = WrongMethod(
                "method_not_allowed", f"{method} is not possible at {scope['path']}: use {', '.join(allowed)}."
            )
            error.allowed = allowed
            raise error
        return answerer


class _Node:
    """The addresses that share a beginning."""

    def __init__(self) -> None:
        self.answerers: dict[str, Answerer] = {}
        self._fixed: dict[bytes, _Node] = {}
        self._named: tuple[str, _Node] | None = None

    def add(self, parts: list[bytes], method: str, answerer: Answerer) -> None:
        if not parts:
            self.answerers[method] = answerer
            return
        part, rest = parts[0], parts[1:]
        if part.startswith(b"{"):
            name = part.strip(b"{}").decode()
            if self._named is None:
                self._named = (name, _Node())
            assert self._named[0] == name, "one place in an address has one name"
            self._named[1].add(rest, method, answerer)
        else:
            self._fixed.setdefault(part, _Node()).add(rest, method, answerer)

    def walk(self, parts: list[bytes]) -> tuple["_Node | None", dict[str, str]]:
        """The node of an address, and its named parts."""
        named: dict[str, str] = {}
        node: _Node = self
        for part in parts:
            following = node._fixed.get(part)
            if following is None:
                if node._named is None:
                    return None, named
                name, following = node._named
                named[name] = _decode(part)
            node = following
        return node, named


def _decode(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise Malformed("invalid_path", "The address has a part that is not UTF-8.", rule="UTF-8") from None
