"""How commands reach Laurels: a server that is named, the one that serves the data folder, or one of their own.

There is only one way in, the HTTP API; where nobody serves the data folder, the command does so itself for as long
as it runs, on a socket in a private temporary folder.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec

from laurels.client import Ask, AsyncClient
from laurels.config import Settings
from laurels.errors import Invalid, LaurelsError, Unauthenticated, Unavailable
from laurels.wiring import running_server

TIMEOUT_S = 60
OWN = "laurels"


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator["Peer"]:
    own = running_server(settings)
    url = settings.url or own
    if url:
        # The folder's key is for the server that holds the folder, and for nobody else.
        key = settings.key or (find_admin_key(settings) if _same_server(url, own) else None)
        async with client_of(url, key) as client:
            yield client
    elif url is None:
        from laurels.cli.serving import own_server

        async with own_server(settings) as client:
            yield client
    else:
        raise Unavailable("ledger_unavailable", f"{settings.data_dir} is in use by another laurels command.")


class Peer(AsyncClient):
    """A Laurels that a command talks to. `key_option`: how its key is given."""

    key_option = "--key or LAURELS_KEY"

    @property
    def url(self) -> str:
        return str(self.http.base_url)

    def with_hint(self, error: LaurelsError) -> LaurelsError:
        """An error, with how a key is given where that is what it wants."""
        if not isinstance(error, Unauthenticated):
            return error
        where = "" if self.http.base_url.host == OWN else f" of {self.url}"
        hint = f"{error.message} The key{where} is given with {self.key_option}."
        return Unauthenticated(error.code, hint, field=error.field)


def reach_other(url: str, key: str | None) -> Peer:
    """Another Laurels than the one that the settings name."""
    if not url.startswith(("http://", "https://")):
        raise Invalid("wrong_format", f"--from {url!r} must begin with http:// or https://.", field="--from")
    other = client_of(url, key)
    other.key_option = "--from-key"
    return other


async def call(
    peer: Peer,
    method: str,
    path: str,
    *,
    tries: int = 3,
    params: Mapping[str, Any] | None = None,
    json: Any = None,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """The answer's JSON. What can be tried again is, a few times; other problems are raised as what they are."""
    body = msgspec.json.encode(json) if json is not None else content
    sent = ({"Content-Type": "application/json"} if body is not None else {}) | dict(headers or {})
    try:
        return await peer.call(Ask(method, path, Any, dict(params or {}), body, sent), tries=tries)
    except LaurelsError as error:
        raise peer.with_hint(error) from error


def find_admin_key(settings: Settings) -> str | None:
    if settings.admin_key:
        return settings.admin_key
    try:
        return settings.admin_key_path.read_text("utf-8").strip() or None
    except OSError:
        return None


def _same_server(url: str, own: str | None) -> bool:
    return own is not None and own != "" and httpx.URL(url) == httpx.URL(own)


def client_of(url: str, key: str | None, transport: httpx.AsyncHTTPTransport | None = None) -> Peer:
    # Without any key there are still the public boards.
    return Peer(url, key, timeout_s=TIMEOUT_S, transport=transport)
