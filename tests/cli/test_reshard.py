"""`laurels boards reshard` on PostgreSQL and Redis."""

import json
import threading
import time
import uuid
from collections.abc import Iterator

import httpx
import pytest

from support.running import ADMIN_KEY, RunningServer, laurels
from support.stores import shared_postgres, shared_redis

BOARD = "grows"
PATH = f"/api/v1/leaderboards/{BOARD}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    ledger = shared_postgres().new_database(f"reshard_{uuid.uuid4().hex[:8]}")
    with RunningServer(tmp_path_factory.mktemp("reshard"), ledger=ledger, index=shared_redis().url) as running:
        with running.client() as api:
            body = {"UUID": BOARD, "podId": "default", "name": "Grows"}
            assert api.post("/api/v1/leaderboards", json=body).status_code == 201
            scores = [{"userId": f"user-{number}", "score": number} for number in range(500)]
            assert api.post(f"{PATH}/scores", json={"scores": scores}).status_code == 200
        yield running


def reshard(server: RunningServer, *arguments: str) -> tuple[int, str, str]:
    done = laurels("boards", "reshard", BOARD, *arguments, data_dir=server.data_dir, url=server.url, key=ADMIN_KEY)
    return done.returncode, done.stdout, done.stderr


def test_command_waits_until_reads_use_the_new_parts(server: RunningServer) -> None:
    assert reshard(server, "4") == (0, f"Board {BOARD} has 4 shards.\n", "")
    with server.client() as api:
        assert api.get(f"{PATH}/top").json()["totalUsers"] == 500
        assert api.get(f"{PATH}/users/user-7/rank").json()["rank"] == 493
    code, told, _ = reshard(server, "4", "--json")
    assert (code, json.loads(told)["shards"]) == (0, 4)


def test_command_fails_if_the_change_is_cancelled_and_refuses_nonsense(server: RunningServer) -> None:
    with server.client() as api:
        wait_for_the_end(api)
        shards = api.get(PATH).json()["shards"]

        def cancel() -> None:
            while (api.get(PATH).json()["resharding"] or {}).get("state") != "building":
                time.sleep(0.05)
            assert api.patch(PATH, json={"shards": shards}).status_code == 200

        cancelling = threading.Thread(target=cancel)
        cancelling.start()
        code, _, told = reshard(server, "9")
        cancelling.join()
        assert (code, "cancelled" in told) == (1, True), told
        wait_for_the_end(api)
        code, told, _ = reshard(server, "3", "--no-wait")
        assert (code, told) == (0, f"Board {BOARD} has {shards} shards; 3 are being built.\n")
        code, _, told = reshard(server, "5", "--no-wait")
        assert (code != 0, "being built" in told) == (True, True), told
    assert reshard(server, "2000")[0] == 2


def wait_for_the_end(api: httpx.Client) -> None:
    while api.get(PATH).json()["resharding"] is not None:
        time.sleep(0.2)
