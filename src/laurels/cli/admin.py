"""`laurels pods`, `laurels keys`, `laurels webhooks` and `laurels audit`."""

import asyncio
import contextlib
import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from laurels.cli.connect import ask, ask_all, call, connect
from laurels.cli.options import AsJson, OfPod, OnBoard, PodId, Yes, with_server
from laurels.cli.output import confirm, show
from laurels.errors import NotFound
from laurels.settings import Settings

pods = typer.Typer(
    help="Manage pods. A pod is a tenant: a game with its own boards, keys and users.", no_args_is_help=True
)
keys = typer.Typer(help="Manage the keys of a pod.", no_args_is_help=True)
webhooks = typer.Typer(help="Manage the webhook of a pod, which is told about its events.", no_args_is_help=True)

WEBHOOK_COLUMNS = ["podId", "url", "createdAt"]
AUDIT_COLUMNS = ["at", "keyId", "route", "podId", "UUID", "userId", "status", "error"]


@pods.command("list")
@with_server
def list_pods(settings: Settings, as_json: AsJson = False) -> None:
    """List the pods."""
    found = ask(settings, "GET", "/api/v1/pods")["pods"]
    show(found, ["podId", "name", "createdAt"], as_json)


@pods.command("create")
@with_server
def create_pod(
    settings: Settings,
    pod_id: PodId,
    name: Annotated[str | None, typer.Option(help="Display name. Default: the pod's id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a pod."""
    body = {"podId": pod_id, "name": name or pod_id}
    show(
        [ask(settings, "POST", "/api/v1/pods", body)],
        ["podId", "name", "createdAt"],
        as_json,
    )


@keys.command("list")
@with_server
def list_keys(settings: Settings, pod_id: PodId, as_json: AsJson = False) -> None:
    """List the keys of a pod, without their secrets."""
    found = ask(settings, "GET", f"/api/v1/pods/{quote(pod_id, safe='')}/keys")["keys"]
    show(found, ["keyId", "role", "label", "createdAt", "expiresAt", "lastUsedAt"], as_json)


@keys.command("create")
@with_server
def create_key(
    settings: Settings,
    pod_id: PodId,
    role: Annotated[str, typer.Option(help="server (reads and writes) or client (reads rankings only).")],
    label: Annotated[str | None, typer.Option(help="Note that says what the key is for.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="What a server key may do: read, scores:write, boards:write, moderation. Repeatable."),
    ] = None,
    expires: Annotated[str | None, typer.Option(help="When the key expires, such as 2027-01-31T00:00:00Z.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it.

    The key is shown only once, because the server stores only its hash.
    """
    body = {"role": role, "label": label, "scopes": scope or None, "expiresAt": expires}
    made = ask(settings, "POST", f"/api/v1/pods/{quote(pod_id, safe='')}/keys", body)
    if as_json:
        typer.echo(json.dumps(made))
    else:
        typer.echo(
            f"Created {made['role']} key {made['keyId']} of pod {pod_id}. Save it: it is not shown again.", err=True
        )
        typer.echo(made["key"])


@keys.command("revoke")
@with_server
def revoke_key(
    settings: Settings,
    pod_id: PodId,
    key_id: Annotated[str, typer.Argument(help="The key's id, as shown by `laurels keys list`.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a key, and list the remaining keys.

    The key stops working at once.
    """
    left = ask(settings, "DELETE", f"/api/v1/pods/{quote(pod_id, safe='')}/keys/{quote(key_id, safe='')}")["keys"]
    show(left, ["keyId", "role", "label", "createdAt", "expiresAt", "lastUsedAt"], as_json)


@webhooks.command("list")
@with_server
def list_webhooks(settings: Settings, as_json: AsJson = False) -> None:
    """List the webhooks of all pods."""
    show(asyncio.run(_webhooks(settings)), WEBHOOK_COLUMNS, as_json)


@webhooks.command("set")
@with_server
def set_webhook(
    settings: Settings,
    pod_id: PodId,
    address: Annotated[str, typer.Argument(help="The URL to which messages are sent.", metavar="URL")],
    as_json: AsJson = False,
) -> None:
    """Set the URL of a pod's webhook, and print its secret if it is new."""
    _show_secret(ask(settings, "PUT", _webhook(pod_id), {"url": address}), as_json)


@webhooks.command("rotate")
@with_server
def rotate_webhook(
    settings: Settings,
    pod_id: PodId,
    overlap: Annotated[
        int, typer.Option(min=0, help="For how many seconds messages are also signed with the old secret.")
    ] = 3600,
    as_json: AsJson = False,
) -> None:
    """Replace the secret of a webhook and print the new one."""
    _show_secret(ask(settings, "POST", f"{_webhook(pod_id)}/rotate", {"overlapSeconds": overlap}), as_json)


@webhooks.command("delete")
@with_server
def delete_webhook(settings: Settings, pod_id: PodId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete the webhook of a pod, with the messages that were not delivered yet."""
    confirm(f"Delete the webhook of pod {pod_id}, with the messages that were not delivered yet?", yes=yes)
    show([ask(settings, "DELETE", _webhook(pod_id))], WEBHOOK_COLUMNS, as_json)


@with_server
def audit(
    settings: Settings,
    pod: OfPod = None,
    board: OnBoard = None,
    user: Annotated[str | None, typer.Option(help="Only calls about this player.")] = None,
    by: Annotated[str | None, typer.Option(help="Only calls with the key of this id.")] = None,
    since: Annotated[str | None, typer.Option(help="Only calls at or after this time: 2027-01-31T00:00:00Z.")] = None,
    until: Annotated[str | None, typer.Option(help="Only calls before this time.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the administrative calls, newest first: who changed what, and when."""
    query = {"podId": pod, "UUID": board, "userId": user, "keyId": by, "since": since, "until": until}
    show(ask_all(settings, "/api/v1/audit", "entries", limit, **query), AUDIT_COLUMNS, as_json)


async def _webhooks(settings: Settings) -> list[dict[str, Any]]:
    found = []
    async with connect(settings) as client:
        for pod in (await call(client, "GET", "/api/v1/pods"))["pods"]:
            with contextlib.suppress(NotFound):
                found.append(await call(client, "GET", _webhook(pod["podId"])))
    return found


def _show_secret(webhook: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(webhook))
        return
    secret = webhook["secret"]
    if secret is None:
        typer.echo("The URL is unchanged, and so is the secret.", err=True)
    else:
        typer.echo(f"Webhook of pod {webhook['podId']}: save its secret, it is not shown again.", err=True)
        typer.echo(secret)


def _webhook(pod_id: str) -> str:
    return f"/api/v1/pods/{quote(pod_id, safe='')}/webhook"
