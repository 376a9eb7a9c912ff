"""Input that another language could read as code: SQL, headers, paths, HTML, logs and spreadsheets."""

import json
import re
import socket
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from support.calls import NewBoard
from support.running import RunningServer, laurels

SQL = [
    "' OR '1'='1",
    "'; DROP TABLE events; --",
    '" UNION SELECT digest FROM keys --',
    "\\'; SELECT pg_sleep(10); --",
    "%' OR user_id LIKE '%",
    "$1",
    "?1",
    "{{7*7}}${7*7}#{7*7}",
]


@pytest.mark.parametrize("text", SQL)
def test_sql_in_any_text_is_text(api: httpx.Client, new_board: NewBoard, text: str) -> None:
    board = f"/api/v1/leaderboards/{new_board()}"
    body = {"score": 1, "eventId": text, "metadata": {text: text}}
    assert api.put(f"{board}/users/{quote(text, safe='')}", json=body).json()["userId"] == text
    assert api.put(f"{board}/users/other", json={"score": 2}).status_code == 200
    events = api.get(f"{board}/users/{quote(text, safe='')}/history").json()["events"]
    assert [(event["eventId"], event["metadata"]) for event in events] == [(text, {text: text})]
    assert [each["userId"] for each in api.get(f"{board}/search", params={"q": text}).json()["users"]] == [text]
    ranks = api.post(f"{board}/ranks", json={"userIds": [text]}).json()
    assert [each["rank"] for each in ranks["users"]] == [2]
    void = api.post(f"{board}/void", json={"match": {text: text}}).json()
    assert void["events"] == 1
    for name in ("window", "period", "segment"):
        assert api.get(f"{board}/top", params={name: text}).status_code in {404, 422}
    assert api.get(f"{board}/periods", params={"cursor": text}).status_code == 422
    assert api.get("/api/v1/audit", params={"keyId": text}).json()["entries"] == []
    assert api.get(f"/api/v1/leaderboards/{quote(text, safe='')}").status_code == 404
    # The other user is still there.
    assert [each["userId"] for each in api.get(f"{board}/top").json()["users"]] == ["other"]


def test_line_breaks_do_not_reach_headers_or_logs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    odd = quote("x\r\nX-Evil: 1\r\n\r\n<b>", safe="")
    with RunningServer(tmp_path, access_log="all") as server, server.client() as api:
        for path in (f"/api/v1/leaderboards/{odd}/top", f"/{odd}", f"/api/v1/leaderboards/default/users/{odd}/rank"):
            answer = api.get(path, headers={"User-Agent": "x\\n{}", "X-Request-Id": "a b"})
            assert answer.status_code in {404, 422}
            assert "x-evil" not in answer.headers
        server.terminate()
    lines = [line for line in capfd.readouterr().err.splitlines() if '"event": "call"' in line]
    assert len(lines) >= 3
    for line in lines:
        assert "evil" not in line.lower()
        json.loads(line)


@pytest.mark.parametrize(
    "path",
    [
        "/web/../../../../etc/passwd",
        "/web/%2e%2e/%2e%2e/settings.py",
        "/web/..%2f..%2fsettings.py",
        "/web/....//settings.py",
        "/web//etc/passwd",
        "/web/main.js%00.css",
        "/web/\\..\\settings.py",
    ],
)
def test_files_outside_the_page_are_not_served(server: RunningServer, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    # httpx would normalize the path.
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while some := connection.recv(65536):
            answer += some
    assert answer.startswith(b"HTTP/1.1 404"), answer[:200]
    assert b"root:" not in answer
    assert b"LAURELS_" not in answer


def test_host_and_path_are_escaped_in_pages(server: RunningServer) -> None:
    with server.client(None) as client:
        answer = client.get("/docs", headers={"Host": '"><script>alert(1)</script>'})
        assert "<script>alert" not in answer.text
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        page = client.get("/")
        assert "'unsafe-inline'" not in page.headers["Content-Security-Policy"]
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        # Errors quote what was sent, but a browser must not take them for a page.
        error = client.get("/<script>alert(1)</script>")
        assert error.headers["Content-Type"] == "application/problem+json"
        assert error.headers["X-Content-Type-Options"] == "nosniff"


def test_formulas_are_neutral_in_exported_tables(tmp_path: Path) -> None:
    users = ["=1+1", "+1", "-1", "@SUM(A1)", "\u00e9=1"]
    with RunningServer(tmp_path) as server, server.client() as api:
        for user in users:
            api.put(f"/api/v1/leaderboards/default/users/{quote(user, safe='')}", json={"score": 1})
        done = laurels(
            "export", "default", "--format", "csv", data_dir=tmp_path, admin_key="an-admin-key-for-tests-of-all-kinds"
        )
    assert done.returncode == 0, done.stderr
    cells = [cell for line in done.stdout.splitlines() for cell in re.split(r",", line)]
    assert not [cell for cell in cells if re.match(r'"?[=+@]|"?-\D', cell)]
    assert "\u00e9=1" in done.stdout
