"""Pods, their keys and their webhooks. All calls need an admin key."""

from typing import Any

from laurels.core.instants import to_datetime
from laurels.errors import Invalid
from laurels.http.answers import (
    KeyAnswer,
    KeysAnswer,
    NewKeyAnswer,
    NewWebhookAnswer,
    PodAnswer,
    PodsAnswer,
    WebhookAnswer,
)
from laurels.http.call import Call
from laurels.http.requests import KeyRequest, KeysQuery, NoQuery, PodRequest, WebhookRequest
from laurels.ports import Pod, Role, Webhook


async def post_pod(call: Call[NoQuery, PodRequest]) -> PodAnswer:
    """Create a pod.

    A pod is a tenant: a game or a team with its own boards and keys, invisible to all other pods. Repeating the call
    with the same name returns the existing pod.
    """
    return _pod(await call.laurels.access.create_pod(call.body.pod_id, call.body.name))


async def get_pods(call: Call[NoQuery, None]) -> PodsAnswer:
    """List the pods."""
    return PodsAnswer(pods=[_pod(pod) for pod in await call.laurels.access.pods()])


async def post_key(call: Call[NoQuery, KeyRequest]) -> NewKeyAnswer:
    """Create a key for a pod.

    The response is the only one that contains the key, because the server stores only its hash. With `keyId` and
    `digest`, the call imports a key of another Laurels installation, and the key works here, too.
    """
    body, pod_id = call.body, call.path("podId")
    token = None
    if body.key_id is not None and body.digest is not None:
        key = await call.laurels.access.adopt_key(
            pod_id, Role(body.role), body.label, body.key_id, bytes.fromhex(body.digest)
        )
    elif body.key_id is not None or body.digest is not None:
        missing = "digest" if body.digest is None else "keyId"
        raise Invalid("missing_field", "Send keyId and digest together.", field=missing, rule="required")
    else:
        key, token = await call.laurels.access.create_key(pod_id, Role(body.role), body.label, call.idempotency_key)
    return NewKeyAnswer(
        key_id=key.key_id, role=key.role, label=key.label, created_at=to_datetime(key.created_at), key=token
    )


async def get_keys(call: Call[KeysQuery, None]) -> KeysAnswer:
    """List the keys of a pod, without their secrets."""
    return await _keys(call, digests=call.query.digests)


async def delete_key(call: Call[NoQuery, None]) -> KeysAnswer:
    """Revoke a key and return the remaining ones.

    The key stops working at once.
    """
    await call.laurels.access.revoke_key(call.path("podId"), call.path("keyId"))
    return await _keys(call, digests=False)


async def put_webhook(call: Call[NoQuery, WebhookRequest]) -> NewWebhookAnswer:
    """Set the webhook of a pod.

    The server POSTs period ends and granted rewards to this URL as JSON messages, at least once, signed as specified by
    standardwebhooks.com. It retries each message until the receiver answers with 2xx. A new URL gets a new secret; the
    same URL keeps its secret.
    """
    webhook, is_new = await call.laurels.webhooks.put(call.path("podId"), call.body.url)
    return NewWebhookAnswer(
        pod_id=webhook.pod_id,
        url=webhook.url,
        created_at=to_datetime(webhook.created_at),
        secret=webhook.secret if is_new else None,
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
    return _webhook(webhook)


def _webhook(webhook: Webhook) -> WebhookAnswer:
    return WebhookAnswer(pod_id=webhook.pod_id, url=webhook.url, created_at=to_datetime(webhook.created_at))


async def _keys(call: Call[Any, None], *, digests: bool) -> KeysAnswer:
    return KeysAnswer(
        keys=[
            KeyAnswer(
                key_id=key.key_id,
                role=key.role,
                label=key.label,
                created_at=to_datetime(key.created_at),
                digest=key.digest.hex() if digests else None,
            )
            for key in await call.laurels.access.keys_of(call.path("podId"))
        ]
    )


def _pod(pod: Pod) -> PodAnswer:
    return PodAnswer(pod_id=pod.pod_id, name=pod.name, created_at=to_datetime(pod.created_at))
