"""Options and fixtures for all tests: one running server that tests share; each test creates its own boards."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, settings

from support.calls import NewBoard
from support.effort import VARIABLE as FAST
from support.running import RunningServer

# No deadlines, because a slow machine is not a failure. A failure prints how to reproduce it. In CI every run has the
# same examples, as in Hypothesis' own CI profile, so that a failure is caused by the change.
settings.register_profile(
    "laurels",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("laurels")


# As in the product: structlog's default renders a traceback with Rich, which takes a third of a second for each.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=True),
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

# Everything that a run writes, also what killed processes leave behind, is in one folder.
SCRATCH = "LAURELS_TEST_SCRATCH"
# `--fast` runs these folders, and of the contract suites those of the embedded adapters.
FAST_FOLDERS = {"unit", "http", "contract"}
EMBEDDED = ("sqlite", "memory")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that need no other servers, with fewer examples")


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of test processes: two per core, because many tests wait for servers."""
    return 2 * (os.cpu_count() or 1)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast"):
        os.environ[FAST] = "1"
    if hasattr(config, "workerinput") or config.option.basetemp is not None:
        return
    scratch = Path(tempfile.mkdtemp(prefix="laurels-tests-"))
    scratch.chmod(0o755)
    os.environ[SCRATCH] = os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = None
    config.option.basetemp = str(scratch / "pytest")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    scratch = os.environ.get(SCRATCH)
    if hasattr(config, "workerinput") or scratch is None:
        return
    if config.stash.get(_FAILED, False):
        print(f"The files of this run are in {scratch}")
    else:
        shutil.rmtree(scratch, ignore_errors=True)


_FAILED = pytest.StashKey[bool]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    failed = [report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, [])]
    config.stash[_FAILED] = bool(failed)
    if failed:
        terminalreporter.section("repeat a failure alone")
        for nodeid in dict.fromkeys(failed):
            terminalreporter.write_line(f".venv/bin/pytest '{nodeid}'")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--fast"):
        return
    chosen = [item for item in items if _is_fast(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _is_fast(item: pytest.Item) -> bool:
    folder = item.path.parent.name
    if folder not in FAST_FOLDERS or item.path.name == "test_schemathesis.py":
        return False
    return folder != "contract" or any(name in item.nodeid.lower() for name in EMBEDDED)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    # A slow machine must not fail tests: other tests show that calls are refused under too much load.
    with RunningServer(tmp_path_factory.mktemp("shared-server"), target_delay_ms="0") as running:
        yield running


@pytest.fixture(scope="session")
def api(server: RunningServer) -> Iterator[httpx.Client]:
    """Return a client with the admin key."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def new_board(api: httpx.Client) -> NewBoard:
    """Return a function that creates a board in the default pod and returns its UUID."""

    def create(**fields: Any) -> str:
        body = {"UUID": f"board-{uuid.uuid4()}", "podId": "default", "name": "A board"} | fields
        response = api.post("/api/v1/leaderboards", json=body)
        assert response.status_code == 201, response.text
        return str(response.json()["UUID"])

    return create
