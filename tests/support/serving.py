"""A server in the process of the test, so that the test can change its timeouts."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from laurels.config import read_settings
from laurels.server import Server, listen
from support.running import ADMIN_KEY


def with_server(folder: Path, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Run a server, and call `work` with its port. On uvloop, as the program."""
    uvloop.run(_serve(folder, work))


async def _serve(folder: Path, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    listening = listen("127.0.0.1", 0)
    ready = asyncio.Event()
    server = Server(read_settings({"data_dir": folder}, {}), ADMIN_KEY, lambda _done, _total: None, ready.set)
    serving = asyncio.create_task(server.serve(listening, "here"))
    try:
        await ready.wait()
        await work(listening.getsockname()[1])
    finally:
        server.stop()
        await serving
