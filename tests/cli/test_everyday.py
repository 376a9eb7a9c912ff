"""The commands for everyday work: boards, seasons, users, reviews, rewards, webhooks and the audit log."""

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laurels.client import Client
from support.running import ADMIN_KEY, RunningServer, environment, laurels

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("everyday")) as running:
        yield running


@pytest.fixture(scope="module")
def run(server: RunningServer) -> Run:
    def call(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return laurels(*arguments, data_dir=server.data_dir, url=server.url, key=ADMIN_KEY, **more)

    return call


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.url, ADMIN_KEY) as client:
        yield client


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_boards_are_created_changed_archived_and_deleted(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    file.write_text(json.dumps({"rule": "increment", "windows": ["weekly", "all"], "name": "From the file"}))
    arguments = ["boards", "create", "cli-arena", "name=Arena [bold]", "public=true", "--file", str(file), "--json"]
    [made] = answer(run(*arguments, "--pod", "default"))
    assert (made["UUID"], made["name"], made["rule"], made["public"]) == (
        "cli-arena",
        "Arena [bold]",
        "increment",
        True,
    )
    assert made["windows"] == ["weekly", "all"]

    listed = run("boards", "list")
    assert listed.returncode == 0
    # Not wrapped, and Rich's markup is only text.
    assert any(
        line.split()[:2] == ["cli-arena", "default"] and "Arena [bold]" in line and "weekly, all" in line
        for line in listed.stdout.splitlines()
    )
    assert answer(run("boards", "list", "--status", "ARCHIVED", "--json")) == []

    [changed] = answer(run("boards", "set", "cli-arena", "capacity=1000", 'metadata={"map": "x"}', "--json"))
    assert (changed["capacity"], changed["metadata"]) == (1000, {"map": "x"})
    shown = run("boards", "show", "cli-arena")
    assert "capacity" in shown.stdout
    assert "weekly, all" in shown.stdout
    assert answer(run("boards", "show", "cli-arena", "--json"))["capacity"] == 1000

    [archived] = answer(run("boards", "archive", "cli-arena", "--json"))
    assert archived["status"] == "ARCHIVED"

    refused = run("boards", "delete", "cli-arena")
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    assert answer(run("boards", "delete", "cli-arena", "--yes", "--json"))["UUID"] == "cli-arena"
    gone = run("boards", "show", "cli-arena")
    assert (gone.returncode, "There is no board 'cli-arena'" in gone.stderr) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["boards", "set", "default", "public"], "'public' must be NAME=VALUE"),
        (["boards", "set", "default", "publik=true"], "publik"),
        (["boards", "set", "default", "capacity=many"], "capacity"),
        (["boards", "create", "x", "--pod", "default", "--file", "-"], "standard input is not JSON"),
        (["boards", "create", "x"], "Name one with --pod"),
        (["users", "show", "ada"], "Name one with --pod"),
        (["users", "hide", "ada", "--pod", "default", "--board", "default"], "either --pod or --board"),
        (["users", "void", "default"], "Send either eventIds or match"),
        (["users", "erase", "ada", "--pod", "default"], "can't be undone. Add --yes"),
        (["seasons", "close", "default", "all"], "can't be undone? Add --yes"),
        (["seasons", "extend", "default", "monthly-2020-01", "soon"], "endTime"),
        (["webhooks", "set", "default", "ftp://x"], "url"),
    ],
)
def test_a_wrong_command_says_what_to_do(run: Run, arguments: list[str], told: str) -> None:
    done = run(*arguments, stdin="{")
    assert done.returncode == 2, done
    assert told.replace("undone?", "undone.") in done.stderr
    assert "Traceback" not in done.stderr


def test_seasons_are_listed_closed_extended_and_corrected_and_rewards_claimed(run: Run, client: Client) -> None:
    reward = {"name": "winner", "ranks": {"from": 1, "to": 1}, "prize": {"gold": 1}}
    fields = ['windows=["weekly"]', "rule=increment", "graceSeconds=0", f"rewards={json.dumps([reward])}"]
    answer(run("boards", "create", "cli-season", "--pod", "default", *fields, "--json"))
    client.submit("cli-season", "ada", 5, event_id="a1")
    client.submit("cli-season", "bob", 9, event_id="b1")
    listed = answer(run("seasons", "list", "cli-season", "--json"))
    current = next(each for each in listed if each["status"] == "OPEN")

    later = current["endTime"].replace("T00:00:00", "T06:00:00")
    [extended] = answer(run("seasons", "extend", "cli-season", current["period"], later, "--json"))
    assert extended["endTime"] == later

    closed = run("seasons", "close", "cli-season", current["period"], "--yes")
    assert closed.returncode == 0, closed.stderr
    for _ in range(100):
        listed = answer(run("seasons", "list", "cli-season", "--json"))
        if any(each["status"] == "FINAL" for each in listed):
            break
        time.sleep(0.1)
    final = next(each for each in listed if each["status"] == "FINAL")
    assert final["totalUsers"] == 2

    [granted] = answer(run("rewards", "list", "cli-season", final["period"], "--json"))
    assert (granted["userId"], granted["reward"], granted["prize"]) == ("bob", "winner", {"gold": 1})
    [own] = answer(run("rewards", "of", "bob", "--pod", "default", "--json"))
    assert own["rewardId"] == granted["rewardId"]
    assert "Claimed." in run("rewards", "claim", granted["rewardId"]).stderr
    assert answer(run("rewards", "claim", granted["rewardId"], "--json"))["alreadyClaimed"] is True

    answer(run("users", "void", "cli-season", "b1", "--yes", "--json"))
    [act] = answer(run("seasons", "refreeze", "cli-season", final["period"], "--reason", "cheat", "--json"))
    assert (act["kind"], act["reason"]) == ("refreeze", "cheat")


def test_users_are_shown_hidden_voided_restored_exported_and_erased(run: Run, client: Client, tmp_path: Path) -> None:
    answer(run("boards", "create", "cli-users", "--pod", "default", "rule=increment", "--json"))
    for event, match in (("e1", "m1"), ("e2", "m2")):
        client.submit("cli-users", "=eve", 5, event_id=event, metadata={"match": match})
    pod = ("--pod", "default")
    shown = answer(run("users", "show", "=eve", *pod, "--json"))
    assert (shown["userId"], shown["hidden"]) == ("=eve", [])
    assert [each["score"] for each in shown["scores"] if each["UUID"] == "cli-users"] == [10.0]

    answer(run("users", "hide", "=eve", "--board", "cli-users", "--shadow", "--reason", "odd", "--json"))
    assert "cli-users (shadow)" in run("users", "show", "=eve", *pod).stdout
    answer(run("users", "unhide", "=eve", "--board", "cli-users", "--json"))
    answer(run("users", "hide", "=eve", *pod, "--json"))
    assert answer(run("users", "show", "=eve", *pod, "--json"))["hidden"] == [{"UUID": None, "shadow": False}]
    answer(run("users", "unhide", "=eve", *pod, "--json"))

    tried = answer(run("users", "void", "cli-users", "--match", "match=m1", "--dry-run", "--json"))
    assert (tried["events"], tried["users"], tried["scores"][0]["scoreAfter"]) == (1, 1, 5.0)
    unsure = run("users", "void", "cli-users", "--match", "match=m1")
    assert (unsure.returncode, "Events to void: 1, of 1 players." in unsure.stderr) == (2, True)
    assert client.rank("cli-users", "=eve").score == 10
    [act] = answer(run("users", "void", "cli-users", "--match", "match=m1", "--yes", "--json"))
    assert client.rank("cli-users", "=eve").score == 5
    answer(run("users", "restore", act["actId"], *pod, "--json"))
    assert client.rank("cli-users", "=eve").score == 10
    acts = answer(run("users", "acts", *pod, "--board", "cli-users", "--json"))
    assert [each["kind"] for each in acts[:2]] == ["restore", "void"]

    file = tmp_path / "eve.ndjson"
    assert run("users", "export", "=eve", str(file), *pod).returncode == 0
    piped = run("users", "export", "=eve", *pod)
    assert {json.loads(line)["kind"] for line in piped.stdout.splitlines()} >= {"score", "event", "act"}
    assert file.read_text() == piped.stdout
    assert run("users", "export", "=eve", "--pod", "nosuch").returncode == 3

    answer(run("users", "erase", "=eve", *pod, "--yes", "--json"))
    assert client.top("cli-users").users == []


def test_a_moderator_decides_about_a_suspicious_score(run: Run, client: Client) -> None:
    rules = [{"name": "too-high", "scores": {"atLeast": 1000}}]
    answer(run("boards", "create", "cli-review", "--pod", "default", f"review={json.dumps(rules)}", "--json"))
    for user in ("ada", "bob"):
        client.submit("cli-review", user, 5000)
    waiting = answer(run("reviews", "list", "cli-review", "--status", "pending", "--json"))
    assert {each["userId"] for each in waiting} == {"ada", "bob"}
    ids = {each["userId"]: each["reviewId"] for each in waiting}
    answer(run("reviews", "accept", "cli-review", ids["ada"], "--json"))
    answer(run("reviews", "reject", "cli-review", ids["bob"], "--reason", "cheat", "--json"))
    assert [each.user_id for each in client.top("cli-review").users] == ["ada"]
    again = run("reviews", "accept", "cli-review", ids["bob"])
    assert again.returncode == 3


def test_webhooks_are_set_rotated_listed_and_deleted(run: Run) -> None:
    set_ = run("webhooks", "set", "default", "https://hooks.example/laurels")
    assert set_.returncode == 0, set_.stderr
    assert set_.stdout.startswith("whsec_")
    assert answer(run("webhooks", "set", "default", "https://hooks.example/laurels", "--json"))["secret"] is None
    rotated = run("webhooks", "rotate", "default")
    assert rotated.stdout.startswith("whsec_")
    assert rotated.stdout != set_.stdout
    [listed] = answer(run("webhooks", "list", "--json"))
    assert listed["url"] == "https://hooks.example/laurels"
    assert run("webhooks", "delete", "default").returncode == 2
    answer(run("webhooks", "delete", "default", "--yes", "--json"))
    assert answer(run("webhooks", "list", "--json")) == []


def test_the_audit_log_names_the_calls_of_these_commands(run: Run) -> None:
    answer(run("boards", "create", "cli-audit", "--pod", "default", "--json"))
    [entry] = answer(run("audit", "--board", "cli-audit", "--json"))
    assert (entry["route"], entry["status"]) == ("POST /api/v1/leaderboards", 201)
    assert answer(run("audit", "--board", "cli-audit", "--until", "2020-01-01T00:00:00Z", "--json")) == []
    assert "POST /api/v1/leaderboards" in run("audit", "--limit", "1000").stdout


def test_the_commands_work_on_a_folder_without_a_server(tmp_path: Path) -> None:
    assert laurels("migrate", data_dir=tmp_path).returncode == 0
    made = laurels("boards", "create", "alone", "--pod", "default", "--json", data_dir=tmp_path)
    assert answer(made)[0]["UUID"] == "alone"
    assert "alone" in laurels("boards", "list", data_dir=tmp_path).stdout


def test_a_question_on_a_terminal_can_be_answered_with_no(server: RunningServer, run: Run) -> None:
    answer(run("boards", "create", "cli-kept", "--pod", "default", "--json"))
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "laurels", "boards", "delete", "cli-kept"],
        env=environment(server.data_dir, url=server.url, key=ADMIN_KEY),
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.write(master, b"n\n")
    _, told = process.communicate(timeout=60)
    os.close(master)
    os.close(slave)
    assert process.returncode == 1
    assert b"Delete board cli-kept" in told
    assert run("boards", "show", "cli-kept").returncode == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("laurels boards show defa", ["default"]),
        ("laurels seasons list def", ["default"]),
        ("laurels keys list def", ["default"]),
        ("laurels seasons close default al", ["all"]),
        ("laurels seas", ["seasons"]),
        ("laurels boards show nosuch", []),
    ],
)
def test_names_complete_in_the_shell(server: RunningServer, line: str, expected: list[str]) -> None:
    words = line.split()
    asked = {"_LAURELS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [str(Path(sys.executable).parent / "laurels")],
        env=environment(server.data_dir, url=server.url, key=ADMIN_KEY) | asked,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == expected, done.stderr


def test_completion_is_silent_without_a_server(tmp_path: Path) -> None:
    asked = {"_LAURELS_COMPLETE": "complete_bash", "COMP_WORDS": "laurels boards show d", "COMP_CWORD": "3"}
    done = subprocess.run(
        [str(Path(sys.executable).parent / "laurels")],
        env=environment(tmp_path, url="http://127.0.0.1:9") | asked,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
