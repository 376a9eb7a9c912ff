"""Shorthand for calling a server and checking its responses."""

from collections.abc import Callable
from typing import Any

import httpx

NewBoard = Callable[..., str]


def problem(response: httpx.Response, status: int, code: str, field: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert (body["status"], body["code"], body.get("field")) == (status, code, field)
    assert body["detail"]
    assert body["title"]
    if status == 422:
        assert body["rule"]
    return body
