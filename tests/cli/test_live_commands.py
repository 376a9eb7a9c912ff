"""The commands `laurels watch` and `laurels simulate`."""

import itertools
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from laurels.cli.simulation import Simulation
from support.running import ADMIN_KEY, RunningServer, environment, laurels


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path) as server:
        yield server


def test_simulated_players_are_the_same_for_the_same_seed() -> None:
    def story(seed: int) -> list[tuple[str, int]]:
        simulation = Simulation(100, seed)
        return [(play.user_id, play.points) for play in itertools.islice(simulation.plays(adds=True, before={}), 2000)]

    plays = story(1)
    assert plays == story(1)
    assert plays != story(2)
    totals: dict[str, int] = {}
    for user_id, points in plays:
        assert 10 <= points < 10 + 3 * 9 + 5
        totals[user_id] = totals.get(user_id, 0) + points
    # Eager and skilled players are far ahead; player 1 always plays.
    assert max(totals.values()) > 5 * sorted(totals.values())[len(totals) // 2]
    assert "player-1" in totals


def test_simulation_against_a_running_server_adds_up(served: RunningServer) -> None:
    run = laurels(
        "simulate", "--players", "50", "--rate", "200", "--duration", "6", "--seed", "5",
        data_dir=served.data_dir, url=served.url, key="an-admin-key-for-tests-of-all-kinds",
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"Watch it: {served.url}/boards/arena?me=player-1" in run.stdout
    assert re.search(r"^ +\d+ \| +\d+ \| Ada +\| player-1 <--$", run.stdout, re.MULTILINE)
    counted = re.search(r"Sent: (\d+)\. Acknowledged: (\d+)\. Refused: 0\. Seen live: (\d+) frames", run.stdout)
    assert counted is not None
    assert int(counted[1]) == int(counted[2]) > 500
    assert int(counted[3]) > 5
    assert "It adds up" in run.stdout
    with served.client() as api:
        entries = api.get("/api/v1/leaderboards/arena/top", params={"window": "all", "limit": 1000}).json()["users"]
    assert len(entries) > 10
    assert all(entry["displayName"] for entry in entries)


@pytest.mark.parametrize(
    "fields",
    [
        {"rule": "best", "order": "asc"},
        {"rule": "latest"},
        {"rule": "increment", "capacity": 5},
        {"rule": "best", "capacity": 3, "windows": ["daily"]},
        {"rule": "increment", "flushMs": 700},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_simulation_adds_up_on_every_kind_of_board(served: RunningServer, fields: dict[str, Any]) -> None:
    with served.client() as api:
        body = {"UUID": "special", "podId": "default", "name": "Special", "public": True} | fields
        assert api.post("/api/v1/leaderboards", json=body).status_code == 201
        for user, score in (("player-1", 5000), ("player-2", 1), ("somebody", 7)):
            api.put(f"/api/v1/leaderboards/special/users/{user}", json={"score": score})
    for scenario in ("arena", "chess"):
        # The second time, the players have scores already.
        run = laurels(
            "simulate", "--board", "special", "--players", "20", "--rate", "300", "--duration", "2", "--seed", "5",
            "--scenario", scenario,
            data_dir=served.data_dir, url=served.url, key=ADMIN_KEY,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        assert "It adds up" in run.stdout


def test_chess_moves_ratings_and_player_one_all_the_time(served: RunningServer) -> None:
    run = laurels(
        "simulate", "--scenario", "chess", "--players", "40", "--rate", "100", "--duration", "5", "--seed", "5",
        data_dir=served.data_dir, url=served.url, key=ADMIN_KEY,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "It adds up: 40 players" in run.stdout
    assert len(re.findall(r"player-1 <--$", run.stdout, re.MULTILINE)) == 2
    with served.client() as api:
        users = api.get("/api/v1/leaderboards/chess/top", params={"limit": 1000}).json()["users"]
        assert len(users) == 40
        assert all(0 <= user["score"] <= 6200 for user in users)
        history = api.get("/api/v1/leaderboards/chess/users/player-1/history", params={"limit": 1000}).json()["events"]
    # Every 50 ms if the machine is quick enough, and up and down.
    moves = [event["score"] for event in history][:-1]
    assert len(moves) > 10
    assert min(moves) < 0 < max(moves)
    assert max(map(abs, moves)) <= 32


def test_simulations_at_the_same_time_say_what_they_could_not_check(served: RunningServer) -> None:
    def simulate(_number: int) -> str:
        run = laurels(
            "simulate", "--players", "20", "--rate", "100", "--duration", "5",
            data_dir=served.data_dir, url=served.url, key=ADMIN_KEY,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    with ThreadPoolExecutor(2) as threads:
        assert any("others submitted" in told for told in threads.map(simulate, range(2)))


def test_second_simulation_says_that_it_uses_the_running_server(served: RunningServer) -> None:
    run = laurels(
        "simulate", "--players", "5", "--duration", "1", data_dir=served.data_dir, port="1", admin_key=ADMIN_KEY
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{served.url}. --port and LAURELS_PORT have no effect" in run.stderr


def test_simulation_starts_a_server_if_none_is_running(tmp_path: Path) -> None:
    run = laurels("simulate", "--players", "5", "--rate", "50", "--duration", "1", data_dir=tmp_path / "new", port="0")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "It adds up" in run.stdout
    check = laurels("verify", data_dir=tmp_path / "new")
    assert check.returncode == 0, check.stdout + check.stderr


def test_watch_shows_changes_and_reconnects_in_a_terminal(served: RunningServer) -> None:
    screen, shown = pty.openpty()
    command = [sys.executable, "-m", "laurels", "watch", "default", "--me", "bob", "--limit", "5"]
    settings = environment(served.data_dir, url=served.url) | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with served.client() as api:
        for user, score in (("ada", 30), ("bob", 20), ("[bold]cy", 10)):
            assert api.put(f"/api/v1/leaderboards/default/users/{user}", json={"score": score}).status_code == 200
        watching = subprocess.Popen(command, stdin=shown, stdout=shown, stderr=shown, env=settings, close_fds=True)
        try:
            seen = _until(screen, "[bold]cy")
            assert "● live" in seen
            assert "resets in" in seen
            api.put("/api/v1/leaderboards/default/users/bob", json={"score": 50})
            _until(screen, "▲1")
            served.kill()
            _until(screen, "reconnecting…")
            served.start()
            _until(screen, "● live")
        finally:
            watching.terminate()
            watching.wait(10)
            os.close(screen)
            os.close(shown)


def test_watch_with_json_prints_one_view_per_line(served: RunningServer) -> None:
    command = [sys.executable, "-m", "laurels", "watch", "--json", "--me", "bob"]
    settings = environment(served.data_dir, url=served.url)
    with served.client() as api, subprocess.Popen(command, stdout=subprocess.PIPE, env=settings, text=True) as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        assert (first["board"]["name"], first["users"], first["around"]) == ("Leaderboard", [], [])
        api.put("/api/v1/leaderboards/default/users/bob", json={"score": 5})
        while not (told := json.loads(watching.stdout.readline()))["around"]:
            pass
        assert [(user["userId"], user["rank"], user["score"]) for user in told["around"]] == [("bob", 1, 5)]
        watching.terminate()
    missing = laurels("watch", "nowhere", "--json", data_dir=served.data_dir, url=served.url)
    assert (missing.returncode, "no public board 'nowhere'" in missing.stderr) == (4, True)


def test_admin_key_of_a_data_folder_is_not_sent_to_other_servers(served: RunningServer, tmp_path: Path) -> None:
    """The key is not sent to another server, so only that server's public boards can be read."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "admin.key").write_text("a-key-that-nobody-else-may-see")
    top = laurels("top", "--json", data_dir=folder, url=served.url)
    assert (top.returncode, json.loads(top.stdout)) == (0, [])
    pods = laurels("pods", "list", data_dir=folder, url=served.url)
    assert (pods.returncode, "with --key or LAURELS_KEY" in pods.stderr) == (4, True)


def _until(screen: int, text: str) -> str:
    """Return the output of the terminal up to a text, without control sequences."""
    sent, seen = b"", ""
    end = time.monotonic() + 30
    while text not in seen:
        assert time.monotonic() < end, seen[-2000:]
        sent += os.read(screen, 65536)
        # Decode everything again, because a character or a sequence may arrive in two parts.
        seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", sent.decode("utf-8", "replace"))
    return seen


@pytest.mark.parametrize(
    ("terminal", "locale", "live"),
    [("dumb", "C.UTF-8", "● live"), ("xterm", "C", "live"), ("dumb", "C", "live")],
)
def test_watch_works_on_terminals_without_colors_or_utf8(
    served: RunningServer, terminal: str, locale: str, live: str
) -> None:
    screen, shown = pty.openpty()
    plain = {"TERM": terminal, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "100"}
    settings = environment(served.data_dir, url=served.url) | plain
    with served.client() as api:
        for user, score in (("ada", 30), ("zoë", 20)):
            assert api.put(f"/api/v1/leaderboards/default/users/{user}", json={"score": score}).status_code == 200
        command = [sys.executable, "-m", "laurels", "watch"]
        watching = subprocess.Popen(command, stdin=shown, stdout=shown, stderr=shown, env=settings, close_fds=True)
        try:
            seen = _until(screen, "zoë" if locale == "C.UTF-8" else "zo?")
            assert live in seen
            api.put("/api/v1/leaderboards/default/users/ada", json={"score": 4})
            seen = _until(screen, "34")
            assert "Traceback" not in seen
            if terminal == "dumb":
                assert "\x1b" not in seen
        finally:
            watching.terminate()
            watching.wait(10)
            os.close(screen)
            os.close(shown)
