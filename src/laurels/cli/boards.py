"""`laurels boards`: list, show, create, change, archive, delete and reshard boards."""

import asyncio
import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from laurels.cli.connect import Peer, ask, ask_all, call, connect
from laurels.cli.fields import Fields, read_fields, read_json
from laurels.cli.options import AsJson, BoardId, OfPod, Yes, with_server
from laurels.cli.output import confirm, show, show_one
from laurels.cli.progress import show_progress
from laurels.core.board import Status
from laurels.core.limits import SHARDS
from laurels.settings import Settings

boards = typer.Typer(help="List, show, create and change boards.", no_args_is_help=True)

LOOK_EVERY_S = 0.5
BOARDS = "/api/v1/leaderboards"
COLUMNS = ["UUID", "podId", "name", "status", "rule", "windows", "totalUsers"]


@boards.command("list")
@with_server
def list_boards(
    settings: Settings,
    pod: OfPod = None,
    status: Annotated[Status | None, typer.Option(help="Only boards with this status.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the boards."""
    _show(ask_all(settings, BOARDS, "leaderboards", podId=pod, status=status and status.value), as_json)


@boards.command("show")
@with_server
def show_board(settings: Settings, board: BoardId, as_json: AsJson = False) -> None:
    """Show a board with all its settings and its current periods."""
    found = ask(settings, "GET", path_of(board))
    if not as_json:
        found["windows"] = _windows(found)
        found["periods"] = ", ".join(f"{each['period']} ({each['status']})" for each in found["periods"])
    show_one(found, as_json)


@boards.command("create")
@with_server
def create_board(
    settings: Settings,
    board: Annotated[str, typer.Argument(help="The UUID of the new board.")],
    fields: Fields = None,
    file: Annotated[
        str | None, typer.Option(help="JSON file with fields, or - for standard input. Fields after it win.")
    ] = None,
    pod: OfPod = None,
    as_json: AsJson = False,
) -> None:
    """Create a board. FIELDS are those of the API, such as rule=increment public=true 'windows=["weekly", "all"]'."""
    body = {"UUID": board, "name": board} | ({} if file is None else read_json(file)) | read_fields(fields)
    if pod is not None:
        body["podId"] = pod
    _show([ask(settings, "POST", BOARDS, body)], as_json)


@boards.command("set")
@with_server
def set_board(
    settings: Settings,
    board: BoardId,
    fields: Fields,
    as_json: AsJson = False,
) -> None:
    """Change fields of a board, such as name=Arena capacity=1000 public=true endTime=null."""
    _show([ask(settings, "PATCH", path_of(board), read_fields(fields))], as_json)


@boards.command("archive")
@with_server
def archive_board(settings: Settings, board: BoardId, as_json: AsJson = False) -> None:
    """Archive a board: it can be read, but takes no more scores."""
    _show([ask(settings, "DELETE", path_of(board))], as_json)


@boards.command("delete")
@with_server
def delete_board(settings: Settings, board: BoardId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a board with its scores, final ranks and rewards, for good."""
    confirm(f"Delete board {board} with all its scores, final ranks and rewards, for good?", yes=yes)
    done = ask(settings, "POST", f"{path_of(board)}/deletion", {"confirm": board})
    if as_json:
        typer.echo(json.dumps(done))
    else:
        typer.echo(f"Board {board} is deleted.")


@boards.command("reshard")
@with_server
def reshard(
    settings: Settings,
    board: BoardId,
    shards: Annotated[int, typer.Argument(min=1, max=SHARDS, help="Into how many parts to split each ranking.")],
    wait: Annotated[bool, typer.Option(help="Wait until reads use the new parts.")] = True,
    as_json: AsJson = False,
) -> None:
    """Split the rankings of a board into another number of parts, while it is in use."""
    path = path_of(board)

    async def run() -> Any:
        async with connect(settings) as client:
            found = await call(client, "PATCH", path, json={"shards": shards})
            return await _switched(client, path, found, shards) if wait else found

    found = asyncio.run(run())
    if as_json:
        typer.echo(json.dumps({"UUID": found["UUID"], "shards": found["shards"], "resharding": found["resharding"]}))
    elif found["shards"] == shards:
        typer.echo(f"Board {board} has {shards} shards.")
    elif not wait:
        typer.echo(f"Board {board} has {found['shards']} shards; {shards} are being built.")
    else:
        typer.echo(f"Board {board} still has {found['shards']} shards: the change was cancelled meanwhile.", err=True)
    if wait and found["shards"] != shards:
        raise typer.Exit(1)


async def _switched(client: Peer, path: str, found: Any, shards: int) -> Any:
    """Return the board once reads use the new parts, or once the change was cancelled."""
    with show_progress("users in the new parts") as advance:
        while found["shards"] != shards and (change := found["resharding"]) and change["state"] == "building":
            loaded = change.get("usersLoaded")
            if loaded:
                advance(loaded, found["totalUsers"])
            await asyncio.sleep(LOOK_EVERY_S)
            found = await call(client, "GET", path)
    return found


def path_of(board: str) -> str:
    return f"{BOARDS}/{quote(board, safe='')}"


def _show(found: list[dict[str, Any]], as_json: bool) -> None:
    rows = found if as_json else [board | {"windows": _windows(board)} for board in found]
    show(rows, COLUMNS, as_json)


def _windows(board: dict[str, Any]) -> str:
    return ", ".join(each if isinstance(each, str) else each["window"] for each in board["windows"])
