"""The commands, against a running server and against a data folder without a server."""

import csv
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from support.calls import NewBoard
from support.running import PLAIN, RunningServer, environment, free_port, laurels


@pytest.fixture(params=["a running server", "a data folder"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Create a data folder, with or without a running server.

    The commands are the same: they find the server by the folder's lock, or open the folder without a server.
    """
    if request.param == "a running server":
        port = str(free_port())
        arguments = [sys.executable, "-m", "laurels", "serve"]
        process = subprocess.Popen(arguments, env=environment(tmp_path, port=port), stderr=subprocess.DEVNULL)
        wait_until_ready(f"http://127.0.0.1:{port}")
        yield tmp_path
        process.kill()
        process.wait()
    else:
        assert laurels("migrate", data_dir=tmp_path).returncode == 0
        yield tmp_path


def wait_until_ready(url: str) -> None:
    for _ in range(1000):
        try:
            if httpx.get(url + "/readyz", verify=PLAIN).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.03)
    raise AssertionError("not ready")


def test_exported_events_equal_the_imported_ones(data_dir: Path, tmp_path: Path) -> None:
    lines = [
        {
            "userId": "ada",
            "score": 5,
            "timestamp": "2026-01-01T00:00:00.000001Z",
            "eventId": "e1",
            "metadata": {"m": 'é,"\n'},
        },
        {"userId": "日本", "score": 0.1, "timestamp": "2026-01-01T00:00:00Z", "eventId": "e2"},
        {"userId": "ada", "score": -2.5, "timestamp": "2026-01-02T00:00:00Z", "eventId": "e3"},
    ]
    given = tmp_path / "given.ndjson"
    bad = ['{"userId": "bob"}', "nonsense", "[1]", '{"userId": "cy", "score": NaN}', "", '{"userId": "", "score": 1}']
    given.write_text("\n".join([json.dumps(line) for line in lines] + bad), "utf-8")
    done = laurels("import", "default", str(given), data_dir=data_dir)
    assert done.returncode == 1
    refused = [line for line in done.stderr.splitlines() if line.startswith("line ")]
    assert sorted(line.split(":")[0] for line in refused) == ["line 4", "line 5", "line 6", "line 7", "line 9"]
    assert "3 accepted, 0 already there, 5 refused. 3 came too late for the window monthly." in done.stderr

    assert json.loads(laurels("top", "--json", data_dir=data_dir).stdout) == []
    top = laurels("top", "--window", "all", "--json", data_dir=data_dir)
    assert [(each["rank"], each["userId"], each["score"]) for each in json.loads(top.stdout)] == [
        (1, "ada", 2.5),
        (2, "日本", 0.1),
    ]
    assert "ada" in laurels("top", "default", "--limit", "1", "--period", "all", data_dir=data_dir).stdout

    as_csv = tmp_path / "out.csv"
    assert laurels("export", "default", str(as_csv), data_dir=data_dir).returncode == 0
    exported = laurels("export", "default", data_dir=data_dir)
    assert [json.loads(line) for line in exported.stdout.splitlines()] == lines

    # Importing an export, in either format, counts nothing twice.
    again = laurels("import", "default", data_dir=data_dir, stdin=exported.stdout)
    assert (again.returncode, "0 accepted, 3 already there" in again.stderr) == (0, True), again.stderr
    again = laurels("import", "default", str(as_csv), data_dir=data_dir)
    assert (again.returncode, "0 accepted, 3 already there" in again.stderr) == (0, True), again.stderr
    check = laurels("verify", data_dir=data_dir)
    assert (check.returncode, check.stdout) == (0, "Users checked: 2. Differences: 0.\n")


def test_csv_export_contains_no_formulas_and_can_be_imported(data_dir: Path, tmp_path: Path) -> None:
    users = ["=1+1", "+1", "-1", "@x", "'=x", "''-x", "'quoted", "plain"]
    lines = "".join(json.dumps({"userId": user, "score": -1, "eventId": f"e{user}"}) + "\n" for user in users)
    assert laurels("import", "default", data_dir=data_dir, stdin=lines).returncode == 0
    as_csv = tmp_path / "out.csv"
    assert laurels("export", "default", str(as_csv), data_dir=data_dir).returncode == 0
    with as_csv.open(encoding="utf-8", newline="") as file:
        cells = [(row["userId"], row["score"]) for row in csv.DictReader(file)]
    shown = ["'=1+1", "'+1", "'-1", "'@x", "''=x", "'''-x", "'quoted", "plain"]
    assert cells == [(user, "-1.0") for user in shown]
    again = laurels("import", "default", str(as_csv), data_dir=data_dir)
    assert (again.returncode, "0 accepted, 8 already there" in again.stderr) == (0, True), again.stderr


def test_import_continues_after_bad_lines(data_dir: Path, tmp_path: Path) -> None:
    """A bad line is reported with its number, and the rest is imported."""
    lines = [
        b'{"userId": "ada", "score": 1}',
        b'{"userId": "bob", "score": 1e400}',
        b'{"userId": "\\ud800", "score": 1}',
        b'{"userId": "cy", "score": ' + b"9" * 5000 + b"}",
        b'{"userId": "Jos\xe9", "score": 1}',
        b'{"userId": "dan", "score": 1, "metadata": {"a": "' + b"x" * 9_000_000 + b'"}}',
        b'{"userId": "eve", "score": 1, "metadata": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"userId": "fay", "score": 1, "eventId": null}',
        b'{"userId": "gus", "score": 1, "metadata": {"a": "' + b"x" * 50_000 + b'"}}',
        b'{"userId": "hal", "score": 1}',
    ]
    given = tmp_path / "given.ndjson"
    given.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    for accepted, there in ((3, 0), (0, 3)):
        done = laurels("import", "default", str(given), "--run-id", "again", data_dir=data_dir)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
        refused = {line.split(":")[0] for line in done.stderr.splitlines() if line.startswith("line ")}
        assert refused == {f"line {number}" for number in (2, 3, 4, 5, 6, 7, 9)}
        assert f"{accepted} accepted, {there} already there, 7 refused." in done.stderr
    rows = b"userId,score\nada,007\nbob,1e999\nJos\xe9,1\n" + b"x" * 140_000 + b",1\ncy,5\n"
    (tmp_path / "given.csv").write_bytes(rows)
    done = laurels("import", "default", str(tmp_path / "given.csv"), data_dir=data_dir)
    assert (done.returncode, "1 accepted, 0 already there, 4 refused." in done.stderr) == (1, True), done.stderr


def test_exported_event_with_server_timestamp_is_a_duplicate_on_import(data_dir: Path) -> None:
    assert laurels("import", "default", data_dir=data_dir, stdin='{"userId": "ada", "score": 5}').returncode == 0
    exported = laurels("export", "default", data_dir=data_dir).stdout
    again = laurels("import", "default", data_dir=data_dir, stdin=exported)
    assert (again.returncode, "0 accepted, 1 already there" in again.stderr) == (0, True), again.stderr


def test_import_into_a_missing_board_fails_even_if_there_is_nothing_to_import(data_dir: Path) -> None:
    done = laurels("import", "nosuch", data_dir=data_dir, stdin="")
    assert done.returncode == 3, done.stderr
    assert "There is no board 'nosuch'" in done.stderr


def test_top_shows_names_if_there_are_any(data_dir: Path) -> None:
    laurels("import", "default", data_dir=data_dir, stdin='{"userId": "ada", "score": 1}')
    assert "displayName" not in laurels("top", data_dir=data_dir).stdout


def test_csv_import_reports_bad_rows_by_line_number(data_dir: Path, tmp_path: Path) -> None:
    given = tmp_path / "given.csv"
    given.write_text(
        'userId,score,metadata\nada,1,\nbob,one,\ncy,0x10,\ndan,1_0,\neve,2,{\nfay,3,"{""a"": 1}"\ngus,4,,x\n'
    )
    done = laurels("import", "default", str(given), data_dir=data_dir)
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stderr.splitlines() if line.startswith("line ")] == [
        "line 3", "line 4", "line 5", "line 6", "line 8",
    ]  # fmt: skip
    assert "2 accepted, 0 already there, 5 refused." in done.stderr
    given.write_text("user,points\nada,1\n")
    done = laurels("import", "default", str(given), data_dir=data_dir)
    assert (done.returncode, "must name the columns" in done.stderr) == (1, True)


def test_lines_without_event_id_count_once_per_run_id(data_dir: Path, tmp_path: Path) -> None:
    given = tmp_path / "given.csv"
    given.write_text("userId,score\n" + "ada,1\n" * 2500)
    for expected in ("2500 accepted, 0 already there", "0 accepted, 2500 already there"):
        done = laurels("import", "default", str(given), "--run-id", "monday", data_dir=data_dir)
        assert (done.returncode, expected in done.stderr) == (0, True), done.stderr
    assert json.loads(laurels("top", "--json", data_dir=data_dir).stdout)[0]["score"] == 2500


def test_pods_and_keys_are_created_listed_and_revoked(data_dir: Path) -> None:
    assert laurels("pods", "create", "chess", "--name", "Chess", data_dir=data_dir).returncode == 0
    pods = json.loads(laurels("pods", "list", "--json", data_dir=data_dir).stdout)
    assert [(pod["podId"], pod["name"]) for pod in pods] == [("chess", "Chess"), ("default", "Default")]
    made = laurels("keys", "create", "chess", "--role", "client", "--label", "web", data_dir=data_dir)
    assert made.stdout.startswith("lrl_")
    (key,) = json.loads(laurels("keys", "list", "chess", "--json", data_dir=data_dir).stdout)
    assert (key["role"], key["label"], "key" in key) == ("client", "web", False)
    assert laurels("keys", "revoke", "chess", key["keyId"], data_dir=data_dir).returncode == 0
    assert json.loads(laurels("keys", "list", "chess", "--json", data_dir=data_dir).stdout) == []
    wrong = laurels("keys", "create", "nobody", "--role", "client", data_dir=data_dir)
    assert (wrong.returncode, wrong.stderr) == (3, "laurels: There is no pod 'nobody'.\n")
    wrong = laurels("keys", "create", "chess", "--role", "king", data_dir=data_dir)
    assert wrong.returncode == 2


def test_verify_prints_every_difference_and_exits_with_code_one(tmp_path: Path) -> None:
    laurels("migrate", data_dir=tmp_path)
    laurels(
        "import", "default", data_dir=tmp_path, stdin='{"userId": "ada", "score": 5}\n{"userId": "bob", "score": 6}'
    )
    with closing(sqlite3.connect(tmp_path / "laurels.db")) as ledger:
        ledger.execute("UPDATE scores SET score = 7 WHERE user_id = 'ada'")
        ledger.commit()
    check = laurels("verify", data_dir=tmp_path)
    assert check.returncode == 1
    assert "row_differs: board default, period all, user ada: expected 5.0 at" in check.stdout
    assert "index_differs: board default, period all, user ada: expected 5.0 at" in check.stdout
    check = laurels("verify", "--json", data_dir=tmp_path)
    *found, last = [json.loads(line) for line in check.stdout.splitlines()]
    assert {each["fault"] for each in found} == {"row_differs", "index_differs"}
    assert (check.returncode, last["differences"], last["done"]) == (1, len(found), True)


def test_commands_reach_another_server_by_url_and_key(
    server: RunningServer, new_board: NewBoard, tmp_path: Path
) -> None:
    board = new_board()
    reach = ["--url", server.url, "--key", "an-admin-key-for-tests-of-all-kinds"]
    done = laurels("import", board, *reach, data_dir=tmp_path, stdin='{"userId": "ada", "score": 5}')
    assert done.returncode == 0
    assert json.loads(laurels("top", board, "--json", *reach, data_dir=tmp_path).stdout)[0]["userId"] == "ada"
    wrong = laurels("top", board, "--url", server.url, data_dir=tmp_path)
    assert (wrong.returncode, "To see others, send a key" in wrong.stderr) == (4, True)
    assert laurels("top", "default", "--url", server.url, data_dir=tmp_path).returncode == 0
    wrong = laurels("top", "--url", "127.0.0.1:1", data_dir=tmp_path)
    assert (wrong.returncode, "http://" in wrong.stderr) == (2, True)
    wrong = laurels("top", "--url", "http://127.0.0.1:1", data_dir=tmp_path)
    assert (wrong.returncode, "http://127.0.0.1:1" in wrong.stderr) == (5, True)
    wrong = laurels("top", board, "--url", server.url, "--key", "wrong", data_dir=tmp_path)
    assert wrong.returncode == 4
    assert wrong.stderr.startswith("laurels: This key is not known, or was revoked. Set the key for http://127.0.0.1:")
    assert "--key" in wrong.stderr
    missing = laurels("top", str(uuid4()), *reach, data_dir=tmp_path)
    assert (missing.returncode, "There is no board" in missing.stderr) == (3, True)


def test_errors_are_printed_as_messages_without_traceback(tmp_path: Path) -> None:
    nothing = laurels("top", data_dir=tmp_path / "nothing")
    assert (nothing.returncode, "There is no ledger at" in nothing.stderr) == (5, True)
    assert not (tmp_path / "nothing").exists()
    workers = laurels("serve", "--workers", "2", data_dir=tmp_path)
    assert (workers.returncode, "needs a shared index" in workers.stderr) == (2, True)
    port = laurels("serve", data_dir=tmp_path, port="70000")
    assert (port.returncode, "LAURELS_PORT" in port.stderr) == (2, True)
    for setting, needed in (({"ledger": "postgresql://x"}, "redis://"), ({"index": "redis://x"}, "postgresql://")):
        half = laurels("serve", data_dir=tmp_path, **setting)
        assert (half.returncode, needed in half.stderr) == (2, True)
    for result in (nothing, workers, port):
        assert "Traceback" not in result.stderr


def test_data_folder_and_port_are_used_by_one_server_at_a_time(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as first:
        second = laurels("serve", data_dir=tmp_path, port=str(free_port()))
        assert second.returncode == 5
        assert f"is in use by {first.url}" in second.stderr
        taken = laurels("serve", data_dir=tmp_path / "other", port=str(first.port))
        assert (taken.returncode, "already in use. Choose another" in taken.stderr) == (5, True), taken.stderr
        assert first.terminate() == 0
    assert laurels("verify", data_dir=tmp_path).returncode == 0


def test_admin_key_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    with RunningServer(tmp_path, admin_key="") as server:
        path = tmp_path / "admin.key"
        assert path.stat().st_mode & 0o777 == 0o600
        key = path.read_text().strip()
        assert len(key) >= 40
        with server.client(key) as client:
            assert client.get("/api/v1/pods").status_code == 200
        server.kill()
        server.start()
        assert path.read_text().strip() == key
        server.kill()
    path.write_text("\n")
    empty = laurels("serve", data_dir=tmp_path, port=str(free_port()))
    assert (empty.returncode, "delete it to get a new one" in empty.stderr) == (2, True)


def test_top_prints_user_ids_verbatim_and_scores_exactly(tmp_path: Path) -> None:
    laurels("migrate", data_dir=tmp_path)
    scores = {"[bold]m": 9007199254740991, "[/red]x": 1000000000000000.5, "plain": 3}
    lines = "\n".join(json.dumps({"userId": user, "score": score}) for user, score in scores.items())
    assert laurels("import", "default", data_dir=tmp_path, stdin=lines).returncode == 0
    shown = laurels("top", data_dir=tmp_path).stdout.splitlines()
    assert [line.split()[:3] for line in shown[1:]] == [
        ["1", "[bold]m", "9007199254740991"],
        ["2", "[/red]x", "1000000000000000.5"],
        ["3", "plain", "3"],
    ]


def test_key_option_overrides_the_admin_key(data_dir: Path) -> None:
    laurels("pods", "create", "chess", data_dir=data_dir)
    key = laurels("keys", "create", "chess", "--role", "client", data_dir=data_dir).stdout.strip()
    for arguments, code in ((["pods", "list"], 4), (["top", "default"], 0)):
        assert laurels(*arguments, "--key", key, data_dir=data_dir).returncode == code
    assert laurels("top", "--key", "wrong", data_dir=data_dir).returncode == 4


def test_verify_and_rebuild_handle_ids_with_line_separators(tmp_path: Path) -> None:
    """Some parsers end a line at these characters; JSON does not."""
    laurels("migrate", data_dir=tmp_path)
    lines = "\n".join(
        json.dumps({"userId": f"a\u2028{each}\x85".replace("\x85", "\u2029"), "score": 5}) for each in "xyz"
    )
    assert laurels("import", "default", data_dir=tmp_path, stdin=lines).returncode == 0
    with closing(sqlite3.connect(tmp_path / "laurels.db")) as ledger:
        ledger.execute("UPDATE scores SET score = 7")
        ledger.commit()
    check = laurels("verify", "--json", data_dir=tmp_path)
    *found, last = [json.loads(line) for line in check.stdout.strip().split("\n")]
    assert (check.returncode, last["done"], {each["userId"] for each in found}) == (
        1,
        True,
        {f"a\u2028{each}\u2029" for each in "xyz"},
    )
    rebuilt = laurels("rebuild", "--json", data_dir=tmp_path)
    assert rebuilt.returncode == 0, rebuilt.stderr
