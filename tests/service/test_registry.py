"""The registry: a call that names something unknown makes a server look in the ledger, within a limit."""

import asyncio
from pathlib import Path

import pytest

from support.services import Stage


def test_calls_that_name_something_unknown_share_a_refresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise strangers with wrong keys could load the ledger."""
    stage = Stage("shared", tmp_path)

    async def run() -> None:
        async with stage.running() as laurels:
            refreshes = 0
            refresh = laurels.registry.refresh

            async def counted() -> None:
                nonlocal refreshes
                refreshes += 1
                await refresh()

            monkeypatch.setattr(laurels.registry, "refresh", counted)
            await asyncio.gather(*(laurels.registry.look_again() for _ in range(200)))
            # The registry also refreshes twice per second by itself.
            assert 1 <= refreshes <= 2

    asyncio.run(run())


def test_call_does_not_wait_for_a_ledger_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage("shared", tmp_path)

    async def run() -> None:
        async with stage.running() as laurels:
            monkeypatch.setattr("laurels.service.boards.registry.LOOK_TIMEOUT_S", 0.05)
            monkeypatch.setattr(laurels.registry, "refresh", asyncio.Event().wait)
            async with asyncio.timeout(10):
                await laurels.registry.look_again()

    asyncio.run(run())
