"""Connections from commands to a server: the one named by --url, the one that holds the data folder, or a private one.

Commands use only the HTTP API. If no server holds the data folder, the command serves it itself while it runs, on a
socket in a private temporary folder.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec

from laurels.client import AsyncClient, Request
from laurels.core.ids import new_key_id
from laurels.errors import Invalid, LaurelsError, Unauthenticated, Unavailable
from laurels.settings import Settings
from laurels.wiring import running_server

TIMEOUT_S = 60
# Entries per page of a list.
PAGE = 500
OWN = "laurels"


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator["Peer"]:
    url, key = where_to_call(settings)
    if url:
        async with client_of(url, key) as client:
            yield client
    elif url is None:
        from laurels.cli.serving import own_server

        async with own_server(settings) as client:
            yield client
    else:
        raise Unavailable(
            "ledger_unavailable",
            f"{settings.server.data_dir} is in use by another laurels command. Try again when it has finished.",
        )


def where_to_call(settings: Settings) -> tuple[str | None, str | None]:
    """Return the URL of the server and the key for it.

    The URL is None if no server holds the data folder, and empty if another command does.
    """
    own = running_server(settings)
    url = settings.client.url or own
    # The data folder's admin key must not be sent to any server but the one that holds the folder.
    key = settings.client.key or (find_admin_key(settings) if url and _same_server(url, own) else None)
    return url, key


def ask(settings: Settings, method: str, path: str, body: Any = None, **query: Any) -> Any:
    """Make one call and return its answer. What is None in the query is not sent."""
    # With an idempotency key, a write that is retried takes effect once.
    headers = {} if method == "GET" else {"Idempotency-Key": new_key_id()}

    async def run() -> Any:
        async with connect(settings) as client:
            return await call(client, method, path, params=_sent(query), json=body, headers=headers)

    return asyncio.run(run())


def ask_all(settings: Settings, path: str, listed: str, limit: int | None = None, **query: Any) -> list[dict[str, Any]]:
    """Return a list from all of its pages, or its first `limit` entries."""

    async def run() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        params = _sent(query) | {"limit": PAGE if limit is None else min(limit, PAGE)}
        async with connect(settings) as client:
            while limit is None or len(found) < limit:
                page = await call(client, "GET", path, params=params)
                found += page[listed]
                if page["nextCursor"] is None:
                    break
                params["cursor"] = page["nextCursor"]
        return found if limit is None else found[:limit]

    return asyncio.run(run())


def _sent(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


class Peer(AsyncClient):
    """A client for the server that a command talks to.

    `key_option` names the options that set the key, for error messages.
    """

    key_option = "--key or LAURELS_KEY"

    @property
    def url(self) -> str:
        return str(self.http.base_url)

    def with_hint(self, error: LaurelsError) -> LaurelsError:
        """Return the error; if an option would help, with a hint that names it."""
        if isinstance(error, Invalid) and error.field == "podId" and error.code == "missing_field":
            return Invalid(error.code, "An admin key belongs to no pod. Name one with --pod.", field="--pod")
        if not isinstance(error, Unauthenticated):
            return error
        where = "" if self.http.base_url.host == OWN else f" for {self.url}"
        hint = f"{error.message} Set the key{where} with {self.key_option}."
        return Unauthenticated(error.code, hint, field=error.field)


def reach_other(url: str, key: str | None) -> Peer:
    """Return a client for the server that --from names.

    Raises `Invalid` if the URL is not an HTTP URL.
    """
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
    """Call the API and return the decoded JSON response.

    Retries temporary failures, up to `tries` attempts in total. Raises the `LaurelsError` that the server reports.
    """
    body = msgspec.json.encode(json) if json is not None else content
    sent = ({"Content-Type": "application/json"} if body is not None else {}) | dict(headers or {})
    try:
        return await peer.call(Request(method, path, Any, dict(params or {}), body, sent), tries=tries)
    except LaurelsError as error:
        raise peer.with_hint(error) from error


def find_admin_key(settings: Settings) -> str | None:
    if settings.server.admin_key:
        return settings.server.admin_key
    try:
        return settings.server.admin_key_path.read_text("utf-8").strip() or None
    except OSError:
        return None


def _same_server(url: str, own: str | None) -> bool:
    return own is not None and own != "" and httpx.URL(url) == httpx.URL(own)


def client_of(url: str, key: str | None, transport: httpx.AsyncHTTPTransport | None = None) -> Peer:
    # Public boards can be read without a key.
    return Peer(url, key, timeout_s=TIMEOUT_S, transport=transport)
