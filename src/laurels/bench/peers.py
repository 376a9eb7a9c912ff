"""Other leaderboard servers: a URL, and a short description of their calls in TOML.

A description has a table per call (`top`, `rank`, `around`, `put`) with `method`, `path` and an optional `body`, and an
optional table `headers`. `{user}` and `{score}` in them are replaced. Users are created with `put`.
"""

import random
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from laurels.bench.data import first_scores, user_name
from laurels.bench.load import SEED, send_all
from laurels.errors import Invalid

CALLS = ("top", "rank", "around", "put")
# The number of different requests of a call.
REQUESTS = 20_000


class Peer(Struct, frozen=True):
    name: str
    host: str
    port: int
    calls: dict[str, Any]
    headers: dict[str, str]

    def requests(self, call: str, users: int) -> list[bytes]:
        rng = random.Random(SEED)
        count = 1 if "{user}" not in str(self.calls[call]) else REQUESTS
        return [self._request(call, user_name(rng.randrange(users)), 1.0) for _ in range(count)]

    def _request(self, call: str, user: str, score: float) -> bytes:
        told = self.calls[call]

        def filled(text: str) -> str:
            return text.replace("{user}", user).replace("{score}", f"{score:g}")

        body = filled(told.get("body", "")).encode()
        headers = {"Host": f"{self.host}:{self.port}", **self.headers}
        if body:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        lines = [f"{told['method']} {filled(told['path'])} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def fill(self, users: int, connections: int) -> None:
        """Create the users."""
        requests = [self._request("put", user, score) for user, score in first_scores(users)]
        await send_all(self.port, requests, connections, self.host)


def known_peers() -> list[str]:
    """Return the names of the servers whose description comes with Laurels."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def read_peer(told: str, described: dict[str, Path]) -> Peer:
    """Return a peer from NAME=URL and the descriptions by name."""
    name, _, url = told.partition("=")
    address = urlsplit(url)
    if not name or address.scheme != "http" or address.hostname is None:
        raise Invalid("wrong_format", f"--peer must be NAME=http://HOST:PORT, not {told!r}.", field="--peer")
    if name in described:
        text = described[name].read_text("utf-8")
    elif name in known_peers():
        text = (_folder() / f"{name}.toml").read_text("utf-8")
    else:
        raise Invalid(
            "wrong_format",
            f"There is no description of {name!r}. Add --describe {name}=FILE, or use one of: "
            f"{', '.join(known_peers())}.",
            field="--peer",
        )
    try:
        calls = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Invalid("wrong_format", f"The description of {name!r} is not TOML: {error}", field="--describe") from None
    headers = calls.pop("headers", {})
    unknown = sorted(set(calls) - set(CALLS))
    lacking = [call for call, each in calls.items() if call in CALLS and not {"method", "path"} <= set(each)]
    if unknown or lacking or "put" not in calls:
        raise Invalid(
            "wrong_format",
            f"The description of {name!r} needs `put`, may have {', '.join(CALLS)}, each with `method` and `path`.",
            field="--describe",
        )
    return Peer(name, address.hostname, address.port or 80, calls, headers)


def _folder() -> Any:
    return files("laurels.bench") / "peers"
