"""Cross-origin calls (CORS): lets pages from the origins that a pod allows call the API, and no others.

A call belongs to the pod of its board, else to that of its key. Before the key is known, as in a preflight, the origins
of all pods are allowed: the call itself is checked again. Keys travel in headers, not in cookies, so no response allows
credentials. Every response has `Vary: Origin` (server.py), because a cache may keep one for other origins.
"""

from collections.abc import Iterable
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Scope, Send

from laurels.errors import Forbidden, LaurelsError
from laurels.service.laurels import Laurels

ALLOWED_HEADERS = "authorization, content-type, idempotency-key, if-none-match, last-event-id, x-api-key"
EXPOSED_HEADERS = "etag, laurels-degraded, ratelimit, ratelimit-policy, retry-after"
PREFLIGHT_SECONDS = 600


def origin_of(scope: Scope) -> str | None:
    """Return the origin of a request from a page of another origin; None for other requests."""
    origin, host = _header(scope, b"origin"), _header(scope, b"host")
    if origin is None or origin.partition("://")[2] == host:
        return None
    return origin


def is_preflight(scope: Scope) -> bool:
    return bool(scope["method"] == "OPTIONS") and _header(scope, b"access-control-request-method") is not None


def preflight(laurels: Laurels, origin: str, pod_id: str | None, methods: Iterable[str]) -> Response:
    """Answer the question of a browser whether a page may make a call."""
    if not laurels.access.allows_origin(pod_id, origin):
        raise _forbidden(origin)
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Allow-Headers": ALLOWED_HEADERS,
            "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
        },
    )


def with_headers(laurels: Laurels, scope: Scope, origin: str, send: Send) -> Send:
    """Return a `send` that lets a page of an allowed origin read the response."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if laurels.access.allows_origin(_pod_of(scope), origin):
                headers += [
                    (b"access-control-allow-origin", origin.encode("latin-1")),
                    (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
                ]
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers


def need_origin(laurels: Laurels, scope: Scope) -> None:
    """Raise Forbidden if a WebSocket comes from a page of an origin that the pod does not allow."""
    origin = origin_of(scope)
    if origin is not None and not laurels.access.allows_origin(_pod_of(scope), origin):
        raise _forbidden(origin)


def _pod_of(scope: Scope) -> str | None:
    call: Any = scope.get("state", {}).get("call")
    if call is None:
        return None
    if hasattr(call, "board"):
        return str(call.board.pod_id)
    try:
        pod_id: str | None = scope["path_params"].get("podId") if call.caller.is_admin else call.caller.pod_id
    except LaurelsError:
        return None
    return pod_id


def _forbidden(origin: str) -> LaurelsError:
    return Forbidden(
        "origin_forbidden", f"Pages from {origin} may not call this server: see allowedOrigins of the pod."
    )


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for each, value in scope["headers"] if each == name), None)
