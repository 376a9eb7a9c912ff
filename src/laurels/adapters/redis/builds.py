"""A build: fills new generations of a ranking's parts from the ledger's rows, then replaces the live ones with them."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence

from laurels.adapters.redis.connection import Answer
from laurels.adapters.redis.packing import head_bytes, pack_rows
from laurels.adapters.redis.part_scripts import PartScripts, need_ok
from laurels.core.board import Ranking
from laurels.core.parts import part_of
from laurels.errors import Unavailable
from laurels.ports import IndexState, Position, Row
from laurels.tasks import end_tasks

# Rows per script, because Redis runs one script at a time; and how many scripts run at the same time.
ROWS = 1000
AT_ONCE = 4
# The lease of a builder. Each script extends that of its part, so every part gets one at least this often.
LEASE_MS = 10_000
SEND_EVERY_S = 2.0
# For how long, and how often, rows are sent again while Redis can't be reached. Shorter than the lease.
RETRY_S = 6.0
RETRY_EVERY_S = 0.3


class Build:
    """A build of some or all parts of a ranking. `replacing`: the states of the parts to replace; None: all parts."""

    def __init__(
        self, scripts: PartScripts, ranking: Ranking, position: Position, replacing: Sequence[IndexState] | None
    ) -> None:
        self._scripts = scripts
        self._ranking = ranking
        self._position = position
        self._id = secrets.token_hex(8)
        self._replaced = (
            dict.fromkeys(range(ranking.parts), "any")
            if replacing is None
            else {state.part: state.generation for state in replacing}
        )
        # The rows that wait to be sent to each part.
        self._rows: dict[int, list[Row]] = {part: [] for part in self._replaced}
        self._sending: set[asyncio.Task[Answer]] = set()

    async def run(self, rows: AsyncIterator[list[Row]]) -> None:
        begun: list[int] = []
        try:
            for part, generation in self._replaced.items():
                begun.append(part)
                await self._begin(part, generation)
            await self._load(rows)
            for part in self._replaced:
                await self._finish(part)
        except BaseException:
            await asyncio.gather(*map(self._give_up, begun))
            raise

    async def _begin(self, part: int, generation: str) -> None:
        position = self._position
        status, *_ = await self._scripts.run(
            self._ranking,
            part,
            "begin_build",
            self._id,
            LEASE_MS,
            generation,
            position.history,
            position.floor,
            head_bytes(self._ranking),
        )
        if status == b"busy":
            raise Unavailable("build_running", "Another server is building this ranking, or has just built it.")
        need_ok(status)

    async def _load(self, rows: AsyncIterator[list[Row]]) -> None:
        try:
            sent_at = time.monotonic()
            async for chunk in rows:
                self._share_out(chunk)
                is_due = time.monotonic() > sent_at + SEND_EVERY_S
                for part, waiting in self._rows.items():
                    while len(waiting) >= ROWS or is_due:
                        await self._send(part, waiting[:ROWS])
                        del waiting[:ROWS]
                        if not waiting:
                            break
                if is_due:
                    sent_at = time.monotonic()
            for part, waiting in self._rows.items():
                for start in range(0, len(waiting), ROWS):
                    await self._send(part, waiting[start : start + ROWS])
            if self._sending:
                done, self._sending = await asyncio.wait(self._sending)
                _need_built(done)
        finally:
            await end_tasks(self._sending)

    def _share_out(self, chunk: Iterable[Row]) -> None:
        parts = self._ranking.parts
        if parts == 1:
            self._rows[0] += chunk
            return
        for row in chunk:
            waiting = self._rows.get(part_of(row.user_id, parts))
            if waiting is not None:
                waiting.append(row)

    async def _send(self, part: int, rows: Sequence[Row]) -> None:
        self._sending.add(asyncio.create_task(self._add(part, pack_rows(self._ranking, rows))))
        if len(self._sending) >= AT_ONCE:
            done, self._sending = await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
            _need_built(done)

    async def _add(self, part: int, packed: tuple[bytes, bytes]) -> Answer:
        """Add rows to a part. Repeated while Redis is away for a short time, because a build can take minutes."""
        end = time.monotonic() + RETRY_S
        while True:
            try:
                return await self._scripts.run(self._ranking, part, "build", self._id, LEASE_MS, *packed)
            except Unavailable as error:
                if error.code != "index_unavailable" or time.monotonic() > end:
                    raise
                await asyncio.sleep(RETRY_EVERY_S)

    async def _finish(self, part: int) -> None:
        channel = self._scripts.names.of(self._ranking)[part].channel
        publish = self._scripts.connection.publish_command
        status, *_ = await self._scripts.run(
            self._ranking, part, "finish_build", self._id, self._position.text, channel, publish
        )
        need_ok(status)

    async def _give_up(self, part: int) -> None:
        try:
            await self._scripts.run(self._ranking, part, "give_up_build", self._id)
        except Unavailable:
            return  # the lease expires


def _need_built(done: "Iterable[asyncio.Task[Answer]]") -> None:
    for task in done:
        need_ok(task.result()[0])
