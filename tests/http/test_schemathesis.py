"""Generated requests against the served OpenAPI document: no 5xx, and no answer that differs from its schema."""

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from laurels.http.openapi import build_openapi
from laurels.http.routes import ADDRESSES
from support.running import ADMIN_KEY, RunningServer

DOCUMENT = msgspec.json.decode(build_openapi(ADDRESSES))
schema = schemathesis.openapi.from_dict(DOCUMENT)


def test_the_document_that_is_served_is_the_one_tested_here(api: httpx.Client) -> None:
    assert api.get("/openapi.json").json() == DOCUMENT


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of its own: its boards are ended and archived, and its keys revoked."""
    with RunningServer(tmp_path_factory.mktemp("fuzzed")) as running:
        yield running


@schema.parametrize()
@settings(max_examples=25)
def test_arbitrary_requests(case: schemathesis.Case[Any], fuzzed: RunningServer) -> None:
    case.call_and_validate(base_url=fuzzed.url, headers=ADMIN, checks=CHECKS)


@schema.parametrize()
@settings(max_examples=25)
def test_requests_about_what_is_there(case: schemathesis.Case[Any], fuzzed: RunningServer) -> None:
    """The same, on a board with users, so that the calls get past their first check."""
    board = f"board-{uuid.uuid4()}"
    body = {"UUID": board, "podId": "default", "name": "A board", "rule": "increment"}
    with fuzzed.client() as api:
        assert api.post("/api/v1/leaderboards", json=body).status_code == 201
        scores = [{"userId": f"user-{number}", "score": number} for number in range(3)]
        assert api.post(f"/api/v1/leaderboards/{board}/scores", json={"scores": scores}).status_code == 200
    for name, there in {"UUID": board, "podId": "default", "userId": "user-1"}.items():
        if name in case.path_parameters:
            case.path_parameters[name] = there
    case.call_and_validate(base_url=fuzzed.url, headers=ADMIN, checks=CHECKS)
