"""The README's commands, run as a newcomer runs them: in a fresh copy of the project, with nothing set up."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.running import ADMIN_KEY, PLAIN, RunningServer, free_port
from support.stores import PostgresServer, RedisServer, need, temporary_folder
from support.waiting import until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SERVE, *CALLS, DEVELOP = BLOCKS


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the files that git tracks or would add, and no others: no .venv, no data."""
    folder = tmp_path_factory.mktemp("newcomer") / "laurels"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def served(clone: Path) -> Iterator[str]:
    """Run the README's first command, and yield the port that replaces 8080."""
    assert SERVE == "make serve\n"
    port = str(free_port())
    process = subprocess.Popen(
        ["sh", "-c", SERVE], cwd=clone, env=newcomer() | {"LAURELS_PORT": port}, start_new_session=True
    )
    try:
        while True:
            assert process.poll() is None, f"make serve exited with {process.returncode}"
            try:
                if httpx.get(f"http://127.0.0.1:{port}/readyz", verify=PLAIN).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def newcomer() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LAURELS_", "MAKE", "MFLAGS", "VIRTUAL_ENV", "PYTEST"))
    }


def run(block: str, clone: Path, port: str) -> list[str]:
    """Run the commands of a block, and return the lines of their output."""
    script = "set -e\n" + block.replace("curl ", "curl --silent --show-error --fail ").replace(":8080", f":{port}")
    done = subprocess.run(
        ["sh", "-c", script], cwd=clone, env=newcomer(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(600)
def test_readme_commands_lead_to_a_first_rank(clone: Path, served: str) -> None:
    first, reads, _, create, _, _ = CALLS
    (answer,) = run(first, clone, served)
    (shown,) = re.findall(r"^```json\n(.*?)\n```", README, re.MULTILINE | re.DOTALL)
    told, promised = json.loads(answer), json.loads(shown)
    # The response equals the README, except for the time and the month.
    promised["updatedAt"] = told["updatedAt"]
    promised["periods"][0]["period"] = f"monthly-{told['updatedAt'][:7]}"
    assert told == promised

    # curl prints no newline: three responses are on one line, followed by the table of the CLI.
    output = run(reads, clone, served)
    decoder, rest, answers = json.JSONDecoder(), "\n".join(output), []
    while rest.startswith("{"):
        answer_read, end = decoder.raw_decode(rest)
        answers.append(answer_read)
        rest = rest[end:]
    top, rank, around = answers
    assert [user["userId"] for user in top["users"]] == ["ada"]
    assert (rank["rank"], rank["score"], rank["percentile"]) == (1, 120, 100)
    assert around["users"] == top["users"]
    assert re.search(r"1\s+ada\s+120", rest)

    (made,) = run(create, clone, served)
    assert json.loads(made)["status"] == "ACTIVE"
    assert run(first, clone, served)[0].find('"duplicate":true') > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["quickstart.md", "concepts.md"])
def test_commands_of_quickstart_and_concepts_work(page: str, clone: Path, served: str) -> None:
    """Run the commands of a page in one shell, because later blocks use the variables of earlier ones."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    commands = [block for block in blocks if block != SERVE]
    assert commands
    # README and quickstart create the same board.
    output = run("\n".join(commands).replace("monza", "monza-2"), clone, served)
    assert output


@pytest.mark.timeout(600)
def test_make_demo_runs_and_adds_up(clone: Path, served: str) -> None:
    """`make demo` runs next to another server, on another port.

    Ctrl-C ends it, and it reports that the scores add up.
    """
    assert CALLS[2] == "make demo\n"
    del served  # `make serve` has installed everything
    port = str(free_port())
    environment = newcomer() | {"LAURELS_PORT": port}
    with subprocess.Popen(
        ["sh", "-c", CALLS[2]], cwd=clone, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"Watch it: http://127.0.0.1:{port}/boards/arena?me=player-1\n"
            page = httpx.get(f"http://127.0.0.1:{port}/boards/arena?me=player-1")
            assert "<script" in page.text
            until(lambda: scored(port) > 5, "players who score")
            os.killpg(process.pid, signal.SIGINT)
            assert "It adds up" in process.stdout.read()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def scored(port: str) -> int:
    return len(httpx.get(f"http://127.0.0.1:{port}/api/v1/leaderboards/arena/top", verify=PLAIN).json()["users"])


PYTHON = [
    (document, block)
    for document in ("README.md", "docs/guides/python.md")
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text("utf-8"), re.MULTILINE | re.DOTALL)
]


def test_python_examples_in_the_docs_work(tmp_path: Path) -> None:
    """Run all examples, unchanged except for the server's URL; they run in order, against one server."""
    assert len(PYTHON) > 4
    folder = tmp_path / "laurels-data"
    folder.mkdir()
    (folder / "admin.key").write_text(ADMIN_KEY)
    with RunningServer(folder) as server:
        key = ""
        for document, block in PYTHON:
            key = "\n".join(re.findall(r"^(?:from pathlib.*|KEY = .*)$", block, re.MULTILINE)) or key
            script = f"{key}\n{block}".replace("http://127.0.0.1:8080", server.url)
            command = [sys.executable, "-c", script]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, f"{document}: {done.stderr}"
            assert done.stdout, document


@pytest.mark.timeout(600)
def test_readme_commands_move_data_to_shared_stores(clone: Path, served: str) -> None:
    """The README's last commands, with private stores instead of those at the default ports."""
    first, *_, scale, move = CALLS
    run(first, clone, served)
    port = str(free_port())
    with (
        temporary_folder() as folder,
        PostgresServer(folder / "postgres") as postgres,
        RedisServer(folder / "redis") as redis,
    ):
        postgres.sql("CREATE USER laurels PASSWORD 'secret'")
        postgres.sql("CREATE DATABASE laurels OWNER laurels")
        block = scale.replace(":5432/", f":{postgres.port}/").replace(":6379", f":{redis.port}").replace("8081", port)
        process = subprocess.Popen(["sh", "-c", block], cwd=clone, env=newcomer(), start_new_session=True)
        try:
            until(lambda: answers(port), "the servers of the README")
            run(move.replace("8081", port), clone, served)
            top = httpx.get(f"http://127.0.0.1:{port}/api/v1/leaderboards/default/top", verify=PLAIN).json()
            assert [(user["userId"], user["score"]) for user in top["users"]] == [("ada", 120)]
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def answers(port: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", verify=PLAIN).status_code == 200
    except httpx.TransportError:
        return False


def test_readme_developer_commands_include_those_of_ci() -> None:
    commands = DEVELOP.splitlines()
    assert commands == ["make test", "make test-fast", "make check", "make bench", "make faults"]
    ci = (ROOT / ".ci/run").read_text("utf-8").splitlines()
    assert {"make test", "make check"} <= set(ci)


def test_benchmark_of_shared_stores_runs() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "\tPYTHONPATH=tests .venv/bin/python bench/shared.py\n" in makefile
    need("postgres")
    need("redis-server")
    command = [sys.executable, "bench/shared.py", "--users", "2000", "--seconds", "0.2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=True)
    assert "durability   PostgreSQL with fsync" in done.stdout
    for line in ("rebuild, users/s", "memory a user in Redis", "updates/s, 1000 a call", "rank of a random user /s"):
        assert re.search(rf"{re.escape(line)}.*\d", done.stdout), line


def test_benchmark_of_freezing_a_period_runs() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "\tPYTHONPATH=tests .venv/bin/python bench/freeze.py\n" in makefile
    need("postgres")
    need("redis-server")
    command = [sys.executable, "bench/freeze.py", "--users", "2000", "--seconds", "0.5"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=True)
    assert "durability   SQLite with synchronous=FULL, PostgreSQL with fsync" in done.stdout
    for line in (
        "freeze of 2,000 users",
        "baseline: one bare statement",
        "memory of the server",
        "PUT score",
        "final ranks",
    ):
        assert len(re.findall(rf"{re.escape(line)}.*\d", done.stdout)) == 2, line


def test_benchmark_of_live_fan_out_runs() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "\tPYTHONPATH=tests .venv/bin/python bench/live.py\n" in makefile
    command = [sys.executable, "bench/live.py", "--subscribers", "20", "--stuck", "20", "--seconds", "0.5"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=True)
    assert "SQLite, synchronous=FULL: a write is on the disk before its answer" in done.stdout
    for line in ("laurels ", "bare broadcast ", "without ", "stuck ", "a frame of"):
        assert re.search(rf"  {re.escape(line)}.*\d", done.stdout), line


def test_benchmark_of_voiding_events_runs() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "\tPYTHONPATH=tests .venv/bin/python bench/void.py\n" in makefile
    need("postgres")
    need("redis-server")
    command = [sys.executable, "bench/void.py", "--users", "2000", "--events", "100", "--seconds", "0.5"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=True)
    assert "durability   SQLite with synchronous=FULL, PostgreSQL with fsync" in done.stdout
    for line in ("100 events of a source voided", "baseline: bare statements", "PUT score"):
        assert len(re.findall(rf"{re.escape(line)}.*\d", done.stdout)) == 2, line


def test_benchmark_of_embedded_mode_runs() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "\t.venv/bin/python bench/embedded.py\n" in makefile
    command = [sys.executable, "bench/embedded.py", "--users", "2000", "--seconds", "0.2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True)
    assert "durability   WAL, synchronous=FULL" in done.stdout
    for line in (
        "start-up",
        "memory a user",
        "top 10 /s",
        "rank of a random user /s",
        "updates/s, 200 a call",
    ):
        assert re.search(rf"{re.escape(line)}.*\d", done.stdout), line


def test_wheel_is_complete_and_works_when_installed(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=200)
    (wheel,) = tmp_path.glob("laurels-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    package = ROOT / "src"
    expected = {
        str(path.relative_to(package))
        for path in (package / "laurels").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= set(names)
    installed = tmp_path / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(installed), str(wheel)], check=True, timeout=200)
    environment = newcomer() | {"PYTHONPATH": str(installed), "LAURELS_DATA_DIR": str(tmp_path / "data")}
    for arguments in (["--version"], ["migrate"], ["verify"]):
        command = [sys.executable, "-m", "laurels", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
    origin = [sys.executable, "-c", "import laurels; print(laurels.__file__)"]
    found = subprocess.run(origin, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(installed))
