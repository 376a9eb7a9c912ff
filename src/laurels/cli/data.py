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

from laurels.cli.connect import ask, call, connect, reach_other
from laurels.cli.move import Move, report
from laurels.cli.options import AsJson, with_server
from laurels.cli.output import show
from laurels.cli.progress import show_progress
from laurels.cli.transfer import Format, Importer, guess_format, write_events
from laurels.client.retry import error_of
from laurels.core.ids import new_key_id
from laurels.errors import Invalid
from laurels.settings import Settings

Board = Annotated[str, typer.Argument(help="The board's UUID.")]
FileFormat = Annotated[
    Format | None, typer.Option("--format", help="Default: csv if the file name ends in .csv, else ndjson.")
]

DIFFERENT = 1
JSON = {"Content-Type": "application/json"}
# Attempts per call of an import: enough to outlast a restart of the server.
PATIENT = 8


@with_server
def top(
    settings: Settings,
    board: Annotated[str, typer.Argument(help="The board's UUID.")] = "default",
    limit: Annotated[int, typer.Option(help="Number of users to show.")] = 10,
    offset: Annotated[int, typer.Option(help="Number of users to skip.")] = 0,
    window: Annotated[str | None, typer.Option(help="Window to show. Default: the board's first window.")] = None,
    period: Annotated[str | None, typer.Option(help="Period name, or 'previous'. Default: the current period.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the top users of a board."""
    query = {"limit": limit, "offset": offset, "window": window, "period": period}
    chosen = urlencode({name: value for name, value in query.items() if value is not None})
    path = f"/api/v1/leaderboards/{quote(board, safe='')}/top?{chosen}"
    users = ask(settings, "GET", path)["users"]
    named = ["displayName"] if any("displayName" in user for user in users) else []
    show(users, ["rank", *named, "userId", "score", "timestamp"], as_json)


@with_server
def jobs(settings: Settings, as_json: AsJson = False) -> None:
    """Show the periodic jobs and the results of their last runs.

    Each job runs on one server at a time, on behalf of all servers.
    """
    found = ask(settings, "GET", "/api/v1/jobs")["jobs"]
    if not as_json:
        found = [job | {"last": _last_run(job)} for job in found]
    show(found, ["job", "runs", "finishedAt", "last"], as_json)


def _last_run(job: dict[str, Any]) -> str:
    if job["running"]:
        return "running"
    if job["error"] is not None:
        return f"failed: {job['error']}"
    return ", ".join(f"{name} {count}" for name, count in (job["result"] or {}).items()) or "done"


@with_server
def verify(settings: Settings, as_json: AsJson = False) -> None:
    """Compare the index and the stored rows with the scores computed from all events.

    Exits with code 1 if they differ.
    """
    last = asyncio.run(_follow(settings, "GET", "/api/v1/verify", "Checking users", _difference, as_json))
    if as_json:
        typer.echo(json.dumps(last))
    else:
        typer.echo(f"Users checked: {last['checkedUsers']}. Differences: {last['differences']}.")
    if last["differences"]:
        raise typer.Exit(DIFFERENT)


@with_server
def rebuild(
    settings: Settings,
    board: Annotated[str | None, typer.Argument(help="The board's UUID. Default: all boards.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild rankings from the ledger while they are in use, and report what differed."""
    path = "/api/v1/rebuild" + ("" if board is None else f"?board={quote(board, safe='')}")
    last = asyncio.run(_follow(settings, "POST", path, "Rebuilding", _rebuilt, as_json))
    if as_json:
        typer.echo(json.dumps(last))
    else:
        typer.echo(f"Rows rebuilt: {last['rebuiltRows']}. Users that differed before: {last['differences']}.")


@with_server
def export(
    settings: Settings,
    board: Board,
    output: Annotated[Path | None, typer.Argument(help="File to write. Default: standard output.")] = None,
    file_format: FileFormat = None,
) -> None:
    """Export all events of a board as JSON lines or CSV."""
    chosen = file_format or guess_format(output)
    asyncio.run(_export(settings, board, output, chosen))


@with_server
def import_(
    settings: Settings,
    board: Annotated[
        str | None, typer.Argument(help="The board's UUID. Required for a file; with --from, default: all boards.")
    ] = None,
    source: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File to read. Default: standard input.")
    ] = None,
    file_format: FileFormat = None,
    run_id: Annotated[
        str | None, typer.Option(help="Run id of an interrupted import to repeat: no event counts twice.")
    ] = None,
    from_url: Annotated[
        str | None, typer.Option("--from", help="Import from the running Laurels server at this URL instead of a file.")
    ] = None,
    from_key: Annotated[str | None, typer.Option(help="Admin key of the server that --from names.")] = None,
    last: Annotated[
        bool,
        typer.Option("--last", help="The server that --from names accepts no more scores: import its rewards too."),
    ] = False,
) -> None:
    """Import events into a board from JSON lines or CSV; with --from, import everything from another server.

    Lines that can't be imported are reported with their line number and skipped.
    A line without an eventId gets one made of the run id and the line number.
    Exits with code 1 if something was not imported.
    """
    if from_url is not None:
        if asyncio.run(_import_from(settings, from_url, from_key, board, last=last)):
            raise typer.Exit(DIFFERENT)
        return
    if board is None:
        raise Invalid("missing_field", "Name the BOARD to import into, or another server with --from.", field="BOARD")
    chosen = file_format or guess_format(source)
    refused = asyncio.run(_import(settings, board, source, chosen, run_id or new_key_id()))
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
    """Call the API, print the lines that the response streams, show progress, and return the last line.

    Prints a line only if `sentence` returns a text for it. Raises `httpx.RemoteProtocolError` if the last line is
    missing.
    """
    last: dict[str, Any] = {}
    async with (
        connect(settings) as client,
        # No timeout between two lines, because users with many events take long to check.
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
        raise httpx.RemoteProtocolError("the response ended early")
    return last


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the lines of a response, split only at line feeds.

    httpx's own line iterator also splits at other characters, which a user id may contain.
    """
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
    what = "the ranking was missing" if "differed" not in line else f"{line['differed']} users differed"
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
        raise Invalid("missing_field", "Name a FILE to import, or pipe events to standard input.", field="FILE")
    path = f"/api/v1/leaderboards/{quote(board, safe='')}/scores"
    importer = Importer(run_id, lambda text: typer.echo(text, err=True))
    with sys.stdin.buffer if source is None else source.open("rb") as stream:
        size = None if source is None else os.fstat(stream.fileno()).st_size
        typer.echo(f"Importing into {board}, run id {run_id}.", err=True)
        try:
            async with connect(settings) as client:
                # Also if there is nothing to import.
                await call(client, "GET", f"/api/v1/leaderboards/{quote(board, safe='')}")
                with show_progress("Importing bytes" if size else "Importing lines") as advance:
                    for batch in importer.batches(stream, file_format):
                        answer = await call(client, "POST", path, content=batch.body, headers=JSON, tries=PATIENT)
                        importer.take(batch, answer["results"])
                        advance(stream.tell() if size else importer.done, size)
        except BaseException:
            typer.echo(f"{importer.summary} The import did not finish. Repeat it with --run-id {run_id}.", err=True)
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
