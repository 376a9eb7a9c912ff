"""The running server: the application on a socket, from opening the ledger to the last response."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

import structlog
import uvicorn

from laurels import tracing
from laurels.config import is_shared
from laurels.errors import Unavailable
from laurels.http.protocol import SOCKET_MESSAGE_BYTES, BoundedProtocol, BoundedSocket
from laurels.http.routes import build_app
from laurels.service.index.updater import Progress
from laurels.settings import Settings
from laurels.tasks import end_tasks
from laurels.wiring import build_laurels, start_tracing

log = structlog.get_logger()

GRACE_S = 30
# Longer than clients and load balancers keep a connection, so that they close it first: a request on a connection that
# the server is closing gets no response.
KEEP_ALIVE_S = 75
RETRY_S = 0.5
TELL_EVERY_S = 10
# Probes expect a response after this long, also from a server that can't serve yet.
HOLD_BACK_S = 10
BACKLOG = 2048
# The number of new objects after which the garbage collector runs.
GARBAGE_OBJECTS = 20_000
SWITCH_S = 0.0005
# Headers of every response: browsers take it for nothing but what it says it is, and caches keep it for one origin.
HEADERS = [("X-Content-Type-Options", "nosniff"), ("Vary", "Origin")]
MAX_FILES = 1_000_000


class Server:
    """The application on a socket, with its start and its shutdown.

    `ready` is called once everything is loaded; until then, reads and writes get 503. On a socket that several workers
    share, a worker that is not loaded yet leaves requests to the others, for at most `HOLD_BACK_S` seconds.
    """

    def __init__(
        self,
        settings: Settings,
        admin_key: str,
        progress: Progress,
        ready: Callable[[], None],
        *,
        probes_only: bool = False,
    ) -> None:
        start_tracing(settings)
        self._laurels, self._announce = build_laurels(settings, admin_key)
        self._is_shared = is_shared(settings)
        self._hold_back_s = 0 if settings.server.fd is None else HOLD_BACK_S
        self._progress = progress
        self._ready = ready
        self._uvicorn = _QuietServer(
            uvicorn.Config(
                build_app(self._laurels, probes_only=probes_only, settings=settings),
                loop="uvloop",
                http=BoundedProtocol,
                ws=BoundedSocket,
                ws_max_size=SOCKET_MESSAGE_BYTES,
                # A frame is encoded once for all subscribers; compression would repeat the work for each of them.
                ws_per_message_deflate=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                headers=HEADERS,
                proxy_headers=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._may_answer = asyncio.Event()
        self.address = ""
        self.migrations: list[str] = []
        self.error: BaseException | None = None

    async def serve(self, listening: socket.socket, address: str) -> None:
        """Serve until a signal or `stop`.

        Raises the error that kept the ledger from opening or the index from loading.
        """
        self.address = address
        # An embedded ledger is opened first, so that a ledger that can't be used makes the command fail.
        try:
            if not self._is_shared:
                self.migrations = await self._laurels.open()
            self._announce(address)
            await self._load_and_answer(listening)
        finally:
            await self._laurels.close()
            await asyncio.to_thread(tracing.stop)
        if self.error is not None:
            raise self.error

    async def _load_and_answer(self, listening: socket.socket) -> None:
        loading = asyncio.create_task(self._load(), name="load")
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._may_answer.wait(), self._hold_back_s)
            await self._uvicorn.serve(sockets=[listening])
        finally:
            await end_tasks([loading])

    async def _open_shared(self) -> list[str]:
        """Open the shared ledger, and retry until it is reachable.

        The ledger may start after its servers, which answer 503 until then.
        """
        told_at = -float(TELL_EVERY_S)
        while True:
            try:
                return await self._laurels.open()
            except Unavailable as error:
                if error.code != "ledger_unavailable":
                    raise
                if time.monotonic() - told_at > TELL_EVERY_S:
                    told_at = time.monotonic()
                    log.warning("ledger_unreachable", reason=error.message)
                await asyncio.sleep(RETRY_S)

    def stop(self) -> None:
        """Finish requests in flight and refuse new ones; a second call stops waiting for slow clients."""
        self._uvicorn.force_exit = self._uvicorn.should_exit
        # Clients that are disconnected by force are expected, but uvicorn would log a traceback for each.
        logging.getLogger("uvicorn.error").disabled = self._uvicorn.force_exit
        self._uvicorn.should_exit = True
        self._may_answer.set()
        self._laurels.live.end(Unavailable("stopping", "The server is shutting down."))

    def stop_on_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    async def _load(self) -> None:
        try:
            if self._is_shared:
                self.migrations = await self._open_shared()
            await self._laurels.load(self._progress)
        except Exception as error:  # noqa: BLE001 - raised again by `serve`
            # Without an index the server can't serve: stop, and let `serve` raise the error.
            self.error = error
            self.stop()
        else:
            settle_memory()
            self._may_answer.set()
            self._ready()


class _QuietServer(uvicorn.Server):
    """A uvicorn server that does not handle signals.

    uvicorn raises a signal again after it has handled it, which would end the process before the ledger is closed.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def allow_connections() -> None:
    """Raise the limit of open files as far as the system allows, because the default limit of shells is low."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if most == resource.RLIM_INFINITY else min(most, MAX_FILES)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def switch_threads_often() -> None:
    """Let threads wait for the interpreter lock for half a millisecond instead of five.

    The thread that writes to SQLite needs the lock after every statement. While the event loop is busy, it gets it only
    after this time, so every statement of a write would wait.
    """
    sys.setswitchinterval(SWITCH_S)


def settle_memory() -> None:
    """Exclude all current objects from garbage collection, and collect the others less often.

    The loaded entries stay in memory, so the collector would traverse millions of objects again and again in vain. A
    batch of writes allocates thousands of objects that end with it, so the default interval would also find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 10, 10)


def inherit(fd: int) -> socket.socket:
    """Return the socket that the parent process listens on.

    Raises `Unavailable` if the file descriptor is not a socket.
    """
    try:
        return socket.socket(fileno=fd)
    except OSError as error:
        raise Unavailable("address_taken", f"Can't listen on the inherited socket {fd}: {error.strerror}.") from error


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it. Without it, the body of a response waits up to 40 ms for the ACK of its headers.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise Unavailable(
            "address_taken",
            f"Can't listen on {host}:{port}: {error.strerror}. Choose another address with --host and --port "
            "(LAURELS_HOST, LAURELS_PORT).",
        ) from error
    listening.listen(BACKLOG)
    return listening


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
