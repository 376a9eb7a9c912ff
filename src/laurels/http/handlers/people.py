"""Profiles, circles, and the export and erasure of a user. The pod is that of the key; an admin key sets `podId`."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from laurels.core.checks import canonical_metadata
from laurels.core.limits import ATTRIBUTES_BYTES
from laurels.core.people import Hidden, Profile, ProfileChange
from laurels.errors import Invalid
from laurels.http.call import Call, Streamed
from laurels.http.decode import decode_named_cursor, decode_value, encode_cursor
from laurels.http.fields import Circle
from laurels.http.handlers.moderation import noted_act
from laurels.http.people_answers import ActAnswer, ChangedAnswer, HiddenOn, PeopleAnswer, PersonEntry, ProfileAnswer
from laurels.http.queries import PeopleQuery, PodQuery, ReasonQuery
from laurels.http.requests import ProfileBody, ProfileItem, ProfilesRequest

# The 16 common variation selectors, which only change how the character before them looks.
_VARIATIONS = dict.fromkeys(range(0xFE00, 0xFE10))


async def put_profile(call: Call[PodQuery, ProfileBody]) -> ProfileAnswer:
    """Replace a user's profile.

    Fields that are not sent become empty. If the region or the circles change, the user moves to other rankings in all
    periods that are not final. The pod is that of the key; an admin key sets `podId`.
    """
    body = call.body
    whole = ProfileChange(
        call.user_id,
        display_name=_visible(body.display_name) or None,
        avatar_url=body.avatar_url or None,
        region=body.region or None,
        circles=tuple(body.circles or ()),
        attributes=_attributes(body.attributes or None),
    )
    return await _change(call, whole)


async def patch_profile(call: Call[PodQuery, ProfileBody]) -> ProfileAnswer:
    """Change a user's profile.

    Only the fields that are sent change; null clears a field.
    """
    return await _change(call, _change_of(call.user_id, call.body))


async def get_profile(call: Call[PodQuery, None]) -> PersonEntry:
    """Return a user's profile.

    Includes where the user is hidden, except for the player. A hidden user without a profile has an empty one.
    """
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    if call.caller.player is not None:
        return PersonEntry(**msgspec.structs.asdict(_answer(await call.laurels.profiles.profile(pod_id, call.user_id))))
    return _entry(call, *await call.laurels.profiles.profile_and_hides(pod_id, call.user_id))


async def get_people(call: Call[PeopleQuery, None]) -> PeopleAnswer:
    """List the profiles of a pod, sorted by user id.

    Includes where each user is hidden. The pod is that of the key; an admin key sets `podId`.
    """
    query = call.query
    pod_id = await call.laurels.access.pod_of(call.caller, query.pod_id)
    _, after = decode_named_cursor(query.cursor) or (0, "")
    found = await call.laurels.profiles.page(pod_id, after, query.limit)
    return PeopleAnswer(
        users=[_entry(call, profile, hides) for profile, hides in found],
        next_cursor=encode_cursor(0, found[-1][0].user_id) if len(found) == query.limit else None,
    )


async def post_profiles(call: Call[PodQuery, ProfilesRequest]) -> ChangedAnswer:
    """Change many profiles.

    In each profile, only the fields that are sent change; null clears a field. Either all profiles change or none.
    """
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    await call.laurels.profiles.change(pod_id, [_change_of(item.user_id, item) for item in call.body.users])
    return ChangedAnswer(changed=len(call.body.users))


async def put_circle(call: Call[PodQuery, None]) -> ProfileAnswer:
    """Add a user to a circle."""
    return await _change(call, ProfileChange(call.user_id, join=(_circle(call),)))


async def delete_circle(call: Call[PodQuery, None]) -> ProfileAnswer:
    """Remove a user from a circle."""
    return await _change(call, ProfileChange(call.user_id, leave=(_circle(call),)))


async def get_person(call: Call[PodQuery, None]) -> Streamed:
    """Export all data about a user.

    Streams JSON lines, each with its `kind`: profile, hidden, score, event, result, reward or act.
    """
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    return Streamed(call.laurels.erasures.export(pod_id, call.user_id))


async def delete_person(call: Call[ReasonQuery, None]) -> ActAnswer:
    """Erase a user.

    Removes the user from the rankings of all periods that are not final; users behind them move up. Final ranks, events
    and grants stay under an anonymous name, because the results of other users depend on them. An erasure can't be
    reverted: events from before it are refused, however they are sent again. A user who plays again
    starts from scratch.
    """
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    act = await call.laurels.erasures.erase(call.caller, pod_id, call.user_id, call.query.reason, call.idempotency_key)
    return noted_act(call, act)


async def _change(call: Call[PodQuery, ProfileBody] | Call[PodQuery, None], change: ProfileChange) -> ProfileAnswer:
    pod_id = await call.laurels.access.pod_of(call.caller, call.query.pod_id)
    await call.laurels.profiles.change(pod_id, [change])
    return _answer(await call.laurels.profiles.profile(pod_id, change.user_id))


def _change_of(user_id: str, body: ProfileBody | ProfileItem) -> ProfileChange:
    return ProfileChange(
        user_id,
        display_name=_visible(body.display_name),
        avatar_url=body.avatar_url,
        region=body.region,
        circles=body.circles if body.circles is UNSET else tuple(body.circles or ()),
        attributes=_attributes(body.attributes),
    )


def _attributes(sent: dict[str, Any] | UnsetType | None) -> str | UnsetType | None:
    return sent if sent is UNSET else canonical_metadata(sent, "attributes", ATTRIBUTES_BYTES)


def _visible(name: str | UnsetType | None) -> str | UnsetType | None:
    """Return a display name, after checking that it shows something."""
    if isinstance(name, str) and not name.translate(_VARIATIONS).strip():
        raise Invalid("wrong_format", "A display name needs a visible character.", field="displayName")
    return name


def _entry(call: Call[Any, Any], profile: Profile, hides: dict[int, Hidden]) -> PersonEntry:
    uuids = {board.id: board.uuid for board in map(call.laurels.boards.find, hides) if board is not None}
    return PersonEntry(
        **msgspec.structs.asdict(_answer(profile)),
        hidden=[
            HiddenOn(uuid=None if board_id == 0 else uuids[board_id], shadow=hidden is Hidden.SHADOW)
            for board_id, hidden in hides.items()
            # A board may have been deleted.
            if board_id == 0 or board_id in uuids
        ],
    )


def _circle(call: Call[PodQuery, None]) -> str:
    return str(decode_value(call.path("circle"), Circle, "circle"))


def _answer(profile: Profile) -> ProfileAnswer:
    return ProfileAnswer(
        user_id=profile.user_id,
        display_name=profile.display_name,
        avatar_url=profile.avatar_url,
        region=profile.region,
        circles=list(profile.circles),
        attributes=None if profile.attributes is None else msgspec.json.decode(profile.attributes),
    )
