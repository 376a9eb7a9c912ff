"""Runs the Lua scripts on the parts of a ranking, and checks the status of their answers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from laurels.adapters.redis.connection import Answer, RedisConnection, load_scripts
from laurels.adapters.redis.keys import KeyNames
from laurels.adapters.redis.packing import format_viewer
from laurels.core.board import Ranking
from laurels.core.parts import part_of
from laurels.errors import Unavailable


class PartScripts:
    def __init__(self, connection: RedisConnection) -> None:
        self.connection = connection
        self.names = KeyNames("")
        self._scripts = load_scripts()

    def start(self, ledger_id: str) -> None:
        self.names = KeyNames(ledger_id)

    def send(self, ranking: Ranking, part: int, script: str, *args: Any) -> "asyncio.Future[Answer]":
        """Queue a script for a part, and return a future of its answer."""
        keys = self.names.of(ranking)[part]
        chosen = self._scripts[script]
        return self.connection.run(keys.tag, chosen, keys.to_read if chosen.reads else keys.names, args)

    def send_to(self, tag: str, key: bytes, script: str, *args: Any) -> "asyncio.Future[Answer]":
        """Queue a script that uses no ranking, with a key of its own."""
        return self.connection.run(tag, self._scripts[script], (key,), args)

    async def run(self, ranking: Ranking, part: int, script: str, *args: Any) -> Answer:
        """Run a script on a part and return its answer, which begins with a status."""
        return need_master(await self.send(ranking, part, script, *args))

    async def run_on_all(self, ranking: Ranking, script: str, *args: Any) -> list[Answer]:
        """Run a script on every part, and return the answers in order. They share a round trip to each node."""
        sent = [self.send(ranking, part, script, *args) for part in range(ranking.parts)]
        return [need_master(answer) for answer in await all_of(sent)]

    async def read(self, ranking: Ranking, part: int, script: str, *args: Any) -> Answer:
        """Run a script that reads a part; raise Unavailable unless its status is ok."""
        status, *rest = await self.run(ranking, part, script, *args)
        await self._need_ok(ranking, status)
        return rest

    async def look_at_all(self, ranking: Ranking, script: str, *args: Any) -> list[Answer]:
        """Read every part at one moment, with the ranking's segment and viewer.

        The reads share a round trip to each node.
        """
        return await self.look_at(ranking, script, dict.fromkeys(range(ranking.parts), args))

    async def look_at(self, ranking: Ranking, script: str, args: Mapping[int, Sequence[Any]]) -> list[Answer]:
        """Read some parts like `look_at_all`. `args` are the parts, each with its own arguments."""
        sent = [self.send(ranking, part, script, *own, *_view_of(ranking, part)) for part, own in args.items()]
        found = []
        for answer in await all_of(sent):
            status, *rest = need_master(answer)
            await self._need_ok(ranking, status)
            found.append(rest)
        return found

    async def _need_ok(self, ranking: Ranking, status: bytes) -> None:
        """Raise unless a read succeeded. Request a rebuild if it needs dense ranks and the ranking has none."""
        if status == b"sparse":
            await self.run_on_all(ranking, "want_dense")
            raise Unavailable("catching_up", "Dense ranks of this ranking are being built. Try again in a moment.")
        need_ok(status)


async def all_of(sent: "Sequence[asyncio.Future[Answer]]") -> list[Answer]:
    """Return all answers, in order. Raises the first error, after all of them have ended."""
    if len(sent) == 1:
        return [await sent[0]]
    answers = await asyncio.gather(*sent, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers  # type: ignore[return-value] # no exceptions are left


def need_master(answer: Answer) -> Answer:
    if answer[0] == b"replica":
        raise Unavailable("index_unavailable", "This Redis server is now a replica. Try again in a moment.")
    return answer


def need_ok(status: bytes) -> None:
    if status != b"ok":
        raise Unavailable("catching_up", f"This ranking is being repaired or rebuilt ({status.decode()}). Try again.")


def _view_of(ranking: Ranking, part: int) -> tuple[str, str, bytes]:
    """Return the last arguments of a read of a part: it has no capacity, and only the viewer's own part ranks them."""
    viewer = ranking.shadow_viewer
    if viewer is None or part_of(viewer.user_id, ranking.parts) != part:
        return "", ranking.segment, b""
    return "", ranking.segment, format_viewer(ranking, viewer)
