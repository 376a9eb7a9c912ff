"""Completion of names in the shell, from the server that runs.

`laurels --install-completion` sets it up. Completion never starts a server, and shows nothing if none answers in time.
"""

from typing import Any
from urllib.parse import quote

import typer

TIMEOUT_S = 2.0
# The most that a page of a list may have.
PAGE = {"limit": 1000}


def complete_boards(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, "/api/v1/leaderboards", "leaderboards", "UUID", PAGE)


def complete_pods(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, "/api/v1/pods", "pods", "podId", {})


def complete_periods(context: typer.Context, incomplete: str) -> list[str]:
    board = context.params.get("board")
    if not board:
        return []
    path = f"/api/v1/leaderboards/{quote(board, safe='')}/periods"
    return _names(context, incomplete, path, "periods", "period", PAGE)


def _names(
    context: typer.Context, incomplete: str, path: str, listed: str, name: str, query: dict[str, int]
) -> list[str]:
    # A broken completion must not disturb the line that someone is typing.
    try:
        found = _read(context.params, path, query)[listed]
        return [each[name] for each in found if each[name].startswith(incomplete)]
    except Exception:  # noqa: BLE001
        return []


def _read(options: dict[str, Any], path: str, query: dict[str, int]) -> Any:
    import httpx

    from laurels.cli.connect import where_to_call
    from laurels.client.tls import tls_for
    from laurels.config import read_settings

    settings = read_settings({name: options.get(name) for name in ("url", "key", "data_dir")})
    url, key = where_to_call(settings)
    if not url:
        return {}
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = httpx.get(url + path, params=query, headers=headers, timeout=TIMEOUT_S, verify=tls_for(url))
    return answer.json()
