"""Several servers on the same stores: exact under contention, consistent, and available when a store is down."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from support.model import ModelBoard
from support.running import ADMIN_KEY, RunningServer, free_port, laurels
from support.shared import Deployment, deployed
from support.waiting import until_equal

SERVERS = 4
EVENTS = 3000
USERS = [f"user-{number}" for number in range(6)]
BOARDS = {"sums": "increment", "bests": "best", "latests": "latest"}


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with deployed(SERVERS) as running:
        yield running


@pytest.fixture
def clients(deployment: Deployment) -> Iterator[list[httpx.Client]]:
    opened = [server.client() for server in deployment.servers]
    yield opened
    for client in opened:
        client.close()


def create(client: httpx.Client, uuid: str, **fields: Any) -> None:
    body = {"UUID": uuid, "podId": "default", "name": uuid} | fields
    until_equal(lambda: client.post("/api/v1/leaderboards", json=body).status_code, 201, 10)


def are_told(servers: list[httpx.Client], read: Callable[[httpx.Client], object], wanted: object) -> None:
    """Wait until each server returns the wanted value, at most one second per server."""
    for client in servers:
        until_equal(partial(read, client), wanted, 1)


def scores_of(client: httpx.Client, uuid: str) -> dict[str, float]:
    users = client.get(f"/api/v1/leaderboards/{uuid}/top").json()["users"]
    return {user["userId"]: user["score"] for user in users}


def verify(server: RunningServer) -> dict[str, Any]:
    check = laurels("verify", "--json", data_dir=server.data_dir, url=server.url, key=ADMIN_KEY)
    assert check.returncode == 0, check.stdout + check.stderr
    last: dict[str, Any] = json.loads(check.stdout.splitlines()[-1])
    return last


def test_thousands_of_concurrent_writes_to_a_few_users_are_exact(
    deployment: Deployment, clients: list[httpx.Client]
) -> None:
    seed = random.randrange(10**6)
    print(f"seed: {seed}")
    rng = random.Random(seed)
    for uuid, rule in BOARDS.items():
        create(clients[0], uuid, rule=rule, ties="shared" if rule == "increment" else "earliest")
    are_told(clients, lambda client: client.get("/api/v1/leaderboards/latests").status_code, 200)
    models = {uuid: ModelBoard(rule, "desc", "earliest") for uuid, rule in BOARDS.items()}
    now = 1_700_000_000
    calls = []
    for number in range(EVENTS):
        uuid = rng.choice(list(BOARDS))
        user, score, at = rng.choice(USERS), rng.choice([0.1, 0.2, 1, 7, -3]), now + rng.randrange(1000)
        models[uuid].submit(f"e{number}", user, score, at * 1_000_000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        calls.append((uuid, user, {"score": score, "eventId": f"e{number}", "timestamp": stamp}))
    # Some events arrive twice, possibly at different servers.
    calls += rng.choices(calls, k=EVENTS // 10)
    rng.shuffle(calls)

    def send(call: tuple[str, str, dict[str, Any]]) -> int:
        uuid, user, body = call
        return rng.choice(clients).put(f"/api/v1/leaderboards/{uuid}/users/{user}", json=body).status_code

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(send, calls)) == {200}
    for uuid, model in models.items():
        for client in clients:
            expected = {player.user: player.score for player in model.everybody()}
            until_equal(partial(scores_of, client, uuid), expected)
    assert verify(deployment.servers[1])["differences"] == 0


def test_board_is_split_by_command_while_all_servers_write_to_it(
    deployment: Deployment, clients: list[httpx.Client]
) -> None:
    create(clients[0], "growing", rule="increment")
    are_told(clients, lambda client: client.get("/api/v1/leaderboards/growing").status_code, 200)
    stopped = threading.Event()
    totals = dict.fromkeys(USERS, 0)

    def write(client: httpx.Client, user: str) -> None:
        while not stopped.is_set():
            answer = client.put(f"/api/v1/leaderboards/growing/users/{user}", json={"score": 1})
            assert answer.status_code == 200, answer.text
            # A board that is not split returns ranks.
            assert (answer.json()["rankState"] == "not_requested") or answer.json()["rank"] >= 1
            totals[user] += 1

    server = deployment.servers[2]
    with ThreadPoolExecutor(len(USERS)) as pool:
        writing = [pool.submit(write, clients[number % SERVERS], user) for number, user in enumerate(USERS)]
        try:
            split = laurels(
                "boards", "reshard", "growing", "4", data_dir=server.data_dir, url=server.url, key=ADMIN_KEY
            )
            assert split.returncode == 0, split.stdout + split.stderr
            assert split.stdout == "Board growing has 4 shards.\n"
        finally:
            stopped.set()
        for each in writing:
            each.result()
    for client in clients:
        until_equal(partial(scores_of, client, "growing"), dict(totals))
        asked = client.put("/api/v1/leaderboards/growing/users/user-0?rank=true", json={"score": 0})
        ahead = sum(total > totals["user-0"] for total in totals.values())
        assert asked.json()["rankState"] == "ranked"
        assert ahead < asked.json()["rank"] <= ahead + list(totals.values()).count(totals["user-0"])
    until_equal(lambda: clients[0].get("/api/v1/leaderboards/growing").json()["resharding"], None)
    assert verify(server)["differences"] == 0


def test_change_takes_effect_on_every_server_within_a_second(clients: list[httpx.Client]) -> None:
    first, *others = clients
    create(first, "changing", rule="best")
    are_told(others, lambda client: client.get("/api/v1/leaderboards/changing").status_code, 200)
    scores = [{"userId": f"u{number}", "score": number} for number in range(40)]
    others[0].post("/api/v1/leaderboards/changing/scores", json={"scores": scores})
    others[1].patch("/api/v1/leaderboards/changing", json={"capacity": 3})
    are_told(clients, lambda client: client.get("/api/v1/leaderboards/changing").json()["capacity"], 3)
    are_told(clients, lambda client: client.get("/api/v1/leaderboards/changing/top").json()["totalUsers"], 3)
    key = first.post("/api/v1/pods/default/keys", json={"role": "server"}).json()

    def answers(client: httpx.Client) -> int:
        headers = {"Authorization": f"Bearer {key['key']}"}
        return httpx.get(f"{client.base_url}/api/v1/users/u1/scores", headers=headers).status_code

    are_told(others, answers, 200)
    others[0].delete(f"/api/v1/pods/default/keys/{key['keyId']}")
    are_told(clients, answers, 401)


def test_new_board_and_key_are_usable_at_once_on_every_server(clients: list[httpx.Client]) -> None:
    """A script that sets up a game sends each call to another server."""
    first, *others = clients
    for number in range(10):
        uuid = f"at-once-{number}"
        body = {"UUID": uuid, "podId": "default", "name": uuid, "public": True}
        assert first.post("/api/v1/leaderboards", json=body).status_code == 201
        key = first.post("/api/v1/pods/default/keys", json={"role": "server"}).json()
        path = f"/api/v1/leaderboards/{uuid}"
        answers = [
            httpx.put(
                f"{client.base_url}{path}/users/ada", json={"score": 1}, headers={"X-API-Key": key["key"]}, timeout=20
            )
            for client in others
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        deleted = others[number % 3].delete(f"/api/v1/pods/default/keys/{key['keyId']}")
        assert deleted.status_code == 200
    # A new pod with its keys, and a token of one of its players, each on a server that has not heard of them.
    for number in range(3):
        pod, origin = f"at-once-{number}", f"https://game-{number}.example"
        assert first.post("/api/v1/pods", json={"podId": pod, "name": pod}).status_code == 201
        made = [first.post(f"/api/v1/pods/{pod}/keys", json={"role": role}).json() for role in ("server", "client")]
        body = {"UUID": f"of-{pod}", "podId": pod, "name": pod}
        assert first.post("/api/v1/leaderboards", json=body).status_code == 201
        path = f"/api/v1/leaderboards/of-{pod}/top"
        token = httpx.post(
            f"{others[0].base_url}/api/v1/pods/{pod}/tokens",
            json={"userId": "ada"},
            headers={"X-API-Key": made[0]["key"]},
            timeout=20,
        )
        assert token.status_code == 201, token.text
        keys = [token.json()["token"], made[1]["key"]]
        answers = [httpx.get(f"{others[1].base_url}{path}", headers={"X-API-Key": key}, timeout=20) for key in keys]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert first.patch(f"/api/v1/pods/{pod}", json={"allowedOrigins": [origin]}).status_code == 200
        asked = {"Origin": origin, "Access-Control-Request-Method": "GET"}
        assert httpx.options(f"{others[2].base_url}{path}", headers=asked, timeout=20).status_code == 204
    # Without a key, on a server that has not heard of the board.
    body = {"UUID": "at-once-public", "podId": "default", "name": "Public", "public": True}
    assert first.post("/api/v1/leaderboards", json=body).status_code == 201
    assert httpx.get(f"{others[0].base_url}/api/v1/leaderboards/at-once-public/top").status_code == 200


def test_change_reaches_all_servers_without_the_feed(deployment: Deployment, clients: list[httpx.Client]) -> None:
    """A lost hint delays a change by at most half a second."""
    stop = threading.Event()

    def cut() -> None:
        while not stop.is_set():
            deployment.redis.call("CLIENT", "KILL", "TYPE", "pubsub")  # type: ignore[union-attr]
            time.sleep(0.01)

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        create(clients[2], "unheard")
        are_told(clients, lambda client: client.get("/api/v1/leaderboards/unheard").status_code, 200)
    finally:
        stop.set()
        cutting.join()


def test_reads_without_redis_use_the_ledger_and_are_marked_degraded(
    deployment: Deployment, clients: list[httpx.Client]
) -> None:
    client = clients[0]
    board = "/api/v1/leaderboards/orphaned"
    create(client, "orphaned", rule="increment", ties="shared", capacity=8)
    scores = [{"userId": f"u{number:02}", "score": number // 2, "eventId": f"o{number}"} for number in range(20)]
    client.post(board + "/scores", json={"scores": scores})
    paths = [
        "/top",
        "/top?limit=3&offset=2",
        "/top?ranking=dense",
        "/top?ranking=ordinal",
        "/users/u15/rank",
        "/users/u15/around?above=2&below=3",
        "/distribution?buckets=3",
        "/users/u01/rank",
        "/users/nobody/rank",
    ]

    percentiles: list[float] = []

    def read() -> list[tuple[int, Any]]:
        answers = [client.get(board + path) for path in paths]
        answers.append(client.post(board + "/ranks", json={"userIds": ["u15", "u19", "u01", "x"]}))
        answers.append(client.get("/api/v1/users/u15/scores?podId=default"))
        found = [
            (answer.status_code, {name: each for name, each in answer.json().items() if name != "retrievedAt"})
            for answer in answers
        ]
        # Outside the capacity, the percentile counts all users, also the one who scores while Redis is away.
        percentiles.append(found[7][1].pop("percentile"))
        return found

    client.get(board + "/top?ranking=dense")
    until_equal(lambda: "Laurels-Degraded" in client.get(board + "/top?ranking=dense").headers, False, 5)
    from_index = read()
    deployment.redis.kill()
    try:
        written = client.put(board + "/users/late", json={"score": 0.5, "eventId": "late"}).json()
        assert (written["score"], written["rank"], written["rankState"]) == (0.5, None, "catching_up")
        assert read() == from_index
        assert percentiles == [100 * 2 / 20, 100 * 2 / 21]
        degraded = client.get(board + "/top")
        assert degraded.headers["Laurels-Degraded"] == "read-from-ledger"
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["status"], ready.json()["dependencies"]["ledger"]) == (
            200,
            "degraded",
            "ok",
        )
        metrics = client.get("/metrics").text
        (reads,) = [line for line in metrics.splitlines() if line.startswith("laurels_degraded_reads_total ")]
        assert float(reads.split()[1]) > 0
    finally:
        deployment.redis.start()
    until_equal(lambda: "Laurels-Degraded" in client.get(board + "/top").headers, False, 10)
    until_equal(lambda: [answer[0] for answer in read()] == [answer[0] for answer in from_index], True, 10)
    assert read()[:2] == from_index[:2]
    for server in deployment.servers:
        assert verify(server)["differences"] == 0


def test_reads_work_and_writes_are_refused_without_postgres(
    deployment: Deployment, clients: list[httpx.Client]
) -> None:
    client = clients[3]
    create(client, "readonly", rule="best")
    board = "/api/v1/leaderboards/readonly"
    assert client.put(board + "/users/ada", json={"score": 5, "eventId": "r1"}).status_code == 200
    create(client, "over", rule="best")
    assert client.patch("/api/v1/leaderboards/over", json={"status": "ENDED"}).status_code == 200
    deployment.postgres.kill()
    try:
        # A write on a connection that was still open may have been stored, and its error code says so.
        first = client.put(board + "/users/ada", json={"score": 6, "eventId": "r2"})
        assert (first.status_code, first.json()["code"] in {"ledger_unavailable", "write_timeout"}) == (503, True)
        refused = client.put(board + "/users/ada", json={"score": 6, "eventId": "r2"})
        assert (refused.status_code, refused.json()["code"]) == (503, "ledger_unavailable")
        assert refused.headers["Retry-After"] == "1"
        for item in ({"userId": "bob", "score": 6}, {"userId": "bob", "score": 6, "eventId": "r3"}):
            refused = client.post(board + "/scores", json={"scores": [item]})
            assert (refused.status_code, refused.json()["code"]) == (503, "ledger_unavailable")
        answer = client.get(board + "/top")
        assert (answer.status_code, answer.json()["users"][0]["score"]) == (200, 5)
        assert client.get("/readyz").json()["status"] == "degraded"
        listed = client.get("/api/v1/leaderboards", params={"podId": "default"}).json()["leaderboards"]
        assert {each["UUID"]: each["totalUsers"] for each in listed}["readonly"] == 1
    finally:
        deployment.postgres.start()
    until_equal(lambda: client.put(board + "/users/ada", json={"score": 6, "eventId": "r2"}).status_code, 200)
    assert client.get(board + "/top").json()["users"][0]["score"] == 6
    # Each server reconnects without help.
    until_equal(lambda: {each.get("/readyz").json()["status"] for each in clients}, {"ready"}, 10)


def test_lost_ranking_is_rebuilt_only_once(deployment: Deployment, clients: list[httpx.Client]) -> None:
    create(clients[0], "lost", rule="best")
    board = "/api/v1/leaderboards/lost"
    scores = [{"userId": f"u{number}", "score": number} for number in range(9000)]
    assert clients[0].post(board + "/scores", json={"scores": scores}).status_code == 200

    def builds() -> float:
        lines = [line for client in clients for line in client.get("/metrics").text.splitlines()]
        return sum(float(line.split()[1]) for line in lines if line.startswith("laurels_builds_total "))

    until_equal(lambda: all("Laurels-Degraded" not in c.get(board + "/top").headers for c in clients), True, 5)
    boards = clients[0].get("/api/v1/leaderboards").json()["leaderboards"]
    rankings = sum(
        len(clients[0].get(f"/api/v1/leaderboards/{each['UUID']}/periods").json()["periods"]) for each in boards
    )
    before = builds()
    deployment.redis.call("FLUSHALL")  # type: ignore[union-attr]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: clients[number % SERVERS].get(board + "/top?limit=2"), range(64)))
    assert all([user["userId"] for user in answer.json()["users"]] == ["u8999", "u8998"] for answer in answers)
    until_equal(lambda: any("Laurels-Degraded" in c.get(board + "/top").headers for c in clients), False, 10)
    until_equal(lambda: builds() - before, rankings)
    time.sleep(1.5)
    assert builds() - before == rankings


def test_rebuild_reports_the_users_that_differed(deployment: Deployment, clients: list[httpx.Client]) -> None:
    create(clients[0], "broken", rule="best")
    board = "/api/v1/leaderboards/broken"
    clients[0].post(board + "/scores", json={"scores": [{"userId": f"u{n}", "score": n} for n in range(10)]})
    redis = deployment.redis.client()  # type: ignore[union-attr]
    (name,) = [key for key in redis.keys("laurels:*:z") if redis.zcard(key) == 10]
    member = redis.zrange(name, 0, 0)[0]
    redis.execute_command("ZADD", name, -3.5, member)
    redis.close()
    server = deployment.servers[0]
    found = laurels("verify", data_dir=server.data_dir, url=server.url, key=ADMIN_KEY)
    assert found.returncode == 1
    assert "index_differs: board broken" in found.stdout
    done = laurels("rebuild", "broken", data_dir=server.data_dir, url=server.url, key=ADMIN_KEY)
    assert done.returncode == 0, done.stderr
    assert "board broken, period all: 1 users differed: u9" in done.stdout
    again = laurels("rebuild", "broken", "--json", data_dir=server.data_dir, url=server.url, key=ADMIN_KEY)
    assert json.loads(again.stdout.splitlines()[-1])["differences"] == 0
    assert clients[1].get(board + "/top").json()["users"][0] == clients[2].get(board + "/top").json()["users"][0]
    assert verify(server)["differences"] == 0


def test_verify_and_rebuild_find_no_differences_during_writes(
    deployment: Deployment, clients: list[httpx.Client]
) -> None:
    create(clients[0], "busy", rule="increment", capacity=50)
    are_told(clients, lambda client: client.get("/api/v1/leaderboards/busy").status_code, 200)
    stop = threading.Event()
    problems: list[str] = []

    def write(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            scores = [{"userId": f"u{rng.randrange(300)}", "score": rng.choice([1, 2, -1])} for _ in range(20)]
            answer = clients[number].post("/api/v1/leaderboards/busy/scores", json={"scores": scores})
            problems.extend([] if answer.status_code == 200 else [answer.text])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    server = deployment.servers[3]
    try:
        for _ in range(3):
            assert verify(server)["differences"] == 0
            done = laurels("rebuild", "busy", "--json", data_dir=server.data_dir, url=server.url, key=ADMIN_KEY)
            assert json.loads(done.stdout.splitlines()[-1])["differences"] == 0, done.stdout
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert problems == []
    assert verify(server)["differences"] == 0


def test_server_started_without_postgres_answers_503_until_it_returns(deployment: Deployment) -> None:
    server = RunningServer(deployment.folder / "early", **deployment.settings)
    deployment.postgres.kill()
    try:
        server.start(wait=False)
        with server.client() as client:
            until_equal(lambda: is_alive_at(client), True)
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "not_ready")
            for answer in (
                client.get("/api/v1/leaderboards/default/top"),
                client.put("/api/v1/leaderboards/default/users/ada", json={"score": 1}),
                client.get("/api/v1/pods"),
            ):
                assert (answer.status_code, answer.json()["code"]) == (503, "starting")
                assert answer.headers["Retry-After"] == "1"
            # It stops on request, with exit code 0.
            assert server.terminate() == 0
            server.start(wait=False)
            until_equal(lambda: is_alive_at(client), True)
    finally:
        deployment.postgres.start()
    server.wait_ready()
    assert server.terminate() == 0


def is_alive_at(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_server_without_postgres_and_with_empty_redis_is_not_ready(
    deployment: Deployment, clients: list[httpx.Client]
) -> None:
    """An empty Redis can't answer without PostgreSQL."""
    client = clients[0]
    deployment.postgres.kill()
    deployment.redis.call("FLUSHALL")  # type: ignore[union-attr]
    try:
        until_equal(lambda: client.get("/readyz").status_code, 503, 10)
        refused = client.get("/api/v1/leaderboards/default/top")
        assert (refused.status_code, refused.json()["retryable"]) == (503, True)
        assert "PostgreSQL" in refused.json()["detail"]
    finally:
        deployment.postgres.start()
    until_equal(lambda: client.get("/readyz").json()["status"], "ready", 10)
    until_equal(lambda: client.get("/api/v1/leaderboards/default/top").status_code, 200, 10)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_unusable_spool_or_ledger_url_ends_the_server(deployment: Deployment, workers: str) -> None:
    (deployment.folder / "file").write_text("")
    settings = deployment.settings | {"workers": workers, "port": str(free_port())}
    bad = laurels("serve", data_dir=deployment.folder / "bad", **settings, spool=str(deployment.folder / "file"))
    assert (bad.returncode, "can't be used as the spool" in bad.stderr) == (5, True), bad.stderr
    wrong = laurels(
        "serve", data_dir=deployment.folder / "bad", **(settings | {"ledger": "postgresql://x@127.0.0.1:y/z"})
    )
    assert (wrong.returncode, "PostgreSQL can't be used with LAURELS_LEDGER" in wrong.stderr) == (2, True), wrong.stderr


def test_memory_index_with_a_postgres_ledger_is_refused_at_startup(deployment: Deployment) -> None:
    settings = deployment.settings | {"workers": "2", "port": str(free_port())}
    bad = laurels("serve", data_dir=deployment.folder / "bad", **(settings | {"index": "memory://"}))
    assert bad.returncode == 2
    assert "LAURELS_INDEX" in bad.stderr
