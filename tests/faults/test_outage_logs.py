"""What a server logs during an outage: a line when something is lost, one when it is back, and few in between."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from support.running import LoggedServer
from support.stores import PostgresServer, RedisServer, temporary_folder
from support.waiting import until

BOARDS = 40
OUTAGE_S = 4
PATH = "/api/v1/leaderboards/board-{}"


def is_whole(api: httpx.Client) -> bool:
    answers = [api.get(f"{PATH.format(number)}/top") for number in range(BOARDS)]
    return all(each.status_code == 200 and "laurels-degraded" not in each.headers for each in answers)


def use(api: httpx.Client, seconds: float) -> None:
    """Read and write every board, again and again."""
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        path = PATH.format(number % BOARDS)
        assert api.get(f"{path}/users/ada/rank").status_code in {200, 404, 503}
        assert api.put(f"{path}/users/ada", json={"score": 1}, timeout=60).status_code in {200, 503}


def test_outages_fill_no_log(tmp_path: Path) -> None:
    with (
        temporary_folder() as folder,
        PostgresServer(folder / "postgres") as postgres,
        RedisServer(folder / "redis") as redis,
        LoggedServer(tmp_path, ledger=postgres.url(), index=redis.url, repair_interval_ms="200") as server,
        server.client() as api,
    ):
        for number in range(BOARDS):
            # A window that resets every minute has periods that end during the outages.
            windows = ["all", {"window": "minute", "cron": "* * * * *"}]
            body = {"UUID": f"board-{number}", "podId": "default", "name": "B", "windows": windows, "graceSeconds": 0}
            assert api.post("/api/v1/leaderboards", json=body).status_code == 201
        use(api, 0.5)
        began = len(server.lines())
        for store in (redis, postgres):
            store.kill()
            use(api, OUTAGE_S)
            store.start()
            until(lambda: is_whole(api), "whole rankings", 60)
            use(api, 0.5)
        events: Counter[str] = Counter()
        frozen: Counter[tuple[str, str]] = Counter()
        for line in server.lines()[began:]:
            told: dict[str, Any] = json.loads(line)
            events[f"{told['event']} {told.get('job', '')}"] += 1
            if told["event"] == "period_frozen":
                frozen[told["board"], told["period"]] += 1
        for name in ("index_lost", "index_found", "ledger_lost", "ledger_found"):
            assert 1 <= events[f"{name} "] <= 2, events
        # A reset has one line for each period that ended.
        assert set(frozen.values()) <= {1}, frozen
        del events["period_frozen "]
        assert max(events.values()) <= 6, events
        assert events.total() <= 40, events
