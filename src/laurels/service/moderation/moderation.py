"""Moderation: hide users, void events, and undo both.

The audit log stores each action with who did it, when and why. An action on many events runs in steps, and ledger and
index are correct after each step. The caller waits up to `WAIT_S` seconds for the action to finish. If its server dies,
another server continues the action.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from laurels.core.board import Board, Status
from laurels.core.ids import new_event_id
from laurels.core.instants import SECOND_US
from laurels.core.people import Hidden
from laurels.core.reviews import is_same
from laurels.core.scores import Standing
from laurels.core.windows import Period
from laurels.errors import Busy, Conflict, LaurelsError, NotFound
from laurels.ports import Clock, Ledger, ModerationAction, StoredAction, StoredEvent
from laurels.service.boards.boards import Boards
from laurels.service.boards.caller import Caller
from laurels.service.index.updater import IndexUpdater
from laurels.service.write.review_gate import REVIEW
from laurels.tasks import end_tasks

log = structlog.get_logger()

VOID = "void"
RESTORE = "restore"
# Decides that a score on a review list never counts.
REJECT = "reject"
HIDE = "hide"
SHOW = "show"
REMOVE = "remove"

# Events per step. Small, because other writes of the same users wait for the step.
STEP_EVENTS = 200
LOOK_AT = 20_000
# A preview of a void names this many events and users, and reads this many events of each of these users.
PREVIEWED_EVENTS = 100
PREVIEWED_USERS = 20
PREVIEWED_HISTORY = 10_000
# How long a caller waits for an action to finish.
WAIT_S = 5.0
# An action that is unfinished after this time and not running here has lost its server.
LOST_US = 15 * SECOND_US


class EventFilter(Struct, omit_defaults=True, rename="camel"):
    """The events that an action applies to: by event id, or all whose metadata have these values."""

    event_ids: list[str] = []
    match: dict[str, str | int | float | bool | None] = {}
    user_id: str | None = None
    # Of a restore: the action that it undoes.
    act: int | None = None


class ScorePreview(Struct, frozen=True):
    """A user's score now and after a void. `is_known` False: too many events to tell the score after it."""

    user_id: str
    score: float | None
    after: float | None
    is_known: bool


class VoidPreview(Struct, frozen=True):
    """What a void would do. `is_complete` False: there may be more events."""

    events: int
    users: int
    is_complete: bool
    sample: list[StoredEvent]
    scores: list[ScorePreview]


class Moderation:
    def __init__(self, ledger: Ledger, updater: IndexUpdater, boards: Boards, clock: Clock) -> None:
        self._ledger = ledger
        self._updater = updater
        self._boards = boards
        self._clock = clock
        self._running: dict[int, asyncio.Task[StoredAction]] = {}

    async def close(self) -> None:
        """Stop the running actions; the moderation job of a running server continues them."""
        await end_tasks(self._running.values())

    # Users

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
    ) -> StoredAction:
        """Hide a user on one board or on all boards of a pod, or show the user again.

        `board` None means all boards. Idempotent by `token`.
        """
        self._updater.require_ready()
        kind = kind or (SHOW if hidden is Hidden.NO else HIDE)
        detail = msgspec.json.encode({"hidden": hidden.name.lower()}).decode()
        act = self._act(kind, caller, reason, token, detail, user_id)
        as_of = self._ledger.as_of
        act_id, rows = await self._ledger.profiles.hide(pod_id, 0 if board is None else board.id, user_id, hidden, act)
        await self._updater.apply(rows, as_of, at_once=True)
        return _same_action(await self.find(pod_id, act_id), act)

    # Events

    async def void(
        self, caller: Caller, board: Board, chosen: EventFilter, reason: str | None, token: str | None
    ) -> StoredAction:
        """Void events: every score becomes what it would be without them.

        Returns the action, which may still be running after `WAIT_S` seconds. Idempotent by `token`.
        """
        self._updater.require_ready()
        if board.status_at(self._clock.now_us()) is Status.ARCHIVED:
            raise Conflict("board_archived", "An archived board can't be changed.")
        act = self._act(VOID, caller, reason, token, msgspec.json.encode(chosen).decode())
        begun = await self._ledger.profiles.begin_action(board.pod_id, board.id, chosen.user_id, act)
        return await self._begin(_same_action(begun, act))

    async def preview_void(self, board: Board, chosen: EventFilter) -> VoidPreview:
        """Return which events a void would void, and how the scores of the first users would change.

        Changes nothing. Stops looking after `WAIT_S` seconds.
        """
        self._updater.require_ready()
        now = self._clock.now_us()
        ends = time.monotonic() + WAIT_S
        events: dict[str, list[int]] = {}
        sample: list[StoredEvent] = []
        complete = True
        async for step in self._chosen_events(board, now, chosen):
            for event in step:
                events.setdefault(event.user_id, []).append(event.seq)
            sample += step[: PREVIEWED_EVENTS - len(sample)]
            if time.monotonic() > ends:
                complete = False
                break
        period = board.current_period(board.windows[0].name, now)
        changes = []
        if complete and period is not None:
            for user_id, seqs in list(events.items())[:PREVIEWED_USERS]:
                changes.append(await self._preview_score(board, period, user_id, set(seqs)))
        return VoidPreview(sum(map(len, events.values())), len(events), complete, sample, changes)

    async def _preview_score(self, board: Board, period: Period, user_id: str, without: Container[int]) -> ScorePreview:
        """Return a user's score in a period now, and as it would be without some events."""
        rows = await self._ledger.rows_of_users(period.id, [user_id])
        now = next((row.standing.score for row in rows if row.standing is not None), None)
        events = await self._ledger.user_events(board.id, user_id, before_seq=None, limit=PREVIEWED_HISTORY)
        if len(events) == PREVIEWED_HISTORY or board.pruned_before is not None:
            return ScorePreview(user_id, now, None, is_known=False)
        left: Standing | None = None
        if board.operations:
            events = sorted(events, key=lambda event: (event.at, event.event_id.encode()))
        for event in events:
            if not event.voided and event.seq not in without and period.contains(event.at):
                left = board.fold(left, event.score, event.at, event.subscore, event.operation)
        return ScorePreview(user_id, now, None if left is None else left.score, is_known=True)

    async def restore(self, caller: Caller, pod_id: str, act_id: int, reason: str | None) -> StoredAction:
        """Undo an action: restore its voided events, or show the user that it hid.

        Returns the action that undoes it, also if that happened before. Raises Busy while the action is running, and
        Conflict if it can't be undone.
        """
        self._updater.require_ready()
        undone = await self.find(pod_id, act_id)
        if undone.undone_by is not None:
            return await self.find(pod_id, undone.undone_by)
        if undone.done_at is None:
            raise Busy("act_running", "This act is still running. Try again when it is done.")
        board = None if undone.board_id == 0 else self._boards.by_id(undone.board_id)
        if undone.kind == HIDE and undone.user_id is not None:
            before = await self._before_hide(undone)
            token = f"restore/{act_id}"
            shown = await self.hide(caller, pod_id, board, undone.user_id, before, reason, token, SHOW)
            return await self._ledger.profiles.finish_action(shown, self._clock.now_us(), undoes=undone.id)
        if undone.kind not in {VOID, REMOVE, REVIEW}:
            raise Conflict("act_final", f"An act of kind {undone.kind!r} can't be reverted.")
        if undone.kind == REMOVE and board is not None and board.pruned_before is not None:
            raise Conflict(
                "events_pruned", "Some events that this act removed are no longer kept, so it can't be reverted."
            )
        detail = msgspec.json.encode(EventFilter(act=act_id)).decode()
        now = self._clock.now_us()
        act = ModerationAction(restore_id(act_id), RESTORE, caller.key_id, now, reason, detail)
        begun = await self._ledger.profiles.begin_action(pod_id, undone.board_id, undone.user_id, act)
        if begun.kind != RESTORE:
            raise decided_already(act_id)
        return await self._begin(begun)

    async def _before_hide(self, undone: StoredAction) -> Hidden:
        """Return how a user was hidden before an action.

        Raises Conflict if a later action hid the user again on the same board.
        """
        before = Hidden.NO
        for act in await self._ledger.profiles.actions_of_user(undone.pod_id, undone.user_id or ""):
            if act.board_id != undone.board_id or act.undone_by is not None or act.id == undone.id:
                continue
            if act.kind == HIDE and act.id > undone.id:
                raise Conflict("act_final", f"Act {act.id} hid the user again later. Restore that act first.")
            if act.kind in {HIDE, SHOW} and act.id < undone.id:
                how = msgspec.json.decode(act.detail or "{}", type=dict[str, str]).get("hidden", "no")
                before = Hidden[how.upper()]
        return before

    # Actions

    async def find(self, pod_id: str, act_id: int) -> StoredAction:
        found = await self._ledger.profiles.find_action(pod_id, act_id)
        if found is None:
            raise NotFound("act_not_found", f"There is no act {act_id}.", field="actId")
        return found

    async def actions(self, pod_id: str, board: Board | None, before: int, limit: int) -> list[StoredAction]:
        return await self._ledger.profiles.actions(pod_id, None if board is None else board.id, before, limit)

    async def lost_actions(self) -> list[StoredAction]:
        """Return the unfinished voids, restores and rejections that have lost their server."""
        found = await self._ledger.profiles.unfinished_actions(self._clock.now_us() - LOST_US)
        return [act for act in found if act.kind in {VOID, RESTORE, REJECT} and act.id not in self._running]

    async def go_on(self) -> int:
        """Continue the lost actions, wait for them and return how many there were."""
        acts = await self.lost_actions()
        await asyncio.gather(*(self._start(act) for act in acts))
        return len(acts)

    # Internals

    def _act(
        self, kind: str, caller: Caller, reason: str | None, token: str | None, detail: str | None, user_id: str = ""
    ) -> ModerationAction:
        now = self._clock.now_us()
        return ModerationAction(
            f"{kind}/{token or new_event_id(now)}/{user_id}", kind, caller.key_id, now, reason, detail
        )

    async def _begin(self, act: StoredAction) -> StoredAction:
        if act.done_at is not None:
            return act
        task = self._running.get(act.id) or self._start(act)
        done, _ = await asyncio.wait({task}, timeout=WAIT_S)
        # Raises the error of a failed action to its caller; the moderation job retries the action.
        return task.result() if done else await self.find(act.pod_id, act.id)

    def _start(self, act: StoredAction) -> "asyncio.Task[StoredAction]":
        task = asyncio.create_task(self._carry_out(act), name=f"{act.kind} {act.id}")
        self._running[act.id] = task
        task.add_done_callback(lambda done: self._ended(act, done))
        return task

    def _ended(self, act: StoredAction, task: "asyncio.Task[StoredAction]") -> None:
        self._running.pop(act.id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            reason = error.message if isinstance(error, LaurelsError) else repr(error)
            log.warning("act_interrupted", act=act.id, kind=act.kind, reason=reason)

    async def _carry_out(self, act: StoredAction) -> StoredAction:
        people = self._ledger.profiles
        board = self._boards.by_id(act.board_id)
        chosen = msgspec.json.decode(act.detail or "{}", type=EventFilter)
        if act.kind == VOID:
            async for events in self._chosen_events(board, act.at, chosen):
                as_of = self._ledger.as_of
                if not events:
                    continue
                touched = await people.void(board, act, [event.seq for event in events])
                await self._updater.apply(touched.rows, as_of, at_once=True)
            return await people.finish_action(act, self._clock.now_us())
        undone = await self.find(act.pod_id, chosen.act or 0)
        if act.kind == REJECT:
            return await people.finish_action(act, self._clock.now_us(), undoes=undone.id)
        while events := await people.voided_by(undone.id, STEP_EVENTS):
            as_of = self._ledger.as_of
            touched = await people.restore(board, undone, act, [event.seq for event in events])
            await self._updater.apply(touched.rows, as_of, at_once=True)
        return await people.finish_action(act, self._clock.now_us(), undoes=undone.id)

    async def _chosen_events(self, board: Board, at: int, chosen: EventFilter) -> AsyncIterator[Sequence[StoredEvent]]:
        """Yield the chosen events that are not void and were received up to an instant, one step at a time."""
        if not chosen.event_ids and not chosen.match:
            return
        if chosen.event_ids:
            events = await self._ledger.profiles.events_by_id(board.id, chosen.event_ids)
            for step in _steps([event for event in events if not event.voided]):
                yield step
            return
        texts = _texts(chosen.match)
        after: int | None = 0
        while after is not None:
            found, after = await self._ledger.profiles.events_like(board.id, texts, after, at + 1, LOOK_AT)
            if not found:
                # So that the caller can give up between two looks.
                yield []
            for step in _steps([event for event in found if not event.voided and _fits(event, chosen)]):
                yield step
            await asyncio.sleep(0)


def restore_id(act_id: int) -> str:
    """Return the action id of the one action that undoes another one, or decides about it."""
    return f"{RESTORE}/restore/{act_id}/"


def decided_already(review_id: int) -> Conflict:
    return Conflict("review_decided", f"Somebody has decided about the score of review {review_id} already.")


def _same_action(stored: StoredAction, act: ModerationAction) -> StoredAction:
    """Return the stored action, or raise Conflict if its key was used for a different one."""
    if (stored.kind, stored.detail) != (act.kind, act.detail):
        raise Conflict(
            "act_conflict",
            f"The Idempotency-Key was used before for a different act: {stored.id}. Use another key.",
            field="Idempotency-Key",
        )
    return stored


def _steps(events: Sequence[StoredEvent]) -> list[Sequence[StoredEvent]]:
    return [events[start : start + STEP_EVENTS] for start in range(0, len(events), STEP_EVENTS)]


def _texts(match: Mapping[str, Any]) -> list[str]:
    """Return the texts that the canonical JSON of matching metadata contains.

    For a number only the key, because a number can be spelled in two ways.
    """
    texts = []
    for key, value in match.items():
        spelled = msgspec.json.encode(value).decode() if isinstance(value, str | bool | None) else ""
        texts.append(f"{msgspec.json.encode(key).decode()}:{spelled}")
    return texts


def _fits(event: StoredEvent, chosen: EventFilter) -> bool:
    if chosen.user_id is not None and event.user_id != chosen.user_id:
        return False
    metadata = msgspec.json.decode(event.metadata or "{}", type=dict[str, Any])
    return all(key in metadata and is_same(metadata[key], value) for key, value in chosen.match.items())
