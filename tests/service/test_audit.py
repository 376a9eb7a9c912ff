"""The audit log when the ledger fails, and its retention."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from laurels.core.limits import DAY_US
from laurels.errors import Unavailable
from laurels.ports import AuditEntry, AuditFilter
from support.services import running

ENTRY = AuditEntry(0, 0, "pod", None, None, "k1", "server", "", "r1", "PATCH /x", "{}")


def test_entry_is_there_before_its_outcome_which_may_be_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with running(tmp_path) as laurels:
            begun = await laurels.audit_log.begin(ENTRY)
            assert [each.status for each in await laurels.audit_log.entries(AuditFilter(), 10)] == [None]

            async def fail(*_: Any) -> None:
                raise Unavailable("ledger_unavailable", "gone")

            with monkeypatch.context() as patched, capture_logs() as logs:
                patched.setattr(laurels.ledger.audit, "finish", fail)
                await laurels.audit_log.finish(begun)
            assert [line["event"] for line in logs] == ["audit_not_finished"]

    asyncio.run(work())


@pytest.mark.parametrize(("days", "kept"), [(0, 2), (10, 1)])
def test_old_entries_are_forgotten(tmp_path: Path, days: int, kept: int) -> None:
    async def work() -> None:
        async with running(tmp_path, audit_days=days) as laurels:
            await laurels.audit_log.begin(ENTRY)
            laurels.clock.now += 11 * DAY_US  # type: ignore[attr-defined]
            await laurels.audit_log.begin(ENTRY)
            await laurels.jobs.run_due()
            assert len(await laurels.audit_log.entries(AuditFilter(), 10)) == kept

    asyncio.run(work())
