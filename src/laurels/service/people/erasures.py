"""Export and erasure of a user's data.

Erasure removes a user from the rankings of open periods as if they had never played: the users below move up. Final
ranks, events and grants stay under a pseudonym, because the ranks of other users depend on them. The ledger keeps a
digest of the user id to refuse events from before the erasure if they are sent again.
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
from laurels.ports import Clock, Erasure, Index, Ledger, ModerationAction, StoredAction
from laurels.service.boards.boards import Boards
from laurels.service.boards.caller import Caller
from laurels.service.index.updater import IndexUpdater
from laurels.service.people.profiles import Profiles
from laurels.service.seasons.freezer import grant_id

ERASE = "erase"
# By then no row of an erased user is on its way to the index; a buffered board holds rows for up to a minute.
SWEEP_AFTER_US = 180 * SECOND_US
# For how long the traces of erased users may wait for builds.
WAIT_FOR_BUILDS_US = 6 * 3600 * SECOND_US
# Retries while a freeze or another moderation action blocks the erasure.
TRIES = 50
TRY_EVERY_S = 0.2
PAGE = 1000


class Erasures:
    def __init__(
        self, ledger: Ledger, index: Index, updater: IndexUpdater, boards: Boards, people: Profiles, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._updater = updater
        self._boards = boards
        self._profiles = people
        self._clock = clock

    async def erase(
        self, caller: Caller, pod_id: str, user_id: str, reason: str | None, token: str | None
    ) -> StoredAction:
        """Remove a user's data from a pod.

        It can't be undone. Waits up to `TRIES * TRY_EVERY_S` seconds for a freeze or a moderation action to end, then
        raises Busy.
        """
        self._updater.require_ready()
        now = self._clock.now_us()
        # Not derived from the user id, so that it can't be traced back to the user.
        stand_in = f"erased-{new_event_id(now)}"
        # A digest, because the user id must not be stored; with the user id, so that each user is another action.
        key = stand_in if token is None else hashlib.sha256(f"{token}/{user_id}".encode()).hexdigest()[:32]
        act = ModerationAction(f"{ERASE}/{key}", ERASE, caller.key_id, now, reason)
        for _ in range(TRIES):
            as_of = self._ledger.as_of
            rows = await self._ledger.profiles.erase(pod_id, user_id, stand_in, act)
            if rows is not None:
                await self._updater.apply(rows, as_of, at_once=True)
                await self._profiles.tell(pod_id, [user_id])
                return await self._ledger.profiles.begin_action(pod_id, 0, stand_in, act)
            await asyncio.sleep(TRY_EVERY_S)
        raise Busy(
            "freeze_running",
            "A period of this pod is being frozen, or an act is running. Try again when it is done.",
        )

    async def is_unswept(self) -> bool:
        return bool(await self._ledger.profiles.unswept_erasures(self._clock.now_us() - SWEEP_AFTER_US))

    async def sweep(self) -> int:
        """Remove the last traces of users that were erased, and return how many users.

        Traces are kept for `SWEEP_AFTER_US` after the erasure, and while rankings of the pod are being built, because
        forgetting a user restarts a build.
        """
        erasures = await self._sweepable()
        # Set the floor first: an older row that reaches the index later is read again from the ledger.
        floor = await self._ledger.profiles.note_forgotten() if erasures else 0
        await self._ledger.read_as_of()
        users: dict[str, list[str]] = {}
        for erasure in erasures:
            users.setdefault(erasure.pod_id, []).append(erasure.user_id)
        for board in self._boards.all():
            for period in board.periods if board.pod_id in users else ():
                for ranking in board.rankings(period.id):
                    # One call for all users, because it restarts a build in progress.
                    await self._index.forget(ranking, users[board.pod_id], floor)
        for erasure in erasures:
            await self._ledger.profiles.sweep_erasure(erasure)
        return len(erasures)

    async def _sweepable(self) -> list[Erasure]:
        now = self._clock.now_us()
        due = await self._ledger.profiles.unswept_erasures(now - SWEEP_AFTER_US)
        if not due:
            return []
        late = await self._ledger.profiles.unswept_erasures(now - WAIT_FOR_BUILDS_US)
        pods = {each.pod_id for each in due}
        building = {
            board.pod_id
            for board in self._boards.all()
            if board.pod_id in pods
            for states in await self._index.states(
                [ranking for period in board.periods for ranking in board.rankings(period.id)]
            )
            if any(state.loaded is not None for state in states)
        }
        return [each for each in due if each.pod_id not in building or each in late]

    async def export(self, pod_id: str, user_id: str) -> AsyncIterator[dict[str, Any]]:
        """Yield everything that a pod stores about a user, one JSON object at a time."""
        people = self._ledger.profiles
        for profile in await people.profiles(pod_id, [user_id]):
            yield {
                "kind": "profile",
                "userId": user_id,
                "displayName": profile.display_name,
                "avatarUrl": profile.avatar_url,
                "region": profile.region,
                "circles": profile.circles,
                "attributes": None if profile.attributes is None else msgspec.json.decode(profile.attributes),
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
        for act in await people.actions_of_user(pod_id, user_id):
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
                    **({} if board.subscore is None else {"subscore": row.standing.subscore}),
                    "timestamp": to_datetime(row.standing.achieved_at),
                    "segments": row.segments,
                }

    async def _results(self, boards: dict[int, Board], user_id: str) -> AsyncIterator[dict[str, Any]]:
        after = (0, "")
        while results := await self._ledger.periods.finals_of_user(list(boards), user_id, after, PAGE):
            for board_id, period, final in ((each.board_id, each.period, each.final) for each in results):
                yield {
                    "kind": "result",
                    "UUID": boards[board_id].uuid,
                    "window": period.window,
                    "period": period.name,
                    "segment": final.segment,
                    "rank": final.rank(boards[board_id].rank_style),
                    "score": final.score,
                    **({} if boards[board_id].subscore is None else {"subscore": final.subscore}),
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
                    **({} if board.subscore is None else {"subscore": event.subscore}),
                    **({} if event.operation is None else {"operation": event.operation}),
                    "timestamp": to_datetime(event.at),
                    "receivedAt": to_datetime(event.received_at),
                    "voided": event.voided,
                    "metadata": None if event.metadata is None else msgspec.Raw(event.metadata.encode()),
                }
            before = events[-1].seq

    async def _rewards(self, boards: dict[int, Board], user_id: str) -> AsyncIterator[dict[str, Any]]:
        before: tuple[int, int, str] | None = None
        while granted := await self._ledger.periods.grants_of_user(list(boards), user_id, before, PAGE, withdrawn=True):
            for board_id, period, grant in granted:
                yield {
                    "kind": "reward",
                    "rewardId": grant_id(grant),
                    "UUID": boards[board_id].uuid,
                    "window": period.window,
                    "period": period.name,
                    "reward": grant.reward,
                    "rank": grant.rank,
                    "segment": grant.segment,
                    "prize": msgspec.Raw(grant.prize.encode()),
                    "withdrawn": period.is_replaced,
                    "claimedAt": None if grant.claimed_at is None else to_datetime(grant.claimed_at),
                }
            _, period, grant = granted[-1]
            before = (period.frozen_at or 0, period.id, grant.reward)
