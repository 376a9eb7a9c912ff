"""A real `laurels serve` or `ingest` process on a free port, which tests can kill and restart."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx

from laurels.client.tls import tls_for

ADMIN_KEY = "an-admin-key-for-tests-of-all-kinds"
START_TIMEOUT_S = 60
# For clients of plain HTTP: the certificates of the system take 35 ms to load for each client.
PLAIN = tls_for("http://127.0.0.1")


_given: set[int] = set()


def free_port() -> int:
    """Return a port that no process listens on and that this test process has not handed out before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if reserve_ports(port):
            return port


def reserve_ports(*ports: int) -> bool:
    """Reserve ports, and return True; return False if one of them is already reserved."""
    if not _given.isdisjoint(ports) or not all(map(_reserve_among_processes, ports)):
        return False
    _given.update(ports)
    return True


def _reserve_among_processes(port: int) -> bool:
    """Reserve a port among the test processes of a run: the first one creates a file."""
    scratch = os.environ.get("LAURELS_TEST_SCRATCH")
    if scratch is None:
        return True
    folder = Path(scratch) / "ports"
    folder.mkdir(exist_ok=True)
    try:
        (folder / str(port)).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def environment(data_dir: Path, **settings: str) -> dict[str, str]:
    """Return the environment for a laurels command: this data folder and these settings, no inherited LAURELS_ ones."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAURELS_")}
    return (
        clean
        | {"LAURELS_DATA_DIR": str(data_dir)}
        | {f"LAURELS_{name.upper()}": each for name, each in settings.items()}
    )


def laurels(
    *arguments: str, data_dir: Path, stdin: str | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a laurels command and wait for its end."""
    return subprocess.run(
        [sys.executable, "-m", "laurels", *arguments],
        env=environment(data_dir, **settings),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class RunningServer:
    COMMAND = "serve"

    # The folder of another version of the package.
    source: Path | None = None
    # The file for what the server logs; None: that of the tests.
    stderr: IO[bytes] | None = None

    def __init__(self, data_dir: Path, **settings: str) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = {"admin_key": ADMIN_KEY, "port": str(self.port)} | settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        path = {} if self.source is None else {"PYTHONPATH": str(self.source)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "laurels", self.COMMAND],
            env=environment(self.data_dir, **self.settings) | path,
            stderr=self.stderr,
        )
        if wait:
            self.wait_ready()

    def restart_with(self, **settings: str) -> None:
        self.kill()
        self.settings |= settings
        self.start()

    def wait_ready(self) -> None:
        assert self._process is not None
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            assert self._process.poll() is None, f"the server exited with {self._process.returncode}"
            try:
                if httpx.get(self.url + "/readyz", timeout=5, verify=PLAIN).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError("the server was not ready in time")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=60)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self, key: str | None = ADMIN_KEY) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=PLAIN)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


class LoggedServer(RunningServer):
    """A server whose log the test reads."""

    def start(self, *, wait: bool = True) -> None:
        self._log = (self.data_dir / "server.log").open("ab")
        self.stderr = self._log
        super().start(wait=wait)

    def kill(self) -> None:
        super().kill()
        self._log.close()

    def lines(self) -> list[str]:
        return (self.data_dir / "server.log").read_text("utf-8").splitlines()


class RunningIngest(RunningServer):
    COMMAND = "ingest"

    def __init__(self, data_dir: Path, **settings: str) -> None:
        super().__init__(data_dir, **settings)
        self.settings["ingest_port"] = str(self.port)
