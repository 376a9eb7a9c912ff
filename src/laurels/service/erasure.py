"""Everything about a person in one file, and its erasure.

Erasing takes a user out of rankings that go on, as if they had never played: the ranks of the others close up. Final
ranks, events and grants stay for the sake of everybody else's, under a name that says nothing. What is kept of the
user's own name is a digest, by which events of an earlier time are refused, however they come again.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from laurels.core.board import Board
from laurels.core.ids import new_event_id
from laurels.core.instants import SECOND_US, to_datetime
from laurels.errors import Busy
from laurels.ports import Act, Clock, Index, Ledger, StoredAct
from laurels.service.access import Caller
from laurels.service.boards import Boards
from laurels.service.follower import Follower
from laurels.service.freezing import grant_id
from laurels.service.people import People

ERASE = "erase"
# Until then a row of an erased user may still be on its way to the index; a buffered board keeps it for a minute.
SWEEP_AFTER_US = 180 * SECOND_US
# While final ranks are being written.
TRIES = 50
TRY_EVERY_S = 0.2
PAGE = 1000


class Erasures:
    def __init__(
        self, ledger: Ledger, index: Index, follower: Follower, boards: Boards, people: People, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._follower = follower
        self._boards = boards
        self._people = people
        self._clock = clock

    async def erase(
        self, caller: Caller, pod_id: str, user_id: str, reason: str | None, token: str | None
    ) -> StoredAct:
        """Take a user out of everything that is kept of a pod. It can't be taken back."""
        self._follower.require_ready()
        now = self._clock.now_us()
        # Nothing that follows from the user, so that nobody can tell whose it was.
        stand_in = f"erased-{new_event_id(now)}"
        # The key with the user, as a digest: another user is another act, and the name must not stay.
        key = stand_in if token is None else hashlib.sha256(f"{token}/{user_id}".encode()).hexdigest()[:32]
        act = Act(f"{ERASE}/{key}", ERASE, caller.key_id, now, reason)
        for _ in range(TRIES):
            as_of = self._ledger.as_of
            rows = await self._ledger.people.erase(pod_id, user_id, stand_in, act)
            if rows is not None:
                await self._follower.apply(rows, as_of, at_once=True)
                await self._people.tell(pod_id, [user_id])
                return await self._ledger.people.begin_act(pod_id, 0, stand_in, act)
            await asyncio.sleep(TRY_EVERY_S)
        raise Busy(
            "freeze_running",
            "Final ranks of this pod are being written, or an act is going on. Try again when that is done.",
        )

    async def is_unswept(self) -> bool:
        return bool(await self._ledger.people.unswept_erasures(self._clock.now_us() - SWEEP_AFTER_US))

    async def sweep(self) -> int:
        """Remove the last traces of users who were erased a while ago; gives how many users."""
        erasures = await self._ledger.people.unswept_erasures(self._clock.now_us() - SWEEP_AFTER_US)
        # Known before the first is forgotten: a row that is still on its way, however late, is read again then.
        floor = await self._ledger.people.note_forgotten() if erasures else 0
        await self._ledger.read_as_of()
        users: dict[str, list[str]] = {}
        for erasure in erasures:
            users.setdefault(erasure.pod_id, []).append(erasure.user_id)
        for board in self._boards.all():
            for period in board.periods if board.pod_id in users else ():
                # All at once: a build under way begins anew for it.
                await self._index.forget(board.ranking(period.id), users[board.pod_id], floor)
        for erasure in erasures:
            await self._ledger.people.sweep_erasure(erasure)
        return len(erasures)

    async def export(self, pod_id: str, user_id: str) -> AsyncIterator[dict[str, Any]]:
        """Everything that a pod's boards and profiles say of a user, one thing at a time."""
        people = self._ledger.people
        for profile in await people.profiles(pod_id, [user_id]):
            yield {
                "kind": "profile",
                "userId": user_id,
                "displayName": profile.display_name,
                "avatarUrl": profile.avatar_url,
                "region": profile.region,
                "circles": profile.circles,
            }
        boards = {board.id: board for board in self._boards.all() if board.pod_id == pod_id}
        for board_id, hidden in (await people.hides(pod_id, user_id)).items():
            uuid = None if board_id == 0 else boards[board_id].uuid
            yield {"kind": "hidden", "UUID": uuid, "hidden": hidden.name.lower()}
        for board in boards.values():
            async for line in self._scores(board, user_id):
                yield line
            async for line in self._events(board, user_id):
                yield line
        async for line in self._results(boards, user_id):
            yield line
        async for line in self._rewards(boards, user_id):
            yield line
        for act in await people.acts_of_user(pod_id, user_id):
            yield {
                "kind": "act",
                "actId": str(act.id),
                "UUID": None if act.board_id == 0 else boards[act.board_id].uuid,
                "act": act.kind,
                "at": to_datetime(act.at),
                "reason": act.reason,
            }

    async def _scores(self, board: Board, user_id: str) -> AsyncIterator[dict[str, Any]]:
        periods = {period.id: period for period in board.periods}
        for row in await self._ledger.rows_of_user(list(periods), user_id):
            if row.standing is not None:
                period = periods[row.period_id]
                yield {
                    "kind": "score",
                    "UUID": board.uuid,
                    "window": period.window,
                    "period": period.name,
                    "score": row.standing.score,
                    "timestamp": to_datetime(row.standing.achieved_at),
                    "segments": row.segments,
                }

    async def _results(self, boards: dict[int, Board], user_id: str) -> AsyncIterator[dict[str, Any]]:
        after = (0, "")
        while results := await self._ledger.seasons.finals_of_user(list(boards), user_id, after, PAGE):
            for board_id, period, final in ((each.board_id, each.period, each.final) for each in results):
                yield {
                    "kind": "result",
                    "UUID": boards[board_id].uuid,
                    "window": period.window,
                    "period": period.name,
                    "segment": final.segment,
                    "rank": final.rank(boards[board_id].rank_style),
                    "score": final.score,
                    "timestamp": to_datetime(final.achieved_at),
                }
            after = (results[-1].period.id, results[-1].final.segment)

    async def _events(self, board: Board, user_id: str) -> AsyncIterator[dict[str, Any]]:
        before: int | None = None
        while events := await self._ledger.user_events(board.id, user_id, before_seq=before, limit=PAGE):
            for event in events:
                yield {
                    "kind": "event",
                    "UUID": board.uuid,
                    "eventId": event.event_id,
                    "score": event.score,
                    "timestamp": to_datetime(event.at),
                    "receivedAt": to_datetime(event.received_at),
                    "voided": event.voided,
                    "metadata": None if event.metadata is None else msgspec.Raw(event.metadata.encode()),
                }
            before = events[-1].seq

    async def _rewards(self, boards: dict[int, Board], user_id: str) -> AsyncIterator[dict[str, Any]]:
        before: tuple[int, int, str] | None = None
        while granted := await self._ledger.seasons.grants_of_user(list(boards), user_id, before, PAGE, withdrawn=True):
            for board_id, period, grant in granted:
                yield {
                    "kind": "reward",
                    "rewardId": grant_id(grant),
                    "UUID": boards[board_id].uuid,
                    "window": period.window,
                    "period": period.name,
                    "reward": grant.reward,
                    "rank": grant.rank,
                    "prize": msgspec.Raw(grant.prize.encode()),
                    "withdrawn": period.is_replaced,
                    "claimedAt": None if grant.claimed_at is None else to_datetime(grant.claimed_at),
                }
            _, period, grant = granted[-1]
            before = (period.frozen_at or 0, period.id, grant.reward)
