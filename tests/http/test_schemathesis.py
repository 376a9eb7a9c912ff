"""Requests generated from the served OpenAPI document: no 5xx, and every response matches its schema."""

import uuid
from collections.abc import Callable, Iterator
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
from laurels.http.routes import ROUTES
from support.running import ADMIN_KEY, RunningServer

DOCUMENT = msgspec.json.decode(build_openapi(ROUTES))
schema = schemathesis.openapi.from_dict(DOCUMENT)


def test_served_openapi_document_equals_the_tested_one(api: httpx.Client) -> None:
    assert api.get("/openapi.json").json() == DOCUMENT


def test_links_lead_to_operations_with_their_parameters() -> None:
    operations = {each["operationId"]: each for path in DOCUMENT["paths"].values() for each in path.values()}
    linked = 0
    for operation in operations.values():
        for status, response in operation["responses"].items():
            content: dict[str, Any] = next(iter(response.get("content", {}).values()), {})
            name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
            fields: dict[str, Any] = DOCUMENT["components"]["schemas"].get(name, {})
            for link in response.get("links", {}).values():
                target = operations[link["operationId"]]
                names = {each["name"] for each in target["parameters"] if each["in"] == "path"}
                assert link["parameters"].keys() == names, (operation["operationId"], status, link)
                asked = {text.removeprefix("$response.body#/") for text in link["parameters"].values()}
                assert asked <= fields["properties"].keys()
                linked += 1
    assert linked > 20


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
    """Start a separate server, because these requests end and archive boards and revoke keys."""
    with RunningServer(tmp_path_factory.mktemp("fuzzed")) as running:
        with running.client() as api:
            assert api.post("/api/v1/pods", json={"podId": "changed", "name": "A pod"}).status_code == 201
        yield running


Ready = Callable[[str], str]


@pytest.fixture(scope="module")
def ready(fuzzed: RunningServer) -> Ready:
    """Return a function that returns a board with users for an operation.

    It reuses the operation's board as long as that accepts scores.
    """
    boards: dict[str, str] = {}
    scores = [{"userId": f"user-{number}", "score": number} for number in range(3)]

    def board_of(operation: str) -> str:
        with fuzzed.client() as api:
            if operation in boards:
                path = f"/api/v1/leaderboards/{boards[operation]}/scores"
                answer = api.post(path, json={"scores": scores})
                if answer.status_code == 200 and {each["status"] for each in answer.json()["results"]} == {"accepted"}:
                    return boards[operation]
            board = boards[operation] = f"board-{uuid.uuid4()}"
            body = {"UUID": board, "podId": "default", "name": "A board", "rule": "increment"}
            assert api.post("/api/v1/leaderboards", json=body).status_code == 201
            assert api.post(f"/api/v1/leaderboards/{board}/scores", json={"scores": scores}).status_code == 200
            return board

    return board_of


# A stream never ends, so it can't be validated as a whole.
ENDING = schema.exclude(operation_id="get_stream")


@ENDING.parametrize()
@settings(max_examples=25)
def test_arbitrary_requests_match_the_openapi_document(case: schemathesis.Case[Any], fuzzed: RunningServer) -> None:
    case.call_and_validate(base_url=fuzzed.url, headers=ADMIN, checks=CHECKS)


@schema.include(operation_id="get_stream").parametrize()
@settings(max_examples=50)
def test_event_streams_match_the_openapi_document(case: schemathesis.Case[Any], fuzzed: RunningServer) -> None:
    """A stream of an existing board: the response is the beginning of a stream, or a problem."""
    case.path_parameters["UUID"] = "default"
    with (
        fuzzed.client() as api,
        api.stream("GET", case.formatted_path, params=case.query, headers=dict(case.headers or {})) as response,
    ):
        assert str(response.status_code) in case.operation.definition.raw["responses"], response.read()
        if response.status_code == 200:
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert next(response.iter_lines()) == "retry: 1000"
        else:
            assert response.headers["Content-Type"] == "application/problem+json"


@ENDING.parametrize()
@settings(max_examples=25)
def test_requests_for_existing_data_match_the_openapi_document(
    case: schemathesis.Case[Any], fuzzed: RunningServer, ready: Ready
) -> None:
    """Requests about an existing board with users, so that they get past the first check."""
    board = ready(case.operation.label)
    # The quotas of the default pod stay as they are, because the other tests need room in it.
    pod = "changed" if case.operation.definition.raw["operationId"] == "patch_pod" else "default"
    for name, there in {"UUID": board, "podId": pod, "userId": "user-1"}.items():
        if name in case.path_parameters:
            case.path_parameters[name] = there
    case.call_and_validate(base_url=fuzzed.url, headers=ADMIN, checks=CHECKS)
