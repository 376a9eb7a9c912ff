"""What people do to scores: hide a user, let events not count, take that back. Each act is written down with who, when
and why.

An act on many events is carried out in steps, each of which leaves ledger and index right; whoever asked waits a moment
for the end of it. An act whose server died is gone on with by another one.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from laurels.core.board import Board, Status
from laurels.core.ids import new_event_id
from laurels.core.instants import SECOND_US
from laurels.core.people import Hidden
from laurels.errors import Busy, Conflict, LaurelsError, NotFound
from laurels.ports import Act, Clock, Ledger, StoredAct, StoredEvent
from laurels.service.access import Caller
from laurels.service.boards import Boards
from laurels.service.follower import Follower
from laurels.tasks import end_tasks

log = structlog.get_logger()

VOID = "void"
RESTORE = "restore"
HIDE = "hide"
SHOW = "show"
REMOVE = "remove"

# Of one step: small, for others wait for the users' rows meanwhile.
STEP_EVENTS = 200
LOOK_AT = 20_000
# So long somebody who asked is kept waiting for the end.
WAIT_S = 5.0
# An act that has not ended after this, and that nobody here works on, lost its server.
LOST_US = 15 * SECOND_US


class Chosen(Struct, omit_defaults=True, rename="camel"):
    """Which events an act is about: by their ids, or all whose metadata have these values."""

    event_ids: list[str] = []
    match: dict[str, str | int | float | bool | None] = {}
    user_id: str | None = None
    # Of a restore: the act that it takes back.
    act: int | None = None


class Moderation:
    def __init__(self, ledger: Ledger, follower: Follower, boards: Boards, clock: Clock) -> None:
        self._ledger = ledger
        self._follower = follower
        self._boards = boards
        self._clock = clock
        self._running: dict[int, asyncio.Task[StoredAct]] = {}

    async def close(self) -> None:
        """Whatever is cut off is gone on with."""
        await end_tasks(self._running.values())

    # Hiding

    async def hide(
        self,
        caller: Caller,
        pod_id: str,
        board: Board | None,
        user_id: str,
        hidden: Hidden,
        reason: str | None,
        token: str | None,
        kind: str | None = None,
    ) -> StoredAct:
        """Leave a user out of the ranks of one board, or of all of a pod; or show one again."""
        self._follower.require_ready()
        kind = kind or (SHOW if hidden is Hidden.NO else HIDE)
        detail = msgspec.json.encode({"hidden": hidden.name.lower()}).decode()
        act = self._act(kind, caller, reason, token, detail, user_id)
        as_of = self._ledger.as_of
        act_id, rows = await self._ledger.people.hide(pod_id, 0 if board is None else board.id, user_id, hidden, act)
        await self._follower.apply(rows, as_of, at_once=True)
        return _same_act(await self.find(pod_id, act_id), act)

    # Events

    async def void(
        self, caller: Caller, board: Board, chosen: Chosen, reason: str | None, token: str | None
    ) -> StoredAct:
        """Let events not count: every score is then what it would be without them."""
        self._follower.require_ready()
        if board.status_at(self._clock.now_us()) is Status.ARCHIVED:
            raise Conflict("board_archived", "An archived board can't be changed.")
        act = self._act(VOID, caller, reason, token, msgspec.json.encode(chosen).decode())
        begun = await self._ledger.people.begin_act(board.pod_id, board.id, chosen.user_id, act)
        return await self._begin(_same_act(begun, act))

    async def restore(self, caller: Caller, pod_id: str, act_id: int, reason: str | None) -> StoredAct:
        """Take an act back."""
        self._follower.require_ready()
        undone = await self.find(pod_id, act_id)
        if undone.undone_by is not None:
            return await self.find(pod_id, undone.undone_by)
        if undone.done_at is None:
            raise Busy("act_running", "This act is still going on. Try again when it is done.")
        board = None if undone.board_id == 0 else self._boards.by_id(undone.board_id)
        if undone.kind == HIDE and undone.user_id is not None:
            before = await self._before_hide(undone)
            token = f"restore/{act_id}"
            shown = await self.hide(caller, pod_id, board, undone.user_id, before, reason, token, SHOW)
            return await self._ledger.people.finish_act(shown, self._clock.now_us(), undoes=undone.id)
        if undone.kind not in {VOID, REMOVE}:
            raise Conflict("act_final", f"What was done by {undone.kind!r} can't be taken back this way.")
        if undone.kind == REMOVE and board is not None and board.pruned_before is not None:
            raise Conflict("events_pruned", "Not all of what it removed is kept any more.")
        detail = msgspec.json.encode(Chosen(act=act_id)).decode()
        act = self._act(RESTORE, caller, reason, f"restore/{act_id}", detail)
        begun = await self._ledger.people.begin_act(pod_id, undone.board_id, undone.user_id, act)
        return await self._begin(begun)

    async def _before_hide(self, undone: StoredAct) -> Hidden:
        """How a user was hidden before an act that is the last one to have hidden them there."""
        before = Hidden.NO
        for act in await self._ledger.people.acts_of_user(undone.pod_id, undone.user_id or ""):
            if act.board_id != undone.board_id or act.undone_by is not None or act.id == undone.id:
                continue
            if act.kind == HIDE and act.id > undone.id:
                raise Conflict("act_final", f"The user was hidden again since, by act {act.id}: take that one back.")
            if act.kind in {HIDE, SHOW} and act.id < undone.id:
                how = msgspec.json.decode(act.detail or "{}", type=dict[str, str]).get("hidden", "no")
                before = Hidden[how.upper()]
        return before

    # Acts

    async def find(self, pod_id: str, act_id: int) -> StoredAct:
        found = await self._ledger.people.find_act(pod_id, act_id)
        if found is None:
            raise NotFound("act_not_found", f"There is no act {act_id}.", field="actId")
        return found

    async def acts(self, pod_id: str, board: Board | None, before: int, limit: int) -> list[StoredAct]:
        return await self._ledger.people.acts(pod_id, None if board is None else board.id, before, limit)

    async def lost_acts(self) -> list[StoredAct]:
        """Those that somebody has to go on with."""
        found = await self._ledger.people.unfinished_acts(self._clock.now_us() - LOST_US)
        return [act for act in found if act.kind in {VOID, RESTORE} and act.id not in self._running]

    async def go_on(self) -> int:
        """Carry out what was left lying; gives how many acts."""
        acts = await self.lost_acts()
        await asyncio.gather(*(self._start(act) for act in acts))
        return len(acts)

    # Inside

    def _act(
        self, kind: str, caller: Caller, reason: str | None, token: str | None, detail: str | None, user_id: str = ""
    ) -> Act:
        now = self._clock.now_us()
        return Act(f"{kind}/{token or new_event_id(now)}/{user_id}", kind, caller.key_id, now, reason, detail)

    async def _begin(self, act: StoredAct) -> StoredAct:
        if act.done_at is not None:
            return act
        task = self._running.get(act.id) or self._start(act)
        done, _ = await asyncio.wait({task}, timeout=WAIT_S)
        # Whatever went wrong is for whoever waited to hear; it is tried again all the same.
        return task.result() if done else await self.find(act.pod_id, act.id)

    def _start(self, act: StoredAct) -> "asyncio.Task[StoredAct]":
        task = asyncio.create_task(self._carry_out(act), name=f"{act.kind} {act.id}")
        self._running[act.id] = task
        task.add_done_callback(lambda done: self._ended(act, done))
        return task

    def _ended(self, act: StoredAct, task: "asyncio.Task[StoredAct]") -> None:
        self._running.pop(act.id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            reason = error.message if isinstance(error, LaurelsError) else repr(error)
            log.warning("act_interrupted", act=act.id, kind=act.kind, reason=reason)

    async def _carry_out(self, act: StoredAct) -> StoredAct:
        people = self._ledger.people
        board = self._boards.by_id(act.board_id)
        chosen = msgspec.json.decode(act.detail or "{}", type=Chosen)
        if act.kind == VOID:
            async for events in self._chosen_events(board, act, chosen):
                as_of = self._ledger.as_of
                touched = await people.void(board, act, [event.seq for event in events])
                await self._follower.apply(touched.rows, as_of, at_once=True)
            return await people.finish_act(act, self._clock.now_us())
        undone = await self.find(act.pod_id, chosen.act or 0)
        while events := await people.voided_by(undone.id, STEP_EVENTS):
            as_of = self._ledger.as_of
            touched = await people.restore(board, undone, act, [event.seq for event in events])
            await self._follower.apply(touched.rows, as_of, at_once=True)
        return await people.finish_act(act, self._clock.now_us(), undoes=undone.id)

    async def _chosen_events(
        self, board: Board, act: StoredAct, chosen: Chosen
    ) -> AsyncIterator[Sequence[StoredEvent]]:
        """Those that count, a step at a time."""
        if not chosen.event_ids and not chosen.match:
            return
        if chosen.event_ids:
            events = await self._ledger.people.events_by_id(board.id, chosen.event_ids)
            for step in _steps([event for event in events if not event.voided]):
                yield step
            return
        texts = _texts(chosen.match)
        after: int | None = 0
        while after is not None:
            found, after = await self._ledger.people.events_like(board.id, texts, after, act.at + 1, LOOK_AT)
            for step in _steps([event for event in found if not event.voided and _fits(event, chosen)]):
                yield step
            await asyncio.sleep(0)


def _same_act(stored: StoredAct, act: Act) -> StoredAct:
    """An act that was done before under the same key has to be the same."""
    if (stored.kind, stored.detail) != (act.kind, act.detail):
        raise Conflict(
            "act_conflict",
            f"The Idempotency-Key was used before for something else: act {stored.id}. That one stays.",
            field="Idempotency-Key",
        )
    return stored


def _steps(events: Sequence[StoredEvent]) -> list[Sequence[StoredEvent]]:
    return [events[start : start + STEP_EVENTS] for start in range(0, len(events), STEP_EVENTS)]


def _texts(match: Mapping[str, Any]) -> list[str]:
    """What stands in the canonical text of metadata that may fit. A number may be spelled in two ways."""
    texts = []
    for key, value in match.items():
        spelled = msgspec.json.encode(value).decode() if isinstance(value, str | bool | None) else ""
        texts.append(f"{msgspec.json.encode(key).decode()}:{spelled}")
    return texts


def _fits(event: StoredEvent, chosen: Chosen) -> bool:
    if chosen.user_id is not None and event.user_id != chosen.user_id:
        return False
    metadata = msgspec.json.decode(event.metadata or "{}", type=dict[str, Any])
    return all(key in metadata and _same(metadata[key], value) for key, value in chosen.match.items())


def _same(one: Any, other: Any) -> bool:
    """True is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
