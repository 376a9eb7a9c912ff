"""`laurels schemas` and `laurels dead-letters`."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from laurels.cli.admin import AsJson, Key, PodId, Url, ask, reach, show
from laurels.cli.connect import call, connect
from laurels.cli.progress import show_progress
from laurels.cli.serve import DataDir
from laurels.errors import Invalid
from laurels.settings import Settings

schemas = typer.Typer(help="Manage schemas, which map the Kafka events of a game to scores.", no_args_is_help=True)
dead_letters = typer.Typer(
    help="List and replay dead letters: Kafka records that could not be counted.", no_args_is_help=True
)

Version = Annotated[str, typer.Argument(help="The schema's version.")]
# The columns that fit on a terminal; `show` prints all fields.
SCHEMA_COLUMNS = ["schemaVersion", "state", "versionFrom", "eventIdFrom", "updatedAt"]
LETTER_COLUMNS = ["id", "code", "field", "reason", "failedAt", "replayedAt"]
AT_ONCE = 500


@schemas.command("list")
def list_schemas(
    pod_id: PodId, url: Url = None, key: Key = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """List the schemas of a pod, newest first."""
    _show_schemas(ask(reach(url, key, data_dir), "GET", _pod(pod_id, "schemas"))["schemas"], as_json)


@schemas.command("show")
def show_schema(pod_id: PodId, version: Version, url: Url = None, key: Key = None, data_dir: DataDir = None) -> None:
    """Show a schema as JSON, in the format that `laurels schemas put` reads."""
    found = ask(reach(url, key, data_dir), "GET", _schema(pod_id, version))
    for name in ("podId", "createdAt", "updatedAt"):
        found.pop(name)
    for name in ("eventIdFrom", "versionFrom"):
        found[name] = found[name] and {source: value for source, value in found[name].items() if value is not None}
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


@schemas.command("put")
def put_schema(
    pod_id: PodId,
    file: Annotated[str, typer.Argument(help="JSON file with the schema, or - for standard input.")],
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a schema, or replace the one with the same version."""
    body = _read_json(file)
    version = body.get("schemaVersion")
    if not isinstance(version, str):
        raise Invalid("missing_field", f"{file}: schemaVersion is missing.", field="schemaVersion", rule="required")
    _show_schemas([ask(reach(url, key, data_dir), "PUT", _schema(pod_id, version), body)], as_json)


@schemas.command("state")
def set_state(
    pod_id: PodId,
    version: Version,
    state: Annotated[str, typer.Argument(help="draft, active, deprecated or retired.")],
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change the state of a schema."""
    changed = ask(reach(url, key, data_dir), "PATCH", _schema(pod_id, version), {"state": state})
    _show_schemas([changed], as_json)


@schemas.command("delete")
def delete_schema(
    pod_id: PodId,
    version: Version,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Delete a schema that is in state draft or retired."""
    _show_schemas([ask(reach(url, key, data_dir), "DELETE", _schema(pod_id, version))], as_json)


@schemas.command("try")
def try_schema(
    pod_id: PodId,
    file: Annotated[str, typer.Argument(help="JSON file with an event of the game, or - for standard input.")],
    version: Annotated[
        str | None, typer.Option(help="Schema version. Default: the version that a consumer would choose.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="Header of the Kafka record, as NAME=VALUE. Can be repeated.")
    ] = None,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
) -> None:
    """Show how an event would be read, without storing it.

    If the event would not be counted, prints the reason and exits with code 3.
    """
    for each in header or []:
        if "=" not in each:
            raise Invalid("wrong_format", f"--header {each!r} must be NAME=VALUE.", field="--header")
    headers = dict(each.partition("=")[::2] for each in header or [])
    body = {"event": _read_json(file), "headers": headers, "schemaVersion": version}
    tried = ask(reach(url, key, data_dir), "POST", _pod(pod_id, "schema-trials"), body)
    typer.echo(json.dumps(tried["event"], indent=2, ensure_ascii=False))
    if tried["problem"]:
        typer.echo(f"The event would not be counted: {tried['problem']['detail']}", err=True)
        raise typer.Exit(3)


@dead_letters.command("list")
def list_dead_letters(
    pod_id: PodId,
    limit: Annotated[int, typer.Option(help="Maximum number to list, newest first.")] = 100,
    code: Annotated[str | None, typer.Option(help="Only list those with this error code.")] = None,
    replayed: Annotated[bool, typer.Option("--replayed", help="Also list those that a replay has counted.")] = False,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, newest first."""
    found = asyncio.run(_collect(reach(url, key, data_dir), pod_id, limit, code, replayed=replayed))
    show(found, LETTER_COLUMNS, as_json)


@dead_letters.command("show")
def show_dead_letter(
    pod_id: PodId,
    letter_id: Annotated[str, typer.Argument(help="The dead letter's id, as shown by `laurels dead-letters list`.")],
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
) -> None:
    """Show a dead letter with its content."""
    path = _pod(pod_id, "dead-letters") + f"/{quote(letter_id, safe='')}"
    typer.echo(json.dumps(ask(reach(url, key, data_dir), "GET", path), indent=2, ensure_ascii=False))


@dead_letters.command("replay")
def replay_dead_letters(
    pod_id: PodId,
    letter_ids: Annotated[
        list[str] | None, typer.Argument(help="Ids, as shown by `laurels dead-letters list`. Default: all.")
    ] = None,
    code: Annotated[str | None, typer.Option(help="Without ids: only replay those with this error code.")] = None,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Replay dead letters with the current schemas.

    Each event counts once, even if it is replayed several times.
    Exits with code 3 if any is refused.
    """
    results = asyncio.run(_replay(reach(url, key, data_dir), pod_id, letter_ids, code))
    refused = [result for result in results if result["status"] == "refused"]
    if as_json:
        typer.echo(json.dumps(results, ensure_ascii=False))
    else:
        counted = sum(result["status"] == "accepted" for result in results)
        before = len(results) - counted - len(refused)
        typer.echo(f"{len(results)} tried: {counted} counted, {before} counted before, {len(refused)} refused.")
        for result in refused[:20]:
            typer.echo(f"  {result['id']}: {result['problem']['detail']}", err=True)
    if refused:
        raise typer.Exit(3)


@dead_letters.command("discard")
def discard_dead_letters(
    pod_id: PodId,
    letter_ids: Annotated[list[str], typer.Argument(help="Ids, as shown by `laurels dead-letters list`.")],
    reason: Annotated[str, typer.Option(help="Why they need no replay.")],
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
) -> None:
    """Discard dead letters that need no replay. They stay in Kafka, and lists leave them out."""
    body = {"ids": letter_ids, "reason": reason}
    answer = ask(reach(url, key, data_dir), "POST", _pod(pod_id, "dead-letters/discard"), body)
    typer.echo(f"{answer['discarded']} discarded.")


async def _collect(
    settings: Settings, pod_id: str, limit: int | None, code: str | None, *, replayed: bool
) -> list[dict[str, Any]]:
    """Return all dead letters, or the newest `limit` of them."""
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {
        "limit": AT_ONCE if limit is None else min(limit, AT_ONCE),
        "replayed": str(replayed).lower(),
    }
    if code is not None:
        params["code"] = code
    async with connect(settings) as client:
        while limit is None or len(found) < limit:
            page = await call(client, "GET", _pod(pod_id, "dead-letters"), params=params)
            found += page["deadLetters"]
            if page["nextCursor"] is None:
                break
            params["cursor"] = page["nextCursor"]
    return found if limit is None else found[:limit]


async def _replay(settings: Settings, pod_id: str, ids: list[str] | None, code: str | None) -> list[dict[str, Any]]:
    # Replay the oldest first; the API lists the newest first.
    wanted = ids or [each["id"] for each in reversed(await _collect(settings, pod_id, None, code, replayed=False))]
    results: list[dict[str, Any]] = []
    with show_progress("Replaying") as advance:
        async with connect(settings) as client:
            for start in range(0, len(wanted), AT_ONCE):
                body = {"ids": wanted[start : start + AT_ONCE]}
                results += (await call(client, "POST", _pod(pod_id, "replays"), json=body))["results"]
                advance(len(results), len(wanted))
    return results


def _show_schemas(found: list[dict[str, Any]], as_json: bool) -> None:
    """Print schemas as a table, with the sources of the version and the event id in short form."""
    for schema in [] if as_json else found:
        for name in ("versionFrom", "eventIdFrom"):
            where = schema[name] or {}
            schema[name] = where.get("field") or (f"header {where['header']}" if where.get("header") else None)
    show(found, SCHEMA_COLUMNS, as_json)


def _pod(pod_id: str, what: str) -> str:
    return f"/api/v1/pods/{quote(pod_id, safe='')}/{what}"


def _schema(pod_id: str, version: str) -> str:
    return _pod(pod_id, f"schemas/{quote(version, safe='')}")


def _read_json(file: str) -> dict[str, Any]:
    text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    name = "standard input" if file == "-" else file
    try:
        read = json.loads(text)
    except ValueError as error:
        raise Invalid("invalid_json", f"{name} is not JSON: {error}.") from None
    if not isinstance(read, dict):
        raise Invalid("not_an_object", f"{name} must contain a JSON object.")
    return read
