"""`laurels schemas` and `laurels dead-letters`."""

import asyncio
import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from laurels.cli.connect import ask, ask_all, call, connect
from laurels.cli.fields import read_json
from laurels.cli.options import AsJson, PodId, with_server
from laurels.cli.output import show
from laurels.cli.progress import show_progress
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
@with_server
def list_schemas(settings: Settings, pod_id: PodId, as_json: AsJson = False) -> None:
    """List the schemas of a pod, newest first."""
    _show_schemas(ask(settings, "GET", _pod(pod_id, "schemas"))["schemas"], as_json)


@schemas.command("show")
@with_server
def show_schema(settings: Settings, pod_id: PodId, version: Version) -> None:
    """Show a schema as JSON, in the format that `laurels schemas put` reads."""
    found = ask(settings, "GET", _schema(pod_id, version))
    for name in ("podId", "createdAt", "updatedAt"):
        found.pop(name)
    for name in ("eventIdFrom", "versionFrom"):
        found[name] = found[name] and {source: value for source, value in found[name].items() if value is not None}
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


@schemas.command("put")
@with_server
def put_schema(
    settings: Settings,
    pod_id: PodId,
    file: Annotated[str, typer.Argument(help="JSON file with the schema, or - for standard input.")],
    as_json: AsJson = False,
) -> None:
    """Create a schema, or replace the one with the same version."""
    body = read_json(file)
    version = body.get("schemaVersion")
    if not isinstance(version, str):
        raise Invalid("missing_field", f"{file}: schemaVersion is missing.", field="schemaVersion", rule="required")
    _show_schemas([ask(settings, "PUT", _schema(pod_id, version), body)], as_json)


@schemas.command("state")
@with_server
def set_state(
    settings: Settings,
    pod_id: PodId,
    version: Version,
    state: Annotated[str, typer.Argument(help="draft, active, deprecated or retired.")],
    as_json: AsJson = False,
) -> None:
    """Change the state of a schema."""
    changed = ask(settings, "PATCH", _schema(pod_id, version), {"state": state})
    _show_schemas([changed], as_json)


@schemas.command("delete")
@with_server
def delete_schema(settings: Settings, pod_id: PodId, version: Version, as_json: AsJson = False) -> None:
    """Delete a schema that is in state draft or retired."""
    _show_schemas([ask(settings, "DELETE", _schema(pod_id, version))], as_json)


@schemas.command("try")
@with_server
def try_schema(
    settings: Settings,
    pod_id: PodId,
    file: Annotated[str, typer.Argument(help="JSON file with an event of the game, or - for standard input.")],
    version: Annotated[
        str | None, typer.Option(help="Schema version. Default: the version that a consumer would choose.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="Header of the Kafka record, as NAME=VALUE. Can be repeated.")
    ] = None,
) -> None:
    """Show how an event would be read, without storing it.

    If the event would not be counted, prints the reason and exits with code 3.
    """
    for each in header or []:
        if "=" not in each:
            raise Invalid("wrong_format", f"--header {each!r} must be NAME=VALUE.", field="--header")
    headers = dict(each.partition("=")[::2] for each in header or [])
    body = {"event": read_json(file), "headers": headers, "schemaVersion": version}
    tried = ask(settings, "POST", _pod(pod_id, "schema-trials"), body)
    typer.echo(json.dumps(tried["event"], indent=2, ensure_ascii=False))
    if tried["problem"]:
        typer.echo(f"The event would not be counted: {tried['problem']['detail']}", err=True)
        raise typer.Exit(3)


@dead_letters.command("list")
@with_server
def list_dead_letters(
    settings: Settings,
    pod_id: PodId,
    limit: Annotated[int, typer.Option(help="Maximum number to list, newest first.")] = 100,
    code: Annotated[str | None, typer.Option(help="Only list those with this error code.")] = None,
    replayed: Annotated[bool, typer.Option("--replayed", help="Also list those that a replay has counted.")] = False,
    as_json: AsJson = False,
) -> None:
    """List dead letters, newest first."""
    found = _letters(settings, pod_id, limit, code, replayed=replayed)
    show(found, LETTER_COLUMNS, as_json)


@dead_letters.command("show")
@with_server
def show_dead_letter(
    settings: Settings,
    pod_id: PodId,
    letter_id: Annotated[str, typer.Argument(help="The dead letter's id, as shown by `laurels dead-letters list`.")],
) -> None:
    """Show a dead letter with its content."""
    path = _pod(pod_id, "dead-letters") + f"/{quote(letter_id, safe='')}"
    typer.echo(json.dumps(ask(settings, "GET", path), indent=2, ensure_ascii=False))


@dead_letters.command("replay")
@with_server
def replay_dead_letters(
    settings: Settings,
    pod_id: PodId,
    letter_ids: Annotated[
        list[str] | None, typer.Argument(help="Ids, as shown by `laurels dead-letters list`. Default: all.")
    ] = None,
    code: Annotated[str | None, typer.Option(help="Without ids: only replay those with this error code.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay dead letters with the current schemas.

    Each event counts once, even if it is replayed several times.
    Exits with code 3 if any is refused.
    """
    # Replay the oldest first; the API lists the newest first.
    wanted = letter_ids or [each["id"] for each in reversed(_letters(settings, pod_id, None, code, replayed=False))]
    results = asyncio.run(_replay(settings, pod_id, wanted))
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
@with_server
def discard_dead_letters(
    settings: Settings,
    pod_id: PodId,
    letter_ids: Annotated[list[str], typer.Argument(help="Ids, as shown by `laurels dead-letters list`.")],
    reason: Annotated[str, typer.Option(help="Why they need no replay.")],
) -> None:
    """Discard dead letters that need no replay. They stay in Kafka, and lists leave them out."""
    body = {"ids": letter_ids, "reason": reason}
    answer = ask(settings, "POST", _pod(pod_id, "dead-letters/discard"), body)
    typer.echo(f"{answer['discarded']} discarded.")


def _letters(
    settings: Settings, pod_id: str, limit: int | None, code: str | None, *, replayed: bool
) -> list[dict[str, Any]]:
    """Return all dead letters, or the newest `limit` of them."""
    path = _pod(pod_id, "dead-letters")
    return ask_all(settings, path, "deadLetters", limit, code=code, replayed=str(replayed).lower())


async def _replay(settings: Settings, pod_id: str, wanted: list[str]) -> list[dict[str, Any]]:
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
