"""Errors as they leave: one shape, `application/problem+json` (RFC 9457)."""

import http

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from laurels.errors import OUTSIDE, LaurelsError, NotFound, Unavailable
from laurels.http.bodies import Problem

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"


def problem_of(error: LaurelsError) -> Problem:
    outside = OUTSIDE[type(error)]
    return Problem(
        type="about:blank",
        title=outside.title,
        status=outside.http_status,
        detail=error.message,
        code=error.code,
        retryable=error.retryable,
        field=error.field,
        rule=error.rule,
    )


def problem_response(error: LaurelsError) -> Response:
    return _respond(problem_of(error), getattr(error, "retry_after_s", None))


async def handle_laurels_error(request: Request, error: Exception) -> Response:
    """For errors outside of a call, such as an address that can't be read."""
    del request
    assert isinstance(error, LaurelsError)
    return problem_response(error)


async def handle_http_error(request: Request, error: Exception) -> Response:
    """The framework's own errors: no such address, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == http.HTTPStatus.NOT_FOUND:
        return problem_response(
            NotFound("no_such_address", f"There is nothing at {request.url.path}. The calls are listed at /docs.")
        )
    problem = Problem(
        type="about:blank",
        title="Not with this method",
        status=error.status_code,
        detail=f"{request.method} is not possible at {request.url.path}: use {(error.headers or {}).get('Allow')}.",
        code="method_not_allowed",
        retryable=False,
    )
    response = _respond(problem, None)
    response.headers.update(error.headers or {})
    return response


async def handle_fault(request: Request, error: Exception) -> Response:
    """A fault of ours. The framework raises it again for the log once this is sent."""
    del error
    problem = problem_of(Unavailable("internal", "A fault in Laurels. The log has the details."))
    problem.status, problem.title = 500, "Internal error"
    log.error("fault", method=request.method, path=request.url.path)
    return _respond(problem, None)


def _respond(problem: Problem, retry_after_s: int | None) -> Response:
    headers = {}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    if problem.status == http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(msgspec.json.encode(problem), problem.status, headers, MEDIA_TYPE)
