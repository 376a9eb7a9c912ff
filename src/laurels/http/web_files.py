"""The files of the web page (laurels/web), read once and served unchanged.

Their headers restrict what a browser may do with them.
"""

import hashlib
import json
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from laurels.http.routing import Answerer

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
}
# Load from and send to this server only. Framing is allowed because the page only reads public data.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    # Browsers revalidate each time; for an unchanged file the response is a 304 without a body.
    "Cache-Control": "no-cache",
}


def web_addresses() -> list[tuple[str, str, Answerer]]:
    folder = files("laurels.web")
    found = [(f"/web/{path}", _serve(path, body)) for path, body in _walk(folder, "")]
    page = _serve("index.html", folder.joinpath("index.html").read_bytes())
    languages = _serve("languages.json", _languages(folder.joinpath("languages")))
    return [
        ("GET", "/", page),
        ("GET", "/boards/{UUID}", page),
        ("GET", "/favicon.ico", _serve("icon.svg", folder.joinpath("icon.svg").read_bytes())),
        ("GET", "/web/languages.json", languages),
        *(("GET", path, answerer) for path, answerer in found),
    ]


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _walk(entry, f"{path}{entry.name}/")
        elif entry.name.rpartition(".")[2] in TYPES:
            yield path + entry.name, entry.read_bytes()


def _languages(folder: Traversable) -> bytes:
    """Return the languages that have a file, as a JSON object of language code and native name."""
    named = {entry.name.removesuffix(".json"): json.loads(entry.read_bytes())["language"] for entry in folder.iterdir()}
    return json.dumps(dict(sorted(named.items()))).encode()


def _matches(asked: str, tag: str) -> bool:
    """Return True if an If-None-Match header matches a tag: a list of tags, weak ones included, or `*` for any."""
    return any(each.strip().removeprefix("W/") in {tag, "*"} for each in asked.split(","))


def _serve(name: str, body: bytes) -> Answerer:
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = HEADERS | {"ETag": tag}
    media_type = TYPES[name.rpartition(".")[2]]

    async def get_file(request: Request) -> Response:
        if _matches(request.headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=media_type)

    return get_file
