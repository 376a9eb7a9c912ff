"""How many examples a property test tries: all, or few for `make test-fast`."""

import os

VARIABLE = "LAURELS_TEST_FAST"
FEWER = 5


def examples(number: int) -> int:
    return max(1, number // FEWER) if os.environ.get(VARIABLE) else number
