"""`--workers N` of `laurels serve` and `laurels ingest`: several processes on one socket, restarted when they die."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable

import httpx
import structlog
from prometheus_client.multiprocess import mark_process_dead

from laurels.client.tls import tls_for
from laurels.config import environment_of
from laurels.errors import ERROR_MAPPINGS
from laurels.settings import Settings

log = structlog.get_logger()

RESTART_S = 1.0
POLL_S = 0.1
# Exit codes of a worker's first start that a restart would repeat.
HOPELESS = {outside.exit_code for outside in ERROR_MAPPINGS.values()} - {1}


class Workers:
    """The worker processes of one `laurels serve` or `laurels ingest`.

    `command`: serve or ingest. `ready` is called when the first worker can serve.
    """

    def __init__(
        self, command: str, settings: Settings, listening: socket.socket, address: str, ready: Callable[[], None]
    ) -> None:
        self._command = command
        self._settings = settings
        self._listening = listening
        self._address = address
        self._ready = ready
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = False
        self._exit_code = 0
        self._was_ready = False

    async def run(self) -> int:
        """Run the workers and return the exit code.

        Ends on a signal, or when a worker fails to start with an error that a restart would repeat.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        greeting = asyncio.create_task(self._greet())
        with tempfile.TemporaryDirectory(prefix="laurels-metrics-") as folder:
            await asyncio.gather(*(self._keep(number, folder) for number in range(self._settings.server.workers)))
        greeting.cancel()
        await asyncio.gather(greeting, return_exceptions=True)
        return self._exit_code

    def stop(self) -> None:
        """Stop the workers after the requests in flight; a second call stops waiting for slow clients."""
        self._stopping = True
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def _keep(self, number: int, metrics_folder: str) -> None:
        while not self._stopping:
            code = await self._work(number, metrics_folder)
            if code in HOPELESS and not self._was_ready:
                self._exit_code = code
                self.stop()
            if not self._stopping:
                log.error("worker_died", worker=number, exit_code=code, restart_s=RESTART_S)
                await asyncio.sleep(RESTART_S)

    async def _work(self, number: int, metrics_folder: str) -> int:
        environment = os.environ | environment_of(self._settings)
        environment |= {"LAURELS_FD": str(self._listening.fileno()), "PROMETHEUS_MULTIPROC_DIR": metrics_folder}
        # Passed on because this process may have ended before the worker asks for its parent.
        environment |= {"LAURELS_PARENT": str(os.getpid())}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "laurels",
            self._command,
            env=environment,
            pass_fds=[self._listening.fileno()],
            # Ctrl-C must reach only this process, which terminates the workers.
            start_new_session=True,
        )
        self._processes[number] = process
        if self._stopping:
            process.terminate()
        code = await process.wait()
        del self._processes[number]
        mark_process_dead(process.pid, metrics_folder)  # type: ignore[no-untyped-call]
        return code

    async def _greet(self) -> None:
        async with httpx.AsyncClient(base_url=self._address, timeout=5, verify=tls_for(self._address)) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get("/readyz")).is_success:
                        self._was_ready = True
                        self._ready()
                        return
                await asyncio.sleep(POLL_S)
