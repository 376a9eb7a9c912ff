"""What callers get about people, and about what was done to their scores."""

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
    uuid: Annotated[str | None, Meta(description="null: on all boards of the pod.")] = field(name="UUID")
    shadow: bool


class PersonEntry(ProfileAnswer, kw_only=True):
    hidden: Annotated[list[HiddenOn] | UnsetType, Meta(description="Not for client keys.")] = UNSET


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
    key_id: Annotated[str, Meta(description="Whose key it was done with.")]
    at: Instant
    reason: str | None
    detail: dict[str, Any] | None
    events: Annotated[int, Meta(description="How many events it voided, or restored, so far.")]
    done_at: Annotated[datetime | None, Meta(description="null: it is going on.")]
    undone_by: Annotated[str | None, Meta(description="The act that took it back.")]


class ActsAnswer(Answer):
    acts: list[ActAnswer]
    next_cursor: str | None


class RemovedAnswer(Answer):
    uuid: str = field(name="UUID")
    user_id: str
    removed: bool
    act_id: Annotated[str, Meta(description="Restore it to take the removal back.")]
