"""Response bodies about profiles and moderation actions."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from laurels.http.fields import Answer, Instant


class ProfileAnswer(Answer):
    user_id: str
    display_name: str | None
    avatar_url: str | None
    region: str | None
    circles: list[str]


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
