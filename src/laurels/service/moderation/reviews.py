"""Review lists: the scores of a board that wait for a moderator, and the decisions about them.

service/write/review_gate.py puts scores on the list. Accepting one restores its event, which then counts with its own
time in every period that is still open; the final ranks of others change only with a refreeze, which counts it, too.
"""

import msgspec
from msgspec import Struct

from laurels.core.board import Board
from laurels.core.reviews import ReviewState
from laurels.errors import NotFound
from laurels.ports import Clock, Ledger, ModerationAction, StoredAction, StoredReview
from laurels.service.boards.caller import Caller
from laurels.service.moderation.moderation import REJECT, RESTORE, EventFilter, Moderation, decided_already, restore_id
from laurels.service.write.review_gate import Held

# The kind of the action that made the decision.
_DECISIONS: dict[ReviewState, str] = {
    ReviewState.PENDING: "",
    ReviewState.ACCEPTED: RESTORE,
    ReviewState.REJECTED: REJECT,
}
_STATES = {kind: state for state, kind in _DECISIONS.items()}


class Review(Struct, frozen=True):
    """A score that is or was on the review list. `held` None: its user was erased."""

    stored: StoredReview
    state: ReviewState
    held: Held | None


class Reviews:
    def __init__(self, ledger: Ledger, moderation: Moderation, clock: Clock) -> None:
        self._ledger = ledger
        self._moderation = moderation
        self._clock = clock

    async def page(self, board: Board, state: ReviewState | None, before: int, limit: int) -> list[Review]:
        """Return a page of the review list of a board, latest first. `state` None: all."""
        decision = None if state is None else _DECISIONS[state]
        found = await self._ledger.profiles.reviews(board.id, decision, before, limit)
        return [_review(each) for each in found]

    async def find(self, board: Board, review_id: int) -> Review:
        found = await self._ledger.profiles.reviews(board.id, None, review_id + 1, 1)
        if not found or found[0].review.id != review_id:
            raise NotFound("review_not_found", f"The board has no review {review_id}.", field="reviewId")
        return _review(found[0])

    async def accept(self, caller: Caller, board: Board, review_id: int, reason: str | None) -> StoredAction:
        """Let a score count, and return the action, which may still be running. Idempotent.

        Raises Conflict if the score was rejected.
        """
        review = await self.find(board, review_id)
        if review.state is ReviewState.REJECTED:
            raise decided_already(review_id)
        return await self._moderation.restore(caller, board.pod_id, review_id, reason)

    async def reject(self, caller: Caller, board: Board, review_id: int, reason: str | None) -> StoredAction:
        """Decide that a score does not count. Idempotent. Raises Conflict if the score was accepted."""
        review = await self.find(board, review_id)
        if review.state is ReviewState.ACCEPTED:
            raise decided_already(review_id)
        people, now = self._ledger.profiles, self._clock.now_us()
        # An acceptance has the same action id, so only one of two decisions at the same moment is stored.
        # If this server dies before the second step, the job `moderation` takes it.
        detail = msgspec.json.encode(EventFilter(act=review_id)).decode()
        act = ModerationAction(restore_id(review_id), REJECT, caller.key_id, now, reason, detail)
        begun = await people.begin_action(board.pod_id, board.id, review.stored.review.user_id, act)
        if begun.kind != REJECT:
            raise decided_already(review_id)
        return await people.finish_action(begun, now, undoes=review_id)


def _review(stored: StoredReview) -> Review:
    detail = stored.review.detail
    held = None if detail is None else msgspec.json.decode(detail, type=Held)
    return Review(stored, _STATES.get(stored.decision or "", ReviewState.PENDING), held)
