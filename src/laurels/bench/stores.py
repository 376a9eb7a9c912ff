"""Private PostgreSQL and Redis servers on free ports, with data in a temporary folder."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from laurels.errors import Unavailable

HOST = "127.0.0.1"
# Where Debian and others put the programs of PostgreSQL, which are not on the PATH.
POSTGRES_FOLDERS = "/usr/lib/postgresql/*/bin"
START_S = 30.0
STOP_S = 30.0


def find_program(name: str) -> str | None:
    """Return the path of a program; None if it is not installed."""
    found = shutil.which(name)
    if found is None:
        newest = sorted(Path("/").glob(f"{POSTGRES_FOLDERS.lstrip('/')}/{name}"), reverse=True)
        found = str(newest[0]) if newest else None
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_postgres(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL server with its default durability, and yield its URL."""
    data = folder / "data"
    data.mkdir(parents=True, mode=0o700)
    # PostgreSQL refuses to run as root: then the user of the installed package runs it.
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(data, user)
        for parent in data.parents:
            with contextlib.suppress(PermissionError):
                parent.chmod(parent.stat().st_mode | 0o011)
    name = user or pwd.getpwuid(os.geteuid()).pw_name
    create = ["-D", str(data), "-U", name, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
    subprocess.run([_need("initdb"), *create], user=user, check=True, capture_output=True, cwd="/", timeout=60)
    port = free_port()
    options = {
        "port": port,
        "listen_addresses": HOST,
        "unix_socket_directories": "",
        "shared_buffers": "128MB",
        "max_wal_size": "1GB",
    }
    arguments = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
    with _running([_need("postgres"), "-D", str(data), *arguments], folder / "postgres.log", user):
        yield f"postgresql://{name}@{HOST}:{port}/postgres"


@contextlib.contextmanager
def running_redis(folder: Path) -> Iterator[str]:
    """Run a Redis server without persistence, and yield its URL."""
    folder.mkdir(parents=True)
    port = free_port()
    options = ["--port", str(port), "--bind", HOST, "--dir", str(folder), "--save", "", "--appendonly", "no"]
    with _running([_need("redis-server"), *options], folder / "redis.log", None):
        yield f"redis://{HOST}:{port}"


def _need(name: str) -> str:
    program = find_program(name)
    if program is None:
        raise Unavailable("index_unavailable", f"The program {name} is not installed.")
    return program


@contextlib.contextmanager
def _running(command: list[str], log: Path, user: str | None) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, user=user, cwd="/")
    try:
        wait_until(lambda: "eady to accept connections" in log.read_text("utf-8", "replace"), process, log)
        yield
    finally:
        # Both servers stop in an orderly way, without waiting for clients.
        process.send_signal(signal.SIGINT)
        wait_for_end(process)


def wait_for_end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(ready: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            told = log.read_text("utf-8", "replace")[-500:]
            raise Unavailable("stopping", f"{process.args!r} did not start: {told}")
        time.sleep(0.02)
