"""Fixtures for HTTP tests that run on both stores: SQLite with memory, and PostgreSQL with Redis.

A test module imports them; they replace the shared server of tests/conftest.py.
"""

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.calls import NewBoard
from support.running import RunningServer
from support.stores import shared_postgres, shared_redis


@pytest.fixture(scope="module", params=["embedded", "shared"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    stores = {"target_delay_ms": "0"}
    if request.param == "shared":
        name = f"both_{uuid.uuid4().hex[:12]}"
        stores |= {"ledger": shared_postgres().new_database(name), "index": shared_redis().url}
    with RunningServer(tmp_path_factory.mktemp(f"both-{request.param}"), **stores) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def new_board(api: httpx.Client) -> NewBoard:
    def create(**fields: Any) -> str:
        body = {"UUID": f"board-{uuid.uuid4()}", "podId": "default", "name": "A board"} | fields
        response = api.post("/api/v1/leaderboards", json=body)
        assert response.status_code == 201, response.text
        return str(response.json()["UUID"])

    return create
