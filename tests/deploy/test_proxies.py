"""The proxy configurations in deploy/, run as they are except for names, files and ports."""

import asyncio
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from websockets.asyncio.client import connect

from laurels.http.live_answers import ChangesFrame, SnapshotFrame
from support.live import live_url, next_frame
from support.running import ADMIN_KEY, RunningServer, free_port
from support.stores import Process, need
from support.waiting import until

DEPLOY = Path(__file__).parents[2] / "deploy"
# The proxy listens on 127.0.0.1 and is trusted, so the client is another address of this machine.
CLIENT = "127.0.0.2"
BOARD = "/api/v1/leaderboards/default"
NGINX = """
USER
daemon off; pid FOLDER/nginx.pid; error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy; fastcgi_temp_path FOLDER/fastcgi;
    uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
    include FOLDER/laurels.conf;
}
"""
CADDY = """
{
    admin off
    auto_https disable_redirects
    storage file_system FOLDER/caddy
}
"""


def certificate(folder: Path) -> tuple[Path, Path]:
    key, pem = folder / "boards.key", folder / "boards.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(pem)]
    subprocess.run([need("openssl"), *command, *names], check=True, capture_output=True)
    return key, pem


def configured(name: str, replaced: dict[str, str]) -> str:
    """Return a configuration with other names, files and ports."""
    text = (DEPLOY / name).read_text("utf-8")
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def start_nginx(folder: Path, server: RunningServer, port: int) -> Process:
    key, pem = certificate(folder)
    replaced = {
        "listen 443": f"listen 127.0.0.1:{port}",
        "127.0.0.1:8080": f"127.0.0.1:{server.port}",
        "/etc/ssl/boards.pem": str(pem),
        "/etc/ssl/boards.key": str(key),
    }
    (folder / "laurels.conf").write_text(configured("nginx.conf", replaced))
    # Only root may choose the user; another one could not read the folder.
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(NGINX.replace("FOLDER", str(folder)).replace("USER", user))
    command = [need("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    return Process(command, folder / "nginx.log")


def start_caddy(folder: Path, server: RunningServer, port: int) -> Process:
    key, pem = certificate(folder)
    replaced = {
        "boards.example {": f"https://127.0.0.1:{port} {{\n\ttls {pem} {key}",
        "127.0.0.1:8080": f"127.0.0.1:{server.port}",
    }
    (folder / "Caddyfile").write_text(CADDY.replace("FOLDER", str(folder)) + configured("Caddyfile", replaced))
    command = [need("caddy"), "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    return Process(command, folder / "caddy.log")


class Proxied:
    def __init__(self, url: str, pem: Path) -> None:
        self.url = url
        self.tls = ssl.create_default_context(cafile=str(pem))

    def client(self, key: str | None = ADMIN_KEY) -> httpx.Client:
        headers = {} if key is None else {"X-API-Key": key}
        transport = httpx.HTTPTransport(verify=self.tls, local_address=CLIENT)
        return httpx.Client(base_url=self.url, headers=headers, transport=transport, timeout=30)


@pytest.fixture(scope="module", params=[start_nginx, start_caddy], ids=["nginx", "caddy"])
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    with RunningServer(folder / "data", trusted_proxies="127.0.0.1") as server:
        proxy = request.param(folder, server, port)
        try:
            found = Proxied(f"https://127.0.0.1:{port}", folder / "boards.pem")

            def answers() -> bool:
                assert proxy.is_running, (folder / f"{request.param.__name__[6:]}.log").read_text()
                try:
                    with found.client() as client:
                        return client.get("/readyz").status_code == 200
                except httpx.TransportError:
                    return False

            until(answers, "the proxy")
            yield found
        finally:
            proxy.kill()


def test_calls_pass_with_encoded_ids_and_large_batches(proxied: Proxied) -> None:
    with proxied.client() as client:
        user = "a/b é%?#"
        assert client.put(f"{BOARD}/users/{quote(user, safe='')}", json={"score": 5}).json()["userId"] == user
        assert client.get(f"{BOARD}/users/{quote(user, safe='')}/rank").json()["score"] == 5
        assert "Strict-Transport-Security" in client.get("/healthz").headers
        metadata = {"text": "x" * 3900}
        scores = [{"userId": f"u{number}", "score": 1, "metadata": metadata} for number in range(2000)]
        body = json.dumps({"scores": scores})
        assert 7_500_000 < len(body) < 8 * 2**20
        json_type = {"Content-Type": "application/json"}
        assert client.post(f"{BOARD}/scores", content=body, headers=json_type).status_code == 200
        too_large = b'{"scores": [' + b" " * 10_000_000 + b"]}"
        # Caddy 2.6 answers 502.
        assert client.post(f"{BOARD}/scores", content=too_large, headers=json_type).status_code in {413, 502}


def test_metrics_are_not_public(proxied: Proxied) -> None:
    with proxied.client() as client:
        assert client.get("/metrics").status_code == 404


def test_server_sees_the_client_and_not_what_the_client_claims(proxied: Proxied) -> None:
    with proxied.client() as client:
        headers = {"X-Forwarded-For": "203.0.113.9"}
        body = {"podId": "default", "name": "A board"}
        made = client.post("/api/v1/leaderboards", json=body, headers=headers).json()["UUID"]
        (entry,) = client.get("/api/v1/audit", params={"UUID": made}).json()["entries"]
        assert entry["address"] == CLIENT


def test_live_updates_are_not_buffered(proxied: Proxied) -> None:
    with proxied.client() as client, proxied.client(None) as stranger:
        board = client.post(
            "/api/v1/leaderboards", json={"podId": "default", "name": "A board", "public": True}
        ).json()["UUID"]
        path = f"/api/v1/leaderboards/{board}"
        with stranger.stream("GET", f"{path}/stream") as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("event: "))
            assert next(lines) == "event: snapshot"
            client.put(f"{path}/users/ada", json={"score": 1})
            assert next(line for line in lines if line != "event: heartbeat") == "event: changes"

        async def story() -> None:
            async with connect(live_url(proxied.url, board), ssl=proxied.tls) as socket:
                assert isinstance(await next_frame(socket), SnapshotFrame)
                await asyncio.to_thread(client.put, f"{path}/users/bob", json={"score": 2})
                assert isinstance(await next_frame(socket), ChangesFrame)

        asyncio.run(story())
