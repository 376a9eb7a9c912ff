"""`laurels top`, `jobs`, `verify`, `rebuild`, `import` and `export`."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import httpx
import typer

from laurels.cli.admin import AsJson, Key, Url, ask, reach, show
from laurels.cli.connect import call, connect, reach_other
from laurels.cli.move import Move, report
from laurels.cli.progress import show_progress
from laurels.cli.serve import DataDir
from laurels.cli.transfer import Format, Importer, guess_format, write_events
from laurels.client.trying import error_of
from laurels.config import Settings
from laurels.core.ids import new_key_id
from laurels.errors import Invalid

Board = Annotated[str, typer.Argument(help="The board's UUID.")]
FileFormat = Annotated[Format | None, typer.Option("--format", help="Default: by the file's name, else ndjson.")]

DIFFERENT = 1
JSON = {"Content-Type": "application/json"}
# An import outlasts a restart of the server: what was sent and not answered is sent again.
PATIENT = 8


def top(
    board: Annotated[str, typer.Argument(help="The board's UUID.")] = "default",
    limit: Annotated[int, typer.Option(help="How many users.")] = 10,
    offset: Annotated[int, typer.Option(help="How many to skip.")] = 0,
    window: Annotated[str | None, typer.Option(help="Default: the board's first one.")] = None,
    period: Annotated[str | None, typer.Option(help="A period's name, or 'previous'. Default: this one.")] = None,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the best users of a board."""
    query = {"limit": limit, "offset": offset, "window": window, "period": period}
    chosen = urlencode({name: value for name, value in query.items() if value is not None})
    path = f"/api/v1/leaderboards/{quote(board, safe='')}/top?{chosen}"
    users = ask(reach(url, key, data_dir), "GET", path)["users"]
    show(users, ["rank", "userId", "score", "timestamp"], as_json)


def jobs(url: Url = None, key: Key = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what is done now and then, once for all servers, and what came of the last runs."""
    found = ask(reach(url, key, data_dir), "GET", "/api/v1/jobs")["jobs"]
    if not as_json:
        found = [job | {"last": _last_run(job)} for job in found]
    show(found, ["job", "runs", "finishedAt", "last"], as_json)


def _last_run(job: dict[str, Any]) -> str:
    if job["running"]:
        return "running"
    if job["error"] is not None:
        return f"failed: {job['error']}"
    return ", ".join(f"{name} {count}" for name, count in (job["result"] or {}).items()) or "done"


def verify(url: Url = None, key: Key = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Compare the index and the stored rows with a fresh fold of all events. Exit code 1: they differ."""
    last = asyncio.run(
        _follow(reach(url, key, data_dir), "GET", "/api/v1/verify", "Checking users", _difference, as_json)
    )
    if as_json:
        typer.echo(json.dumps(last))
    else:
        typer.echo(f"Users checked: {last['checkedUsers']}. Differences: {last['differences']}.")
    if last["differences"]:
        raise typer.Exit(DIFFERENT)


def rebuild(
    board: Annotated[str | None, typer.Argument(help="The board's UUID. Default: all boards.")] = None,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Build rankings anew from the ledger while they are in use, and tell what differed."""
    path = "/api/v1/rebuild" + ("" if board is None else f"?board={quote(board, safe='')}")
    last = asyncio.run(_follow(reach(url, key, data_dir), "POST", path, "Rebuilding", _rebuilt, as_json))
    if as_json:
        typer.echo(json.dumps(last))
    else:
        typer.echo(f"Rows: {last['rebuiltRows']}. Users that differed before: {last['differences']}.")


def export(
    board: Board,
    output: Annotated[Path | None, typer.Argument(help="Default: standard output.")] = None,
    file_format: FileFormat = None,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
) -> None:
    """Write all events of a board, as JSON lines or CSV."""
    chosen = file_format or guess_format(output)
    asyncio.run(_export(reach(url, key, data_dir), board, output, chosen))


def import_(
    board: Annotated[
        str | None, typer.Argument(help="The board's UUID. Needed for a file; with --from, the default is all.")
    ] = None,
    source: Annotated[Path | None, typer.Argument(metavar="FILE", help="Default: standard input.")] = None,
    file_format: FileFormat = None,
    run_id: Annotated[
        str | None, typer.Option(help="Repeat a broken import with its own run id, and nothing counts twice.")
    ] = None,
    from_url: Annotated[
        str | None, typer.Option("--from", help="Not a file: everything of the Laurels that runs at this address.")
    ] = None,
    from_key: Annotated[str | None, typer.Option(help="The admin key of the Laurels that --from names.")] = None,
    last: Annotated[
        bool,
        typer.Option("--last", help="The Laurels that --from names takes no more scores: bring rewards over, too."),
    ] = False,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
) -> None:
    """Read events into a board, from JSON lines or CSV; or, with --from, all that another Laurels has.

    A line that can't be used is reported with its number, and the rest goes in. Lines without an eventId get one
    from the run id and their line number. Exit code 1: some lines did not go in.
    """
    if from_url is not None:
        if asyncio.run(_import_from(reach(url, key, data_dir), from_url, from_key, board, last=last)):
            raise typer.Exit(DIFFERENT)
        return
    if board is None:
        raise Invalid("missing_field", "Name the BOARD to import into, or another Laurels with --from.", field="BOARD")
    chosen = file_format or guess_format(source)
    refused = asyncio.run(_import(reach(url, key, data_dir), board, source, chosen, run_id or new_key_id()))
    if refused:
        raise typer.Exit(DIFFERENT)


async def _follow(
    settings: Settings,
    method: str,
    path: str,
    title: str,
    sentence: Callable[[dict[str, Any]], str | None],
    as_json: bool,
) -> dict[str, Any]:
    """Show what a call streams: lines that have a sentence, and how far it is. Gives the last line."""
    last: dict[str, Any] = {}
    async with (
        connect(settings) as client,
        # No limit between two lines: a stretch of users with many events takes its time.
        client.http.stream(method, path, timeout=None) as response,
    ):
        if not response.is_success:
            await response.aread()
            raise client.with_hint(error_of(response))
        with show_progress(title) as advance:
            async for line in _lines(response):
                last = json.loads(line)
                if (told := sentence(last)) is not None:
                    typer.echo(line if as_json else told)
                done = last.get("checkedUsers", last.get("rebuiltRows"))
                if done is not None:
                    advance(done, last.get("totalUsers", last.get("totalRows")))
    if not last.get("done"):
        raise httpx.RemoteProtocolError("the answer ended early")
    return last


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines that end with a line feed. httpx also ends them at other signs, which a user id may have."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode()
    if rest:
        yield rest.decode()


def _difference(line: dict[str, Any]) -> str | None:
    if "fault" not in line:
        return None
    return (
        f"{line['fault']}: board {line['board']}, period {line['period']}, user {line['userId']}: "
        f"expected {line['expected']}, found {line['found']}"
    )


def _rebuilt(line: dict[str, Any]) -> str | None:
    if "board" not in line:
        return None
    what = "there was none before" if "differed" not in line else f"{line['differed']} users differed"
    users = f": {', '.join(line['users'])}" if line.get("users") else ""
    return f"board {line['board']}, period {line['period']}: {what}{users}"


async def _export(settings: Settings, board: str, output: Path | None, file_format: Format) -> None:
    path = f"/api/v1/leaderboards/{quote(board, safe='')}/events"
    async with connect(settings) as client:
        page = await call(client, "GET", path, params={"limit": 1000})
        total, done = page["totalEvents"], 0
        with show_progress("Exporting events") as advance, write_events(output, file_format) as write:
            while True:
                write(page["events"])
                done += len(page["events"])
                advance(done, total)
                if page["nextCursor"] is None:
                    break
                page = await call(client, "GET", path, params={"limit": 1000, "cursor": page["nextCursor"]})
    typer.echo(f"Events exported: {done}.", err=True)


async def _import(settings: Settings, board: str, source: Path | None, file_format: Format, run_id: str) -> int:
    if source is None and sys.stdin.isatty():
        raise Invalid("missing_field", "Name a FILE to import, or pipe one in.", field="FILE")
    path = f"/api/v1/leaderboards/{quote(board, safe='')}/scores"
    importer = Importer(run_id, lambda text: typer.echo(text, err=True))
    with sys.stdin.buffer if source is None else source.open("rb") as stream:
        size = None if source is None else os.fstat(stream.fileno()).st_size
        typer.echo(f"Importing into {board}, run id {run_id}.", err=True)
        try:
            async with connect(settings) as client:
                with show_progress("Importing bytes" if size else "Importing lines") as advance:
                    for batch in importer.batches(stream, file_format):
                        answer = await call(client, "POST", path, content=batch.body, headers=JSON, tries=PATIENT)
                        importer.take(batch, answer["results"])
                        advance(stream.tell() if size else importer.done, size)
        except BaseException:
            typer.echo(f"{importer.summary} It did not finish: repeat it with --run-id {run_id}.", err=True)
            raise
    typer.echo(importer.summary, err=True)
    return importer.refused


async def _import_from(
    settings: Settings, from_url: str, from_key: str | None, board: str | None, *, last: bool
) -> int:
    async with reach_other(from_url, from_key) as source, connect(settings) as target:
        move = Move(source, target, last=last)
        try:
            await move.everything(board)
        finally:
            if move.boards:
                report(move)
    return len(move.refused)
