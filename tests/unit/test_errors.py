"""Every error class maps to a status, a title, an exit code, and Retry-After if a retry makes sense."""

import pytest

from laurels.errors import CODES, ERROR_MAPPINGS, LaurelsError, TooMany, Unavailable, WrongMethod
from laurels.http.problems import problem_response


def kinds(of: type[LaurelsError] = LaurelsError) -> list[type[LaurelsError]]:
    return [kind for each in of.__subclasses__() for kind in [each, *kinds(each)]]


@pytest.mark.parametrize("kind", kinds())
def test_every_error_class_maps_to_a_response_and_an_exit_code(kind: type[LaurelsError]) -> None:
    response = problem_response(kind("internal", "Something.", field="score", rule="a rule"))
    assert response.status_code == ERROR_MAPPINGS[kind].http_status
    assert response.media_type == "application/problem+json"
    assert ("Retry-After" in response.headers) == issubclass(kind, TooMany | Unavailable)
    assert ("Allow" in response.headers) == (kind is WrongMethod)
    assert ("WWW-Authenticate" in response.headers) == (response.status_code == 401)
    assert ERROR_MAPPINGS[kind].exit_code in range(1, 6)


def test_http_statuses_of_errors_match_the_expected_set() -> None:
    assert {outside.http_status for outside in ERROR_MAPPINGS.values()} == {
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


def test_unlisted_error_code_raises_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        LaurelsError("no_such_code", "Something.")
    assert all(code == code.lower() for code in CODES)
