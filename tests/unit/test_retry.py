"""The backoff and the circuit breaker."""

import time

import pytest

from laurels.retry import Backoff, CircuitBreaker


class FakeTime:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def test_backoff_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.5, longest_s=3)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1, 2, 3, 3]
    backoff.reset()
    assert backoff.next_s() == 0.5
    assert backoff.pause_s(10**9) == 3


def test_backoff_jitter_stays_within_its_fraction() -> None:
    backoff = Backoff(first_s=10, longest_s=10, jitter=0.2)
    pauses = [backoff.next_s() for _ in range(200)]
    assert 8 <= min(pauses) < 9
    assert 11 < max(pauses) <= 12


def test_backoff_is_pausing_until_the_pause_has_elapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch)
    backoff = Backoff(first_s=1, longest_s=8)
    assert not backoff.is_pausing
    backoff.next_s()
    pausing = [backoff.is_pausing]
    clock.now += 1
    assert [*pausing, backoff.is_pausing] == [True, False]


def test_open_breaker_allows_one_trial_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch)
    breaker = CircuitBreaker(0.25)
    assert breaker.may_try()
    breaker.begin()
    # While it is closed, any number of calls run at once.
    assert breaker.may_try()
    breaker.failed()
    assert (breaker.is_open, breaker.may_try()) == (True, False)
    clock.now += 0.25
    assert breaker.may_try()
    breaker.begin()
    assert not breaker.may_try()
    breaker.failed()
    assert not breaker.may_try()
    clock.now += 0.25
    breaker.begin()
    breaker.succeeded()
    assert (breaker.is_open, breaker.may_try()) == (False, True)
