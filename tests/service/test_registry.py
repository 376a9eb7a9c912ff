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
            reads = 0
            revision = laurels.ledger.registry_revision

            async def counted() -> int:
                nonlocal reads
                reads += 1
                return await revision()

            monkeypatch.setattr(laurels.ledger, "registry_revision", counted)
            await asyncio.gather(*(laurels.registry.look_again() for _ in range(200)))
            # The registry and the repair pass also refresh by themselves, more often if the machine is slow.
            assert 1 <= reads <= 20

    asyncio.run(run())


def test_refreshes_do_not_pile_up_behind_a_slow_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage("shared", tmp_path)

    async def run() -> None:
        async with stage.running() as laurels:
            monkeypatch.setattr("laurels.service.boards.registry.LOOK_EVERY_S", 0.001)
            monkeypatch.setattr("laurels.service.boards.registry.LOOK_TIMEOUT_S", 0.01)
            reads = 0
            answers = asyncio.Event()
            revision = laurels.ledger.registry_revision

            async def slow() -> int:
                nonlocal reads
                reads += 1
                await answers.wait()
                return await revision()

            monkeypatch.setattr(laurels.ledger, "registry_revision", slow)
            for _ in range(50):
                # Returns although the ledger does not answer.
                async with asyncio.timeout(10):
                    await laurels.registry.look_again()
            answers.set()
            await laurels.registry.refresh()
            # The one that waited, one for all calls behind it, this one, and those of the server itself.
            assert reads <= 10

    asyncio.run(run())
