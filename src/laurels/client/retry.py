"""When to retry a call, and the errors that unsuccessful responses stand for."""

import httpx
import msgspec

from laurels.errors import CODES, ERROR_MAPPINGS, InternalError, Invalid, LaurelsError, Unavailable
from laurels.http.answers import Problem
from laurels.retry import Backoff

TRIES = 6
TIMEOUT_S = 30.0
# Any number of live iterators; idle connections are closed.
STREAM_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)
LONGEST_PAUSE_S = 5.0
BACKOFF = Backoff(first_s=0.1, longest_s=LONGEST_PAUSE_S, jitter=0.2)
# 429: over a limit, 503: temporarily unavailable. Both say in Retry-After when to retry.
_AGAIN = {429, 503}


def pause_before(number: int, response: httpx.Response | None = None) -> float:
    """Return the seconds to wait before attempt `number`, where the first is 0.

    The pause grows exponentially with random jitter. It is at least what Retry-After asks for, up to
    `LONGEST_PAUSE_S`.
    """
    pause = BACKOFF.pause_s(number)
    try:
        asked = float(response.headers.get("Retry-After", "0")) if response is not None else 0.0
    except ValueError:
        asked = 0.0
    return max(pause, min(asked, LONGEST_PAUSE_S))


def may_try_again(response: httpx.Response) -> bool:
    return response.status_code in _AGAIN


def error_of(response: httpx.Response) -> LaurelsError:
    """Return the error that an unsuccessful response stands for."""
    try:
        return error_from(msgspec.json.decode(response.content, type=Problem))
    except msgspec.DecodeError:
        told = f"The server answered {response.status_code}: {response.text[:200]}"
        # Not from Laurels but, for example, from a proxy: a 5xx may be temporary, another status is final.
        return (Unavailable if response.status_code >= 500 else Invalid)("internal", told)


def error_from(problem: Problem) -> LaurelsError:
    kinds = [kind for kind, outside in ERROR_MAPPINGS.items() if outside.http_status == problem.status]
    kind = next((kind for kind in kinds if kind.retryable == problem.retryable), InternalError)
    code = problem.code if problem.code in CODES else "internal"
    return kind(code, problem.detail, field=problem.field, rule=problem.rule)


def unreachable(url: httpx.URL, error: httpx.TransportError) -> LaurelsError:
    return Unavailable("unreachable", f"{url} can't be reached: {str(error) or type(error).__name__}.")
