"""Startup and shutdown: a server that is loading answers, but never with a wrong rank; and how it stops."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from support.running import ADMIN_KEY, RunningServer, environment, free_port
from support.waiting import until

USERS = 60_000
TOP = "/api/v1/leaderboards/default/top?limit=3"


def test_loading_server_refuses_reads_with_starting_code(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        with server.client() as client:
            for first in range(0, USERS, 10_000):
                scores = [{"userId": f"u{n}", "score": n} for n in range(first, first + 10_000)]
                assert client.post("/api/v1/leaderboards/default/scores", json={"scores": scores}).status_code == 200
            expected = client.get(TOP).json()["users"]
        server.kill()
        server.start(wait=False)
        refused = watch_until_ready(server, expected)
    assert refused > 0


def test_second_signal_stops_server_that_waits_for_slow_client(tmp_path: Path) -> None:
    port = free_port()
    with (tmp_path / "output").open("wb") as output:
        command = [sys.executable, "-m", "laurels", "serve"]
        server = subprocess.Popen(command, env=environment(tmp_path, port=str(port)), stdout=output, stderr=output)
        try:
            until(lambda: b"is ready" in (tmp_path / "output").read_bytes(), "the server", 60)
            with socket.create_connection(("127.0.0.1", port)) as slow:
                slow.sendall(b"PUT /api/v1/leaderboards/default/users/ada HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n")
                slow.sendall(b"Content-Type: application/json\r\nX-API-Key: " + key_of(tmp_path) + b"\r\n")
                slow.sendall(b"Expect: 100-continue\r\n\r\n")
                # The server waits for the body.
                assert slow.recv(100).startswith(b"HTTP/1.1 100")
                server.terminate()
                time.sleep(0.5)
                assert server.poll() is None
                server.terminate()
                # Without the second signal the server would wait for 30 seconds.
                assert server.wait(timeout=20) == 0
        finally:
            server.kill()
            server.wait()
    said = (tmp_path / "output").read_text()
    assert "Laurels has stopped." in said
    assert "Traceback" not in said


def key_of(folder: Path) -> bytes:
    return (folder / "admin.key").read_bytes().strip()


def watch_until_ready(server: RunningServer, expected: list[dict[str, object]]) -> int:
    """Read and write until a read is answered; return the number of reads that were refused before."""
    refused = 0
    with server.client(ADMIN_KEY) as client:
        while True:
            try:
                read = client.get(TOP)
            except httpx.TransportError:
                time.sleep(0.01)
                continue
            if read.status_code == 200:
                assert read.json()["users"] == expected
                assert client.get("/readyz").status_code == 200
                return refused
            refused += 1
            assert (read.status_code, read.json()["code"], read.headers["Retry-After"]) == (503, "starting", "1")
            write = client.put("/api/v1/leaderboards/default/users/late", json={"score": -1, "eventId": "late"})
            assert write.status_code == 200 or write.json()["code"] == "starting"
            assert client.get("/healthz").status_code == 200
