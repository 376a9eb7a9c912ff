"""Signing keys from a file, a URL, or the metadata of an OpenID Connect issuer."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from laurels.errors import Unavailable

TIMEOUT_S = 5.0
MAX_BYTES = 256 * 1024
METADATA = "/.well-known/openid-configuration"


class _Metadata(msgspec.Struct):
    issuer: str
    jwks_uri: str


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


class Jwks:
    """`location`: a URL or a file. None: the issuer's metadata names the URL."""

    def __init__(self, issuer: str | None, location: str | None) -> None:
        self._issuer = issuer
        self._location = location
        self._client: httpx.AsyncClient | None = None

    async def fetch(self) -> list[dict[str, Any]]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                content = await self._read()
            return msgspec.json.decode(content, type=_KeySet).keys
        except TimeoutError as error:
            raise Unavailable("overloaded", f"The signing keys did not arrive within {TIMEOUT_S:g} s.") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise Unavailable("overloaded", f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _read(self) -> bytes:
        location = self._location
        if location is None:
            assert self._issuer is not None, "the settings have an issuer or a location"
            metadata = msgspec.json.decode(await self._get(self._issuer.rstrip("/") + METADATA), type=_Metadata)
            if metadata.issuer != self._issuer:
                raise ValueError(f"the metadata are those of the issuer {metadata.issuer}")
            location = metadata.jwks_uri
            if urlsplit(location).scheme != urlsplit(self._issuer).scheme:
                raise ValueError(f"the keys are at {location}, which has another scheme than the issuer")
        if urlsplit(location).scheme in {"http", "https"}:
            return await self._get(location)
        return await asyncio.to_thread(_read_file, Path(location))

    async def _get(self, url: str) -> bytes:
        if self._client is None:
            # Without redirects, because they could lead to an internal address.
            self._client = httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)
        async with self._client.stream("GET", url, headers={"Accept": "application/json"}) as response:
            if response.status_code != 200:
                raise ValueError(f"{url} answered {response.status_code}")
            content = b""
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_BYTES:
                    raise ValueError(f"{url} sent more than {MAX_BYTES} bytes")
        return content


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
    return content
