"""The running server: the application on a socket, from opening the ledger to the last answer."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator

import structlog
import uvicorn

from laurels.config import Settings
from laurels.errors import Unavailable
from laurels.http.protocol import SOCKET_MESSAGE_BYTES, BoundedProtocol, BoundedSocket
from laurels.http.routes import build_app
from laurels.service.follower import Progress
from laurels.tasks import end_tasks
from laurels.wiring import build_laurels

log = structlog.get_logger()

GRACE_S = 30
# Longer than clients and balancers keep a connection, so that they are the ones to close it: whoever sends on one that
# is just being closed gets no answer.
KEEP_ALIVE_S = 75
RETRY_S = 0.5
TELL_EVERY_S = 10
# Probes want an answer after this long, also from one that can't serve yet.
HOLD_BACK_S = 10
BACKLOG = 2048
MAX_FILES = 1_000_000


class Server:
    """`ready` is called once everything is loaded; until then reads and writes are answered with 503. On a socket that
    others answer on as well, it is left to them meanwhile.
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
        self._laurels, self._announce = build_laurels(settings, admin_key)
        self._is_shared = settings.is_shared
        self._hold_back_s = 0 if settings.fd is None else HOLD_BACK_S
        self._progress = progress
        self._ready = ready
        self._uvicorn = _QuietServer(
            uvicorn.Config(
                build_app(self._laurels, probes_only=probes_only),
                loop="uvloop",
                http=BoundedProtocol,
                ws=BoundedSocket,
                ws_max_size=SOCKET_MESSAGE_BYTES,
                # A frame is encoded once for all, which compressing it for each would undo.
                ws_per_message_deflate=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._may_answer = asyncio.Event()
        self.address = ""
        self.migrations: list[str] = []
        self.error: BaseException | None = None

    async def serve(self, listening: socket.socket, address: str) -> None:
        """Serve until a signal or `stop`. Raises what kept the ledger from opening."""
        self.address = address
        # An embedded ledger is opened before the socket answers: that it can't be used is an error of the command.
        try:
            if not self._is_shared:
                self.migrations = await self._laurels.open()
            self._announce(address)
            await self._load_and_answer(listening)
        finally:
            await self._laurels.close()
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
        """A shared ledger may come later than its servers, which answer 503 until then."""
        told_at = -float(TELL_EVERY_S)
        while True:
            try:
                return await self._laurels.open()
            except Unavailable as error:
                if error.code != "ledger_unavailable":
                    raise
                if time.monotonic() - told_at > TELL_EVERY_S:
                    told_at = time.monotonic()
                    log.warning("ledger_not_there", reason=error.message)
                await asyncio.sleep(RETRY_S)

    def stop(self) -> None:
        """Finish what is in flight, refuse what is new; asked a second time, stop waiting for slow clients."""
        self._uvicorn.force_exit = self._uvicorn.should_exit
        # Who is cut off then is no fault, and uvicorn would tell of each with a traceback.
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
            # Without an index there is nothing to serve: stop, and let the command say why.
            self.error = error
            self.stop()
        else:
            settle_memory()
            self._may_answer.set()
            self._ready()


class _QuietServer(uvicorn.Server):
    """uvicorn sends a signal that it caught to the process again, which would end it before the ledger is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def allow_connections() -> None:
    """As many open files as the system lets us have: what shells give by default is few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if most == resource.RLIM_INFINITY else min(most, MAX_FILES)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def settle_memory() -> None:
    """What was loaded stays: the garbage collector need not look through millions of entries again and again."""
    gc.collect()
    gc.freeze()


def inherit(fd: int) -> socket.socket:
    """A socket that the process that started this one listens on."""
    try:
        return socket.socket(fileno=fd)
    except OSError as error:
        raise Unavailable("address_taken", f"Can't listen on the inherited socket {fd}: {error.strerror}.") from error


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it. Without it the body of an answer waits up to 40 ms for the ACK of its head.
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
