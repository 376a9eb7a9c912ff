"""Error responses. All errors have one shape: `application/problem+json` (RFC 9457)."""

import msgspec
from starlette.responses import Response

from laurels.errors import (
    ERROR_MAPPINGS,
    InternalError,
    LaurelsError,
    TooMany,
    Unauthenticated,
    Unavailable,
    UpgradeRequired,
    WrongMethod,
)
from laurels.http.answers import Problem
from laurels.metrics import REFUSED_CALLS

MEDIA_TYPE = "application/problem+json"
# Headers of responses that no cache may keep.
PRIVATE = {"Cache-Control": "no-store"}


def problem_of(error: LaurelsError) -> Problem:
    outside = ERROR_MAPPINGS[type(error)]
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
    problem = problem_of(error)
    REFUSED_CALLS.labels(error.code).inc(problem.status < 500)
    headers = dict(PRIVATE)
    if isinstance(error, TooMany | Unavailable):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, TooMany) and error.policy is not None:
        # https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/
        headers["RateLimit-Policy"] = f'"{error.policy}";q={error.quota};w={error.window_s}'
        headers["RateLimit"] = f'"{error.policy}";r=0;t={error.retry_after_s}'
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, UpgradeRequired):
        headers |= {"Upgrade": "websocket", "Connection": "Upgrade"}
    if isinstance(error, WrongMethod):
        headers["Allow"] = ", ".join(error.allowed)
    return Response(msgspec.json.encode(problem), problem.status, headers, MEDIA_TYPE)


def internal_error() -> InternalError:
    return InternalError("internal", "Internal error. The server's log has the details.")
