"""The tree of routes: finds the endpoints of a path.

Paths are split at slashes before they are percent-decoded, so an id may contain an encoded slash. A part of a path may
be empty: the validation of the id then reports the error.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.types import ASGIApp

from laurels.errors import Malformed

Answerer = Callable[[Request], Awaitable[ASGIApp]]


class RouteTree:
    def __init__(self) -> None:
        self._root = _Node()

    def add(self, method: str, path: str, answerer: Answerer) -> None:
        """Add a route. Parts of `path` in braces are parameters."""
        node = self._root
        for part in path.encode().split(b"/")[1:]:
            if part.startswith(b"{"):
                name = part.strip(b"{}").decode()
                if node.parameter is None:
                    node.parameter = (name, _Node())
                assert node.parameter[0] == name, "a path parameter has the same name in all addresses"
                node = node.parameter[1]
            else:
                node = node.fixed.setdefault(part, _Node())
        node.answerers[method] = answerer

    def find(self, path: bytes) -> tuple[dict[str, Answerer], dict[str, str]]:
        """Return the answerers of a path by method, which are none if it has no route, and its parameters.

        `path` is as it was sent. Raises `Malformed` if a parameter is not UTF-8.
        """
        parameters: dict[str, str] = {}
        node = self._root
        for part in path.split(b"/")[1:]:
            following = node.fixed.get(part)
            if following is None:
                if node.parameter is None:
                    return {}, parameters
                name, following = node.parameter
                parameters[name] = decode_part(part)
            node = following
        return node.answerers, parameters


class _Node:
    """All paths that share a prefix."""

    __slots__ = ("answerers", "fixed", "parameter")

    def __init__(self) -> None:
        self.answerers: dict[str, Answerer] = {}
        self.fixed: dict[bytes, _Node] = {}
        self.parameter: tuple[str, _Node] | None = None


def decode_part(part: bytes) -> str:
    """Decode a part of a path. Raises `Malformed` if it is not UTF-8."""
    try:
        return (unquote_to_bytes(part) if b"%" in part else part).decode()
    except UnicodeDecodeError:
        raise Malformed("invalid_path", "The path has a part that is not UTF-8.", rule="UTF-8") from None
