"""Fixtures for everybody: a running server that tests share, each with boards of its own."""

import os
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from support.calls import NewBoard
from support.running import RunningServer

# No deadlines: a loaded machine is not a fault. A failure prints how to repeat it. In CI the examples are the same each
# time, as in Hypothesis' own profile for it: what is found there is due to the change.
settings.register_profile(
    "laurels",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("laurels")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("shared-server")) as running:
        yield running


@pytest.fixture(scope="session")
def api(server: RunningServer) -> Iterator[httpx.Client]:
    """A client with the admin key."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def new_board(api: httpx.Client) -> NewBoard:
    """Makes a board in the default pod; gives its UUID."""

    def create(**fields: Any) -> str:
        body = {"UUID": f"board-{uuid.uuid4()}", "podId": "default", "name": "A board"} | fields
        response = api.post("/api/v1/leaderboards", json=body)
        assert response.status_code == 201, response.text
        return str(response.json()["UUID"])

    return create
