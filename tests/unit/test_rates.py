"""Token buckets: their burst and rate, their number, and what several servers take together."""

import asyncio
from collections.abc import Sequence

import pytest

from laurels.ports import Spending
from laurels.service.traffic import rates as rates_module
from laurels.service.traffic.rates import Rate, Rates


class Time:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("laurels.service.traffic.rates.time.monotonic", lambda: self.now)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_bucket_admits_a_burst_and_then_the_rate(time: Time) -> None:
    rates, rate = Rates(), Rate.per_second("key", "a", 5)
    assert [rates.take(rate) for _ in range(10)] == [0.0] * 10
    assert rates.take(rate) == pytest.approx(0.2)
    time.now += 1
    assert [rates.take(rate) == 0 for _ in range(6)] == [True] * 5 + [False]
    # It never holds more than its size.
    time.now += 1000
    assert sum(rates.take(rate) == 0 for _ in range(100)) == 10
    assert rates.take(Rate.per_second("key", "b", 5)) == 0


def test_bucket_used_last_is_kept(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_module, "KEPT", 3)
    rates, busy = Rates(), Rate.per_minute("key", "busy", 1)
    assert rates.take(busy) == 0
    for number in range(10):
        time.now += 0.001
        assert rates.take(Rate.per_minute("key", str(number), 1)) == 0
        assert rates.take(busy) > 0, "an attacker with many addresses must not get a new bucket"


class OneStore:
    """Buckets that servers share, without a rate."""

    def __init__(self) -> None:
        self.left: dict[str, float] = {}

    async def open(self, ledger_id: str) -> None:
        del ledger_id

    async def spend(self, spendings: Sequence[Spending]) -> list[float]:
        for each in spendings:
            self.left[each.bucket] = self.left.get(each.bucket, each.size) - each.tokens
        return [self.left[each.bucket] for each in spendings]


def test_servers_share_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_module, "SHARE_S", 0.01)

    async def run() -> None:
        store = OneStore()
        servers = [Rates(store) for _ in range(3)]
        for server in servers:
            await server.open("ledger")
        rate = Rate("key", "key/a", 0.001, 30.0)
        taken = 0
        for _ in range(30):
            taken += sum(server.take(rate) == 0 for server in servers)
            await asyncio.sleep(0.03)
        for server in servers:
            await server.close()
        # A server may take one more before it is told.
        assert 30 <= taken <= 33

    asyncio.run(run())
