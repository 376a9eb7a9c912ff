"""Pods, keys, player tokens and webhooks. All calls but those about tokens need an admin key."""

from datetime import datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import UNSET

from laurels.core.instants import to_datetime
from laurels.core.quotas import Quotas
from laurels.errors import Invalid
from laurels.http.answers import (
    KeyAnswer,
    KeysAnswer,
    NewKeyAnswer,
    NewWebhookAnswer,
    PodAnswer,
    PodsAnswer,
    QuotasAnswer,
    RevokedAnswer,
    Shortest,
    TokenAnswer,
    UsageAnswer,
    Used,
    WebhookAnswer,
)
from laurels.http.board_parts import read_instant, show_moment
from laurels.http.call import Call
from laurels.http.queries import KeysQuery, NoQuery
from laurels.http.requests import (
    AdminKeyRequest,
    KeyRequest,
    PodChange,
    PodRequest,
    RotateRequest,
    TokenRequest,
    WebhookRequest,
)
from laurels.ports import Key, Pod, Role, Webhook
from laurels.service.boards.access import scopes_of


async def post_pod(call: Call[NoQuery, PodRequest]) -> PodAnswer:
    """Create a pod.

    A pod is a tenant: a game or a team with its own boards and keys, invisible to all other pods. Repeating the call
    with the same name returns the existing pod.
    """
    created = _pod(await call.laurels.access.create_pod(call.body.pod_id, call.body.name))
    call.note_change(None, created)
    return created


async def get_pods(call: Call[NoQuery, None]) -> PodsAnswer:
    """List the pods."""
    return PodsAnswer(pods=[_pod(pod) for pod in await call.laurels.access.pods()])


async def patch_pod(call: Call[NoQuery, PodChange]) -> PodAnswer:
    """Change a pod: its web origins and its quotas.

    Browsers let pages from `allowedOrigins` read ranks, subscribe to live updates and submit scores of this pod, with a
    client key or a player token. Pages from other origins get no access. `quotas` are the limits of this pod that
    differ from those in the server's settings; 0 means any number. Each list and object replaces the previous one.
    """
    access, body, pod_id = call.laurels.access, call.body, call.path("podId")
    before = await access.pod(pod_id)
    quotas = None if body.quotas is UNSET else Quotas(**msgspec.structs.asdict(body.quotas))
    origins = None if body.allowed_origins is UNSET else body.allowed_origins
    changed = _pod(await access.change_pod(pod_id, origins, quotas))
    call.note_change(None if before is None else _pod(before), changed)
    return changed


async def get_usage(call: Call[NoQuery, None]) -> UsageAnswer:
    """Return how much of its quotas a pod uses.

    The numbers of users and events are up to a few seconds old.
    """
    pod_id = await call.laurels.access.pod_of(call.caller, call.path("podId"))
    usage, limits = await call.laurels.usage.of(pod_id), call.laurels.access.quotas_of(pod_id)
    return UsageAnswer(
        pod_id=pod_id,
        boards=Used(used=usage.boards or 0, limit=limits.boards or None),
        windows=Used(used=usage.windows or 0, limit=limits.windows or None),
        parts=Used(used=usage.parts or 0, limit=limits.parts or None),
        users=Used(used=usage.users or 0, limit=limits.users or None),
        events_today=Used(used=usage.events_per_day or 0, limit=limits.events_per_day or None),
        shortest_reset_seconds=Shortest(used=usage.min_reset_seconds, limit=limits.min_reset_seconds or None),
    )


async def post_key(call: Call[NoQuery, KeyRequest]) -> NewKeyAnswer:
    """Create a key for a pod.

    The response is the only one that contains the key, because the server stores only its hash. With `keyId` and
    `digest`, the call imports a key of another Laurels installation, and the key works here, too.
    """
    body, pod_id, access = call.body, call.path("podId"), call.laurels.access
    role, expires_at = Role(body.role), _instant(body.expires_at)
    if body.key_id is not None and body.digest is not None:
        scopes = None if body.scopes is None else tuple(body.scopes)
        imported = Key(body.key_id, pod_id, role, body.label, bytes.fromhex(body.digest), 0, expires_at, scopes)
        return _new_key(call, await access.adopt_key(imported), None)
    if body.key_id is not None or body.digest is not None:
        missing = "digest" if body.digest is None else "keyId"
        raise Invalid("missing_field", "Send keyId and digest together.", field=missing, rule="required")
    return _new_key(
        call,
        *await access.create_key(
            pod_id,
            role,
            body.label,
            expires_at=expires_at,
            scopes=body.scopes,
            idempotency_key=call.idempotency_key,
        ),
    )


async def get_keys(call: Call[KeysQuery, None]) -> KeysAnswer:
    """List the keys of a pod, without their secrets.

    Expired keys are listed until they are revoked.
    """
    return await _keys(call, call.path("podId"), digests=call.query.digests)


def reads_digests(call: Call[KeysQuery, None]) -> bool:
    """Return True if a call reads what signs the player tokens of keys, so that the audit log has it."""
    return call.query.digests


async def delete_key(call: Call[NoQuery, None]) -> KeysAnswer:
    """Revoke a key and return the remaining ones.

    The key stops working at once, and so do the player tokens that it issued.
    """
    return await _revoke(call, call.path("podId"))


async def post_rotation(call: Call[NoQuery, RotateRequest]) -> NewKeyAnswer:
    """Replace a key.

    Creates a key with the same role, label and scopes. The old key works for `overlapSeconds` more, so that all servers
    of the game can switch without an interruption. The new key does not expire.
    """
    return await _rotate(call, call.path("podId"))


async def post_admin_key(call: Call[NoQuery, AdminKeyRequest]) -> NewKeyAnswer:
    """Create an admin key.

    Give every person one of their own, so that each can be revoked alone. The key in the server's settings always works
    besides them.
    """
    return _new_key(
        call,
        *await call.laurels.access.create_key(
            None,
            Role.ADMIN,
            call.body.label,
            expires_at=_instant(call.body.expires_at),
            idempotency_key=call.idempotency_key,
        ),
    )


async def get_admin_keys(call: Call[NoQuery, None]) -> KeysAnswer:
    """List the admin keys, without their secrets and without the one in the server's settings."""
    return await _keys(call, None)


async def delete_admin_key(call: Call[NoQuery, None]) -> KeysAnswer:
    """Revoke an admin key and return the remaining ones."""
    return await _revoke(call, None)


async def post_admin_rotation(call: Call[NoQuery, RotateRequest]) -> NewKeyAnswer:
    """Replace an admin key.

    The old key works for `overlapSeconds` more.
    """
    return await _rotate(call, None)


async def post_token(call: Call[NoQuery, TokenRequest]) -> TokenAnswer:
    """Issue a token for one player.

    The game's server asks for it and hands it to the game on the player's device, which then needs no key. The token
    allows the player to read rankings and their own data, to follow live updates and, with `mayWrite`, to submit own
    scores on boards with `playersMayWrite`. It can't be revoked alone: revoke all tokens of the player, or the key.
    """
    pod_id = call.caller.require_pod(call.path("podId"))
    body = call.body
    token, text = await call.laurels.access.create_token(
        call.caller, pod_id, body.user_id, body.expires_in_seconds, may_write=body.may_write
    )
    return TokenAnswer(
        user_id=token.user_id, token=text, expires_at=to_datetime(token.expires_at), may_write=token.may_write
    )


async def delete_tokens(call: Call[NoQuery, None]) -> RevokedAnswer:
    """Revoke all tokens of a player.

    Takes effect at once on this server, and within a second on the others.
    """
    pod_id = call.caller.require_pod(call.path("podId"))
    at = await call.laurels.access.revoke_tokens(pod_id, call.user_id)
    call.note_change(None, {"revokedAt": to_datetime(at)})
    return RevokedAnswer(user_id=call.user_id, revoked_at=to_datetime(at))


async def put_webhook(call: Call[NoQuery, WebhookRequest]) -> NewWebhookAnswer:
    """Set the webhook of a pod.

    The server POSTs period ends and granted rewards to this URL as JSON messages, at least once, signed as specified by
    standardwebhooks.com. It retries each message until the receiver answers with 2xx. A new URL gets a new secret; the
    same URL keeps its secret.
    """
    before = await call.laurels.webhooks.find(call.path("podId"))
    webhook, is_new = await call.laurels.webhooks.put(call.path("podId"), call.body.url)
    call.note_change(None if before is None else _noted(before), _noted(webhook))
    return NewWebhookAnswer(
        pod_id=webhook.pod_id,
        url=webhook.url,
        created_at=to_datetime(webhook.created_at),
        secret=webhook.secret if is_new else None,
    )


async def post_webhook_rotation(call: Call[NoQuery, RotateRequest]) -> NewWebhookAnswer:
    """Replace the secret of a webhook.

    The URL and undelivered messages stay. For `overlapSeconds`, messages carry a signature of each secret, so that the
    receiver can switch without refusing any.
    """
    webhook = await call.laurels.webhooks.rotate(call.path("podId"), call.body.overlap_seconds)
    call.note_change(None, {"overlapSeconds": call.body.overlap_seconds})
    return NewWebhookAnswer(
        pod_id=webhook.pod_id, url=webhook.url, created_at=to_datetime(webhook.created_at), secret=webhook.secret
    )


async def get_webhook(call: Call[NoQuery, None]) -> WebhookAnswer:
    """Return the webhook of a pod."""
    return _webhook(await call.laurels.webhooks.get(call.path("podId")))


async def delete_webhook(call: Call[NoQuery, None]) -> WebhookAnswer:
    """Delete the webhook of a pod.

    Messages that were not delivered yet are discarded.
    """
    webhook = await call.laurels.webhooks.get(call.path("podId"))
    await call.laurels.webhooks.delete(call.path("podId"))
    call.note_change(_noted(webhook), None)
    return _webhook(webhook)


def _noted(webhook: Webhook) -> WebhookAnswer:
    """Return what the audit log shows of a webhook: passwords and queries of URLs can be secrets."""
    parts = urlsplit(webhook.url)
    host = parts.netloc.rpartition("@")[2]
    return msgspec.structs.replace(_webhook(webhook), url=urlunsplit((parts.scheme, host, parts.path, "", "")))


def _webhook(webhook: Webhook) -> WebhookAnswer:
    return WebhookAnswer(pod_id=webhook.pod_id, url=webhook.url, created_at=to_datetime(webhook.created_at))


async def _keys(call: Call[Any, None], pod_id: str | None, *, digests: bool = False) -> KeysAnswer:
    found = await call.laurels.access.keys_of(pod_id)
    return KeysAnswer(
        keys=[KeyAnswer(**_key_fields(key), digest=key.digest.hex() if digests else None) for key in found]
    )


async def _rotate(call: Call[NoQuery, RotateRequest], pod_id: str | None) -> NewKeyAnswer:
    overlap_s = call.body.overlap_seconds
    made = await call.laurels.access.rotate_key(pod_id, call.path("keyId"), overlap_s, call.idempotency_key)
    return _new_key(call, *made)


async def _revoke(call: Call[NoQuery, None], pod_id: str | None) -> KeysAnswer:
    revoked = await call.laurels.access.revoke_key(pod_id, call.path("keyId"))
    call.note_change(KeyAnswer(**_key_fields(revoked), digest=None), None)
    return await _keys(call, pod_id)


def _new_key(call: Call[Any, Any], key: Key, token: str | None) -> NewKeyAnswer:
    # Without the token, which nobody may read later.
    call.note_change(None, KeyAnswer(**_key_fields(key), digest=None))
    return NewKeyAnswer(**_key_fields(key), key=token)


def _key_fields(key: Key) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "role": key.role,
        "label": key.label,
        "created_at": to_datetime(key.created_at),
        "expires_at": show_moment(key.expires_at),
        "last_used_at": show_moment(key.used_at),
        "scopes": sorted(scopes_of(key)),
    }


def _instant(moment: datetime | None) -> int | None:
    return None if moment is None else read_instant(moment, "expiresAt")


def _pod(pod: Pod) -> PodAnswer:
    return PodAnswer(
        pod_id=pod.pod_id,
        name=pod.name,
        created_at=to_datetime(pod.created_at),
        allowed_origins=list(pod.allowed_origins),
        quotas=QuotasAnswer(**msgspec.structs.asdict(pod.quotas)),
    )
