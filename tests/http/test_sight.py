"""What operators see of the calls: metrics by route, the access log, and the key of the metrics."""

import json
import re
from pathlib import Path

import httpx
import pytest

from support.calls import problem
from support.running import ADMIN_KEY, PLAIN, RunningServer, laurels

API = "/api/v1/leaderboards/default"
TOP = "GET /api/v1/leaderboards/{UUID}/top"
SCORE = "PUT /api/v1/leaderboards/{UUID}/users/{userId}"


def metric(server: RunningServer, name: str, **labels: str) -> float:
    """Return the sum of a metric over all series with these labels."""
    text = httpx.get(f"{server.url}/metrics", verify=PLAIN).text
    found = 0.0
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
        if match and all(f'{label}="{value}"' in match[1] for label, value in labels.items()):
            found += float(match[2])
    return found


def test_calls_are_counted_by_route_status_and_class(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.client() as api, httpx.Client(base_url=server.url) as stranger:
        # Both ways: the hot lane answers the first of each.
        for score in (1, "no number"):
            for _ in range(3):
                api.put(f"{API}/users/ada", json={"score": score})
        for _ in range(5):
            size = len(stranger.get(f"{API}/top").content)
        stranger.get(f"{API}/top", headers={"Origin": "https://game.example"})
        stranger.get("/nosuch")
        assert metric(server, "laurels_calls_total", route=SCORE, status="200", **{"class": "admin"}) == 3
        assert metric(server, "laurels_calls_total", route=SCORE, status="422", **{"class": "admin"}) == 3
        assert metric(server, "laurels_calls_total", route=TOP, status="200", **{"class": "no_key"}) == 6
        assert metric(server, "laurels_calls_total", route="none", status="404") == 1
        assert metric(server, "laurels_call_seconds_count", route=TOP) == 6
        assert metric(server, "laurels_call_seconds_bucket", route=TOP, le="10.0") == 6
        assert 0 < metric(server, "laurels_call_seconds_sum", route=TOP) < 60
        assert abs(metric(server, "laurels_response_bytes_total", route=TOP) - 6 * size) <= 60
        # Users are not in labels.
        assert "ada" not in httpx.get(f"{server.url}/metrics", verify=PLAIN).text


@pytest.mark.parametrize("logged", ["off", "errors", "all"])
def test_access_log_has_no_keys_and_no_users(tmp_path: Path, logged: str, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        RunningServer(tmp_path, access_log=logged, trusted_proxies="127.0.0.1") as server,
        server.client() as api,
    ):
        headers = {"X-Forwarded-For": "203.0.113.5", "X-Request-Id": "req-7"}
        api.put(f"{API}/users/ada-secret", json={"score": 1}, headers=headers)
        api.get(f"{API}/users/ada-secret/history", headers={"X-Request-Id": "not valid\t!"})
        api.get(f"{API}/users/nobody-secret/rank")
        server.terminate()
    text = capfd.readouterr().err
    lines = [json.loads(line) for line in text.splitlines() if '"event": "call"' in line]
    assert "secret" not in "".join(map(str, lines))
    assert ADMIN_KEY not in str(lines)
    statuses = [line["status"] for line in lines if "users" in line["route"]]
    assert statuses == {"off": [], "errors": [404], "all": [200, 200, 404]}[logged]
    if logged == "all":
        first, second = [line for line in lines if "users" in line["route"]][:2]
        assert (first["route"], first["address"], first["request_id"]) == (SCORE, "203.0.113.5", "req-7")
        assert (first["key_id"], second["address"]) == ("admin", "127.0.0.1")
        assert re.fullmatch("[0-9a-f]{16}", second["request_id"])
        assert first["bytes"] > 0
        assert first["ms"] > 0


def test_metrics_can_need_a_key(tmp_path: Path) -> None:
    with RunningServer(tmp_path, metrics_key="a-key-for-prometheus") as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-API-Key": ADMIN_KEY}):
            problem(httpx.get(f"{server.url}/metrics", headers=headers, verify=PLAIN), 401, "key_required")
        answer = httpx.get(
            f"{server.url}/metrics", headers={"Authorization": "Bearer a-key-for-prometheus"}, verify=PLAIN
        )
        assert "laurels_calls_total" in answer.text


def test_unknown_access_log_is_refused(tmp_path: Path) -> None:
    refused = laurels("serve", data_dir=tmp_path, access_log="some")
    assert refused.returncode == 2
    assert "LAURELS_ACCESS_LOG" in refused.stderr
