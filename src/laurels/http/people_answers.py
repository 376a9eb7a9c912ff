"""Response bodies about profiles and moderation actions."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from laurels.core.reviews import ReviewState
from laurels.http.fields import Answer, Instant


class ProfileAnswer(Answer):
    user_id: str
    display_name: str | None
    avatar_url: str | None
    region: str | None
    circles: list[str]
    attributes: dict[str, Any] | None


class HiddenOn(Answer):
    uuid: Annotated[str | None, Meta(description="null: all boards of the pod.")] = field(name="UUID")
    shadow: bool


class PersonEntry(ProfileAnswer, kw_only=True):
    hidden: Annotated[
        list[HiddenOn] | UnsetType, Meta(description="Where the user is hidden. Omitted for client keys.")
    ] = UNSET


class PeopleAnswer(Answer):
    users: list[PersonEntry]
    next_cursor: str | None


class ChangedAnswer(Answer):
    changed: int


class ActAnswer(Answer):
    act_id: str
    kind: Annotated[str, Meta(description="hide, show, void, restore, remove, refreeze or erase.")]
    pod_id: str
    uuid: Annotated[str | None, Meta(description="null: all boards of the pod.")] = field(name="UUID")
    user_id: str | None
    key_id: Annotated[str, Meta(description="The id of the key that was used.")]
    at: Instant
    reason: str | None
    detail: dict[str, Any] | None
    events: Annotated[int, Meta(description="The number of events voided or restored so far.")]
    done_at: Annotated[datetime | None, Meta(description="null: still running.")]
    undone_by: Annotated[str | None, Meta(description="The act that reverted this one.")]


class ActsAnswer(Answer):
    acts: list[ActAnswer]
    next_cursor: str | None


class RemovedAnswer(Answer):
    uuid: str = field(name="UUID")
    user_id: str
    removed: bool
    act_id: Annotated[str, Meta(description="Restore this act to revert the removal.")]


class RemovalsAnswer(Answer):
    uuid: str = field(name="UUID")
    removed: int
    missing: Annotated[list[str], Meta(description="Users without a score on the board.")]
    more: Annotated[bool, Meta(description="More users are in the range: repeat the call.")]


class PreviewedEvent(Answer):
    event_id: str
    user_id: str
    score: float
    timestamp: Instant


class PreviewedScore(Answer):
    user_id: str
    score: Annotated[float | None, Meta(description="Now, in the current period of the first window.")]
    score_after: Annotated[
        float | UnsetType | None,
        Meta(description="null: the user would have no score. Missing: the user has too many events to tell."),
    ] = UNSET


class VoidPreviewAnswer(Answer):
    uuid: str = field(name="UUID")
    events: Annotated[int, Meta(description="How many events would be voided.")]
    users: Annotated[int, Meta(description="How many users they belong to.")]
    complete: Annotated[bool, Meta(description="false: counting took too long, and there may be more.")]
    sample: Annotated[list[PreviewedEvent], Meta(description="The first 100 of these events.")]
    scores: Annotated[list[PreviewedScore], Meta(description="The first 20 of these users.")]


class ReviewAnswer(Answer):
    """A score that waits for a moderator, or did. Fields are null if its user was erased."""

    review_id: str
    status: ReviewState
    rule: Annotated[str | None, Meta(description="The name of the rule that selected it.")]
    user_id: str | None
    event_id: str | None
    score: float | None
    timestamp: Instant | None
    metadata: dict[str, Any] | None
    received_at: Instant
    decided_by: Annotated[str | None, Meta(description="The id of the key that accepted or rejected it.")]
    decided_at: Instant | None
    reason: str | None


class ReviewsAnswer(Answer):
    reviews: list[ReviewAnswer]
    next_cursor: str | None
