"""When a call is tried again, and what an answer that is no success means."""

import random

import httpx
import msgspec

from laurels.errors import CODES, OUTSIDE, InternalError, Invalid, LaurelsError, Unavailable
from laurels.http.answers import Problem

TRIES = 6
TIMEOUT_S = 30.0
# As many live iterators as the program likes; what they don't use is closed.
STREAM_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
# 429: more than one's share, 503: not now. Both say when to come back.
_AGAIN = {429, 503}


def pause_before(number: int, response: httpx.Response | None = None) -> float:
    """How long to wait before try `number` (the first is 0): longer each time, not in step with others."""
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(number - 1, 10)) * random.uniform(0.8, 1.2)  # noqa: S311
    try:
        asked = float(response.headers.get("Retry-After", "0")) if response is not None else 0.0
    except ValueError:
        asked = 0.0
    return max(pause, min(asked, LONGEST_PAUSE_S))


def may_try_again(response: httpx.Response) -> bool:
    return response.status_code in _AGAIN


def error_of(response: httpx.Response) -> LaurelsError:
    """The error that a problem was made of."""
    try:
        return error_from(msgspec.json.decode(response.content, type=Problem))
    except msgspec.DecodeError:
        told = f"The server answered {response.status_code}: {response.text[:200]}"
        # Somebody else than Laurels. What is not there now may be there later, what was refused stays so.
        return (Unavailable if response.status_code >= 500 else Invalid)("internal", told)


def error_from(problem: Problem) -> LaurelsError:
    kinds = [kind for kind, outside in OUTSIDE.items() if outside.http_status == problem.status]
    kind = next((kind for kind in kinds if kind.retryable == problem.retryable), InternalError)
    code = problem.code if problem.code in CODES else "internal"
    return kind(code, problem.detail, field=problem.field, rule=problem.rule)


def unreachable(url: httpx.URL, error: httpx.TransportError) -> LaurelsError:
    return Unavailable("unreachable", f"{url} can't be reached: {str(error) or type(error).__name__}.")
