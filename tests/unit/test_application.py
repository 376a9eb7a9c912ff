"""Routing: paths are matched as sent and decoded part by part; an internal error is returned as a problem."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from laurels.http.application import Application
from laurels.service.traffic import Rates, Traffic
from laurels.settings import LimitSettings, ServerSettings


async def show(request: Request) -> Response:
    return JSONResponse(request.path_params)


async def fail(request: Request) -> Response:
    raise ZeroDivisionError(request.url.path)


def call(method: str, path: str) -> httpx.Response:
    addresses = [
        ("GET", "/a/{x}", show),
        ("PUT", "/a/{x}", show),
        ("GET", "/a/{x}/b/{y}", show),
        ("GET", "/fail", fail),
    ]
    nothing: Any = None
    laurels: Any = SimpleNamespace(traffic=Traffic(LimitSettings(), Rates(), nothing))

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(Application(laurels, addresses, ServerSettings(), LimitSettings()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/a/1", {"x": "1"}),
        ("/a/1/b/2", {"x": "1", "y": "2"}),
        ("/a/b%2Fc/b/%252F", {"x": "b/c", "y": "%2F"}),
        ("/a//b/", {"x": "", "y": ""}),
        ("/a/%E6%97%A5", {"x": "日"}),
        ("/a/1?x=2", {"x": "1"}),
    ],
)
def test_path_parameters_are_matched_and_decoded(path: str, named: dict[str, str]) -> None:
    assert call("GET", path).json() == named


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/a", 404, "no_such_address"),
        ("GET", "/a/1/b", 404, "no_such_address"),
        ("GET", "/a/1/c/2", 404, "no_such_address"),
        ("GET", "/a/1/b/2/", 404, "no_such_address"),
        ("GET", "/b", 404, "no_such_address"),
        ("DELETE", "/a/1", 405, "method_not_allowed"),
        ("GET", "/a/%ff", 400, "invalid_path"),
        ("GET", "/fail", 500, "internal"),
    ],
)
def test_failed_requests_return_a_problem_response(method: str, path: str, status: int, code: str) -> None:
    response = call(method, path)
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.headers.get("Allow") == ("GET, PUT, HEAD" if status == 405 else None)
