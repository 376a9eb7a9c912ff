"""The board and the users that all sides have."""

import random
from collections.abc import Iterator

from laurels.bench.load import SEED

BOARD = "bench"
LARGEST_SCORE = 10**6


def user_name(number: int) -> str:
    """Return a user id of 24 characters, a common length of database ids."""
    return f"{number:024x}"


def first_scores(users: int) -> Iterator[tuple[str, float]]:
    """Yield every user with a score: the same ones for all sides."""
    rng = random.Random(SEED)
    for number in range(users):
        yield user_name(number), float(rng.randrange(LARGEST_SCORE))
