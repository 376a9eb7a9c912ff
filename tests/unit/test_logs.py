"""The limit of log lines that an outage repeats."""

import time

import pytest

from laurels.logs import MAX_KEYS, LogLimit


def test_line_is_logged_once_per_interval_with_the_number_of_occurrences(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limit = LogLimit(10)
    assert [limit.count("lost") for _ in range(5)] == [1, None, None, None, None]
    assert limit.count("other") == 1
    now += 9
    assert limit.count("lost") is None
    now += 1
    assert limit.count("lost") == 6
    assert limit.count("lost") is None


def test_limit_remembers_a_bounded_number_of_keys() -> None:
    limit = LogLimit(1000)
    for number in range(MAX_KEYS + 1):
        assert limit.count(str(number)) == 1
    # Forgotten, so it is logged again.
    assert limit.count("0") == 1
