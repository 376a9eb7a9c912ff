"""The command `laurels migrate --from`: all data of a folder, past seasons included, to PostgreSQL and Redis."""

from pathlib import Path
from typing import Any

import httpx

from support.running import ADMIN_KEY, RunningServer, laurels
from support.stores import shared_postgres, shared_redis
from support.waiting import until

API = "/api/v1"
BOARD = f"{API}/leaderboards/league"
LEAGUE = {
    "UUID": "league",
    "podId": "chess",
    "name": "League",
    "rule": "increment",
    "graceSeconds": 0,
    "windows": [{"window": "season", "cron": "0 0 1 1 *"}, "all"],
    "segments": ["global", "region", "circle"],
    "rewards": [{"name": "cup", "prize": {"gems": 5}, "ranks": {"from": 1, "to": 2}}],
}
REGIONS = ["eu", "kr", None]


def live(client: httpx.Client) -> list[str]:
    """Create a pod with a past and a current season, profiles and moderation actions; return its keys."""

    def do(method: str, path: str, body: dict[str, Any] | None = None, **params: str) -> Any:
        answer = client.request(method, path, json=body, params=params)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    do("POST", f"{API}/pods", {"podId": "chess", "name": "Chess"})
    mappings = {"userId": "who", "score": "points", "UUID": "board"}
    do("PUT", f"{API}/pods/chess/schemas/1", {"fieldMappings": mappings, "state": "active"})
    keys = [do("POST", f"{API}/pods/chess/keys", {"role": "server"}) for _ in range(2)]
    do("DELETE", f"{API}/pods/chess/keys/{keys[1]['keyId']}")
    do("PUT", f"{API}/pods/chess/webhook", {"url": "http://127.0.0.1:9/hook"})
    do("POST", f"{API}/leaderboards", LEAGUE)
    do(
        "POST",
        f"{API}/leaderboards",
        {"UUID": "laps", "podId": "chess", "name": "Laps", "rule": "best", "order": "asc"},
    )
    people = [
        {"userId": f"u{n}", "displayName": f"Émile {n}", "region": REGIONS[n % 3], "circles": [f"c{n % 4}"]}
        for n in range(40)
    ]
    do("POST", f"{API}/users", {"users": people}, podId="chess")
    for season in range(2):
        for turn in range(3):
            scores = [
                {
                    "userId": f"u{n}",
                    "score": 0.1 * n + turn,
                    "eventId": f"{season}.{turn}.{n}",
                    "metadata": {"match": n % 5},
                }
                for n in range(40)
            ]
            do("POST", f"{BOARD}/scores", {"scores": scores})
            do("POST", f"{API}/leaderboards/laps/scores", {"scores": scores})
        if season == 0:
            do("POST", f"{BOARD}/periods/current/close")
            until(lambda: "FINAL" in client.get(f"{BOARD}/periods").text, "the final ranks")
    first = do("GET", f"{BOARD}/periods/previous/rewards")["rewards"][0]
    do("POST", f"{API}/rewards/{first['rewardId']}/claim")
    do("POST", f"{BOARD}/void", {"match": {"match": 3}, "reason": "a bot"})
    do("POST", f"{BOARD}/periods/previous/refreeze", {"reason": "a bot"})
    until(lambda: "SUPERSEDED" in client.get(f"{BOARD}/periods").text, "the new final ranks")
    do("PUT", f"{BOARD}/users/u7/hidden", {"shadow": True})
    do("PUT", f"{API}/users/u8/hidden", {}, podId="chess")
    do("DELETE", f"{API}/users/u9", podId="chess")
    do("DELETE", f"{API}/leaderboards/laps/users/u10")
    return [str(key["key"]) for key in keys]


def seen(client: httpx.Client) -> dict[str, Any]:
    """Return all that can be read, unchanged except for the time of the read."""
    pod = {"podId": "chess"}
    periods = [period["period"] for period in read(client, f"{BOARD}/periods")["periods"]]
    paths: list[tuple[str, dict[str, Any]]] = [
        (f"{API}/pods", {}),
        (f"{API}/pods/chess/keys", {"digests": True}),
        (f"{API}/pods/chess/schemas", {}),
        (f"{API}/pods/chess/webhook", {}),
        (f"{API}/leaderboards", {}),
        (f"{API}/users", pod | {"limit": 1000}),
        (f"{API}/acts", pod),
        (f"{BOARD}/periods", {}),
        (f"{BOARD}/events", {"limit": 1000, "voided": True}),
        (f"{API}/leaderboards/laps/top", {"limit": 1000}),
        (f"{API}/leaderboards/laps/events", {"limit": 1000}),
        *((f"{BOARD}/periods/{period}/rewards", {}) for period in periods),
        *(
            (f"{BOARD}/top", {"period": period, "segment": segment, "limit": 1000})
            for period in periods
            for segment in ("global", "region:eu", "region:kr", *(f"circle:c{n}" for n in range(4)))
        ),
        *((f"{BOARD}/distribution", {"period": period}) for period in periods),
        *((f"{API}/users/u{n}/{what}", pod) for n in range(12) for what in ("scores", "results", "rewards", "export")),
        *((f"{BOARD}/users/u{n}/history", {}) for n in range(12)),
    ]
    return {f"{path} {params}": read(client, path, **params) for path, params in paths}


def read(client: httpx.Client, path: str, **params: Any) -> Any:
    answer = client.get(path, params=params)
    if answer.headers["Content-Type"] == "application/x-ndjson":
        return answer.text
    found = answer.json()
    found.pop("retrievedAt", None)
    return found


def empty_stores(name: str) -> dict[str, str]:
    return {"ledger": shared_postgres().new_database(f"take-over-{name}"), "index": shared_redis().url}


def take_over(source: Path, data_dir: Path, **settings: str) -> str:
    done = laurels("migrate", "--from", str(source), data_dir=data_dir, **settings)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_migrate_from_a_data_folder_keeps_all_data(tmp_path: Path) -> None:
    stores = empty_stores("everything")
    source = RunningServer(tmp_path / "old")
    with source, source.client() as old:
        keys = live(old)
        before = seen(old)
        refused = laurels("migrate", "--from", str(source.data_dir), data_dir=tmp_path, **stores)
        assert (refused.returncode, f"is in use by {source.url}" in refused.stderr) == (5, True)
        source.terminate()
    told = take_over(source.data_dir, tmp_path, **stores)
    assert "pods 2, boards 3, events 480," in told
    again = laurels("migrate", "--from", str(source.data_dir), data_dir=tmp_path, **stores)
    assert (again.returncode, "already in use" in again.stderr) == (2, True)
    with RunningServer(tmp_path / "new", **stores) as target, target.client() as new:
        after = seen(new)
        for path, expected in before.items():
            assert after[path] == expected, path
        # Keys, event ids, rewards and erasures are unchanged.
        for key, status in zip(keys, (200, 401), strict=True):
            with target.client(key) as game:
                assert game.get(f"{BOARD}/top").status_code == status
        same = {"score": 0.1 * 5 + 1, "metadata": {"match": 0}, "eventId": "1.1.5"}
        assert new.put(f"{BOARD}/users/u5", json=same).json()["duplicate"]
        more = new.put(f"{BOARD}/users/u5", json={"score": 0.2, "eventId": "new"}).json()
        # (0.5 + 1.5 + 2.5) x 2 + 0.2, exactly.
        assert {each["window"]: each["score"] for each in more["periods"]}["all"] == 9.2
        late = {"score": 1, "timestamp": "2026-01-02T00:00:00Z"}
        assert new.put(f"{API}/leaderboards/laps/users/u9", json=late).json()["code"] == "user_erased"
        claimed = new.get(f"{BOARD}/periods/previous/rewards").json()["rewards"][0]["rewardId"]
        assert new.post(f"{API}/rewards/{claimed}/claim").json()["alreadyClaimed"]
        acts = new.get(f"{API}/acts", params={"podId": "chess"}).json()["acts"]
        void = next(act["actId"] for act in acts if act["kind"] == "void")
        assert new.post(f"{API}/acts/{void}/restore", params={"podId": "chess"}).status_code == 200
        assert new.post(f"{BOARD}/periods/current/close").status_code == 200
        check = laurels("verify", data_dir=target.data_dir, url=target.url, key=ADMIN_KEY)
        assert check.returncode == 0, check.stdout


def test_migrate_from_reports_an_unusable_source_or_target(tmp_path: Path) -> None:
    stores = empty_stores("nothing")
    nothing = laurels("migrate", "--from", str(tmp_path / "nowhere"), data_dir=tmp_path, **stores)
    assert (nothing.returncode, "is not a Laurels data folder" in nothing.stderr) == (2, True)
    assert laurels("migrate", data_dir=tmp_path).returncode == 0
    embedded = laurels("migrate", "--from", str(tmp_path), data_dir=tmp_path / "other")
    assert (embedded.returncode, "--ledger" in embedded.stderr) == (2, True)
    # An empty data folder is fine.
    assert "boards 0, events 0," in take_over(tmp_path, tmp_path / "other", **stores)
