"""Every kind of error has its outside: a status, a title, an exit code, and Retry-After where trying again is right."""

import pytest

from laurels.errors import CODES, OUTSIDE, LaurelsError, TooMany, Unavailable, WrongMethod
from laurels.http.problems import problem_response


def kinds(of: type[LaurelsError] = LaurelsError) -> list[type[LaurelsError]]:
    return [kind for each in of.__subclasses__() for kind in [each, *kinds(each)]]


@pytest.mark.parametrize("kind", kinds())
def test_each_kind_has_an_outside(kind: type[LaurelsError]) -> None:
    response = problem_response(kind("internal", "Something.", field="score", rule="a rule"))
    assert response.status_code == OUTSIDE[kind].http_status
    assert response.media_type == "application/problem+json"
    assert ("Retry-After" in response.headers) == issubclass(kind, TooMany | Unavailable)
    assert ("Allow" in response.headers) == (kind is WrongMethod)
    assert ("WWW-Authenticate" in response.headers) == (response.status_code == 401)
    assert OUTSIDE[kind].exit_code in range(1, 6)


def test_the_statuses_are_the_promised_ones() -> None:
    assert {outside.http_status for outside in OUTSIDE.values()} == {
        400,
        401,
        403,
        404,
        405,
        408,
        409,
        413,
        415,
        422,
        426,
        429,
        500,
        503,
    }


def test_a_code_that_is_not_listed_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        LaurelsError("no_such_code", "Something.")
    assert all(code == code.lower() for code in CODES)
