"""`laurels bench`: every side runs and is measured, and the results are printed as text, JSON and Markdown."""

import json
from pathlib import Path

import pytest

from laurels.bench import bare
from laurels.bench.peers import known_peers, read_peer
from laurels.bench.report import BEGIN, END
from laurels.bench.sides import (
    ASGI,
    COUNT,
    DURABLE,
    EMBEDDED,
    PACKAGE,
    PROTOCOL,
    REDIS_ALONE,
    SHARED,
    SQLITE_ALONE,
    STORES_ALONE,
    bare_server,
)
from laurels.errors import Invalid, Unavailable
from support.calls import NewBoard
from support.running import ADMIN_KEY, RunningServer, laurels
from support.stores import need

SHORT = ("--users", "1000", "--seconds", "0.2", "--rounds", "1", "--connections", "8")
CALLS = {"top", "rank", "around", "put"}


def test_all_sides_are_measured_beside_a_peer(tmp_path: Path, server: RunningServer, new_board: NewBoard) -> None:
    need("postgres")
    need("redis-server")
    board = new_board(public=True)
    described = tmp_path / "peer.toml"
    (known,) = [name for name in known_peers() if name == "laurels"]
    text = (Path(read_peer.__code__.co_filename).parent / "peers" / f"{known}.toml").read_text("utf-8")
    described.write_text(text.replace("KEY", ADMIN_KEY).replace("/bench/", f"/{board}/"))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    peer = ("--peer", f"mine={server.url}", "--describe", f"mine={described}")
    done = laurels("bench", *SHORT, *peer, "--json", "--docs", str(page), data_dir=tmp_path)
    assert done.returncode == 0, done.stderr
    with server.client() as client:
        assert client.get(f"/api/v1/leaderboards/{board}").json()["totalUsers"] == 1000
    found = json.loads(done.stdout)
    assert {"command", "machine", "versions", "load"} <= found.keys()
    measured: dict[str, set[str]] = {}
    for row in found["rows"]:
        measured.setdefault(row["side"], set()).add(row["what"])
        assert len(row["values"]) == 1
        assert min(row["values"]) > 0
    assert measured == {
        EMBEDDED: CALLS | {"batch"},
        SHARED: CALLS | {"batch"},
        PROTOCOL: CALLS,
        ASGI: CALLS,
        DURABLE: {"put", "batch"},
        SQLITE_ALONE: {"batch"},
        STORES_ALONE: {"batch"},
        REDIS_ALONE: {"rank"},
        COUNT: CALLS,
        PACKAGE: CALLS,
        "mine": CALLS,
    }
    written = page.read_text("utf-8")
    assert written.startswith(f"before\n{BEGIN}\n")
    assert written.endswith(f"{END}\nafter\n")
    assert "old" not in written
    assert "| Laurels, SQLite |" in written
    assert (tmp_path / "images" / "bench-put.svg").read_text("utf-8").startswith("<svg ")


def test_other_suites_print_their_rows(tmp_path: Path) -> None:
    done = laurels("bench", "mixed", *SHORT, data_dir=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "p95 of reads at 10,000/s" in done.stdout
    assert "p95 of writes at 2,000/s" in done.stdout


@pytest.mark.parametrize(
    ("peer", "told"),
    [("podium", "NAME=http://HOST:PORT"), ("nobody=http://h:1", "--describe nobody=FILE"), ("x=ftp://h", "NAME=http")],
)
def test_invalid_peer_is_refused_with_the_reason(peer: str, told: str) -> None:
    with pytest.raises(Invalid, match=told):
        read_peer(peer, {})


def test_baseline_that_does_not_start_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match="serve_durable did not start"),
        bare_server(bare.serve_durable, str(tmp_path / "missing"), 1),
    ):
        pass


def test_unknown_suite_is_refused_with_the_names_of_the_others(tmp_path: Path) -> None:
    done = laurels("bench", "nothing", data_dir=tmp_path)
    assert done.returncode == 2
    assert "calls, sizes, mixed, boards" in done.stderr
