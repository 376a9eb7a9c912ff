"""`laurels pods` and `laurels keys`."""

import asyncio
import json
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from laurels.cli.connect import call, connect
from laurels.cli.serve import DataDir, option
from laurels.config import read_settings
from laurels.core.ids import new_key_id
from laurels.core.scores import EXACT_LIMIT
from laurels.settings import Settings

pods = typer.Typer(
    help="Manage pods. A pod is a tenant: a game with its own boards, keys and users.", no_args_is_help=True
)
keys = typer.Typer(help="Manage the keys of a pod.", no_args_is_help=True)

Url = Annotated[str | None, option("url")]
Key = Annotated[str | None, option("key")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
PodId = Annotated[str, typer.Argument(help="The pod's id.")]


def reach(url: str | None, key: str | None, data_dir: Any) -> Settings:
    return read_settings({"url": url, "key": key, "data_dir": data_dir})


def ask(settings: Settings, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    # With an idempotency key, a write that is retried takes effect once.
    headers = {"Idempotency-Key": new_key_id()} if body is not None else {}

    async def run() -> Any:
        async with connect(settings) as client:
            return await call(client, method, path, json=body, headers=headers)

    return asyncio.run(run())


def show(rows: list[dict[str, Any]], columns: list[str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    if not rows:
        typer.echo("Nothing found.", err=True)
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in {"rank", "score"} else "left")
    for row in rows:
        # Text disables Rich markup: a user may be named "[bold]".
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))
    Console().print(table)


@pods.command("list")
def list_pods(url: Url = None, key: Key = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the pods."""
    found = ask(reach(url, key, data_dir), "GET", "/api/v1/pods")["pods"]
    show(found, ["podId", "name", "createdAt"], as_json)


@pods.command("create")
def create_pod(
    pod_id: PodId,
    name: Annotated[str | None, typer.Option(help="Display name. Default: the pod's id.")] = None,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a pod."""
    body = {"podId": pod_id, "name": name or pod_id}
    show(
        [ask(reach(url, key, data_dir), "POST", "/api/v1/pods", body)],
        ["podId", "name", "createdAt"],
        as_json,
    )


@keys.command("list")
def list_keys(
    pod_id: PodId, url: Url = None, key: Key = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """List the keys of a pod, without their secrets."""
    found = ask(reach(url, key, data_dir), "GET", f"/api/v1/pods/{quote(pod_id, safe='')}/keys")["keys"]
    show(found, ["keyId", "role", "label", "createdAt", "expiresAt", "lastUsedAt"], as_json)


@keys.command("create")
def create_key(
    pod_id: PodId,
    role: Annotated[str, typer.Option(help="server (reads and writes) or client (reads rankings only).")],
    label: Annotated[str | None, typer.Option(help="Note that says what the key is for.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="What a server key may do: read, scores:write, boards:write, moderation. Repeatable."),
    ] = None,
    expires: Annotated[str | None, typer.Option(help="When the key expires, such as 2027-01-31T00:00:00Z.")] = None,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it.

    The key is shown only once, because the server stores only its hash.
    """
    body = {"role": role, "label": label, "scopes": scope or None, "expiresAt": expires}
    made = ask(reach(url, key, data_dir), "POST", f"/api/v1/pods/{quote(pod_id, safe='')}/keys", body)
    if as_json:
        typer.echo(json.dumps(made))
    else:
        typer.echo(
            f"Created {made['role']} key {made['keyId']} of pod {pod_id}. Save it: it is not shown again.", err=True
        )
        typer.echo(made["key"])


@keys.command("revoke")
def revoke_key(
    pod_id: PodId,
    key_id: Annotated[str, typer.Argument(help="The key's id, as shown by `laurels keys list`.")],
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key, and list the remaining keys.

    The key stops working at once.
    """
    left = ask(
        reach(url, key, data_dir), "DELETE", f"/api/v1/pods/{quote(pod_id, safe='')}/keys/{quote(key_id, safe='')}"
    )["keys"]
    show(left, ["keyId", "role", "label", "createdAt", "expiresAt", "lastUsedAt"], as_json)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < EXACT_LIMIT else repr(value)
    return str(value)
