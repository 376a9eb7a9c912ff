"""`laurels boards`: changes of a board that take time."""

import asyncio
import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from laurels.cli.admin import AsJson, Key, Url, reach
from laurels.cli.connect import Peer, call, connect
from laurels.cli.progress import show_progress
from laurels.cli.serve import DataDir
from laurels.core.limits import SHARDS

boards = typer.Typer(help="Change boards.", no_args_is_help=True)

LOOK_EVERY_S = 0.5


@boards.command("reshard")
def reshard(
    board: Annotated[str, typer.Argument(help="The board's UUID.")],
    shards: Annotated[int, typer.Argument(min=1, max=SHARDS, help="Into how many parts to split each ranking.")],
    wait: Annotated[bool, typer.Option(help="Wait until reads use the new parts.")] = True,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Split the rankings of a board into another number of parts, while it is in use."""
    path = f"/api/v1/leaderboards/{quote(board, safe='')}"

    async def run() -> Any:
        async with connect(reach(url, key, data_dir)) as client:
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
