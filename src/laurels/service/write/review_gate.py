"""The review gate: scores that a board's rules find suspicious wait for a moderator.

Such a score is stored like any other, with its id and its time, but void by an action of kind `review`. So it is never
lost or counted twice, and accepting it (service/moderation/reviews.py) is the restore of that action.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.core.reviews import ReviewRule, is_caught, rises
from laurels.errors import Stale, Unavailable
from laurels.ports import Clock, Event, Ledger, ModerationAction, RecordOutcome
from laurels.service.boards.boards import Boards

REVIEW = "review"
# Who stored the action: no key, but the rules of the board.
BY_RULES = "rules"
# How many events of a user a rule about rises looks at.
LOOK_BACK = 200
ATTEMPTS = 20


class Held(msgspec.Struct, rename="camel"):
    """What the review list shows of a score: the detail of its action."""

    event_id: str
    score: float
    at: int
    rule: str
    metadata: dict[str, Any] | None = None


class ReviewGate:
    def __init__(self, ledger: Ledger, boards: Boards, clock: Clock) -> None:
        self._ledger = ledger
        self._boards = boards
        self._clock = clock

    async def caught(self, board: Board, events: Sequence[Event]) -> dict[int, ReviewRule]:
        """Return the events that must be reviewed, by their index, with the first rule of the board that says so."""
        found: dict[int, ReviewRule] = {}
        histories: dict[str, list[tuple[float, int]]] = {}
        sent = {event.event_id for event in events}
        needs_history = any(rule.rise is not None for rule in board.review)
        for index, event in enumerate(events):
            if event.refused is not None:
                continue
            if needs_history and event.user_id not in histories:
                stored = await self._ledger.user_events(board.id, event.user_id, before_seq=None, limit=LOOK_BACK)
                histories[event.user_id] = [
                    (each.score, each.at)
                    for each in stored
                    # A repeated event must not be compared with itself.
                    if not each.voided and each.event_id not in sent
                ]
            earlier = histories.get(event.user_id, [])
            rule = _first(board, event, earlier)
            if rule is not None:
                found[index] = rule
            else:
                earlier.append((event.score, event.at))
        return found

    async def hold(self, event: Event, rule: ReviewRule) -> bool:
        """Put a score on the review list; return False if it does not belong there, as `record` will say.

        That is, for example, because an event with its id counts already.
        """
        metadata = None if event.metadata is None else msgspec.json.decode(event.metadata)
        detail = msgspec.json.encode(Held(event.event_id, event.score, event.at, rule.name, metadata)).decode()
        act = ModerationAction(f"{REVIEW}/{event.event_id}/", REVIEW, BY_RULES, self._clock.now_us(), None, detail)
        for _ in range(ATTEMPTS):
            board = await self._boards.prepared(event.board.id)
            try:
                outcome = await self._ledger.hold_for_review(replace(event, board=board), act, self._boards.history)
            except Stale:
                await self._ledger.read_as_of()
                await self._boards.reload([board.id])
                continue
            return outcome is RecordOutcome.IN_REVIEW
        raise Unavailable("overloaded", "The board kept changing while the score was being recorded. Try again.")


def _first(board: Board, event: Event, earlier: Sequence[tuple[float, int]]) -> ReviewRule | None:
    metadata = None if event.metadata is None else msgspec.json.decode(event.metadata)
    for rule in board.review:
        if rule.rise is None:
            if is_caught(rule, event.score, metadata):
                return rule
        elif rises(rule.rise, board.rule, board.order, earlier, event.score, event.at):
            return rule
    return None
