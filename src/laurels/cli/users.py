"""`laurels users` and `laurels reviews`: players and moderation."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from laurels.cli.boards import path_of
from laurels.cli.connect import ask, ask_all, connect
from laurels.cli.fields import read_fields
from laurels.cli.options import AsJson, BoardId, OfPod, OnBoard, Reason, UserId, Yes, with_server
from laurels.cli.output import confirm, show, show_one
from laurels.client.retry import error_of
from laurels.core.reviews import ReviewState
from laurels.errors import Invalid, NotFound
from laurels.settings import Settings

users = typer.Typer(help="Show, hide, erase and export players, and void their scores.", no_args_is_help=True)
reviews = typer.Typer(help="Decide about suspicious scores, which wait for a moderator.", no_args_is_help=True)

SCORE_COLUMNS = ["UUID", "window", "period", "rank", "score", "timestamp"]
ACT_COLUMNS = ["actId", "kind", "UUID", "userId", "events", "at", "doneAt", "undoneBy", "reason"]
REVIEW_COLUMNS = ["reviewId", "status", "rule", "userId", "score", "timestamp", "decidedBy"]


@users.command("show")
@with_server
def show_user(settings: Settings, user: UserId, pod: OfPod = None, as_json: AsJson = False) -> None:
    """Show a player: the profile, where the player is hidden, and the current scores."""
    scores = ask(settings, "GET", f"{_user(user)}/scores", podId=pod)["scores"]
    try:
        profile = ask(settings, "GET", _user(user), podId=pod)
    except NotFound:
        if not scores:
            raise
        # A player may have scores and no profile.
        profile = {"userId": user, "hidden": []}
    if as_json:
        typer.echo(json.dumps(profile | {"scores": scores}, ensure_ascii=False))
        return
    show_one(profile | {"hidden": _places(profile.get("hidden", []))}, as_json)
    typer.echo()
    show(scores, SCORE_COLUMNS, as_json)


@users.command("hide")
@with_server
def hide_user(
    settings: Settings,
    user: UserId,
    pod: OfPod = None,
    board: OnBoard = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="The player still sees themselves.")] = False,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Leave a player out of all rankings, or out of those of one board. Scores still count."""
    path, query = _hidden(user, pod, board)
    show_act(ask(settings, "PUT", path, {"shadow": shadow, "reason": reason}, **query), as_json)


@users.command("unhide")
@with_server
def unhide_user(
    settings: Settings,
    user: UserId,
    pod: OfPod = None,
    board: OnBoard = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Show a hidden player in rankings again."""
    path, query = _hidden(user, pod, board)
    show_act(ask(settings, "DELETE", path, reason=reason, **query), as_json)


@users.command("void")
@with_server
def void_events(
    settings: Settings,
    board: BoardId,
    events: Annotated[list[str] | None, typer.Argument(help="The ids of the events.")] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(help="Instead of ids: all events whose metadata have this NAME=VALUE. Repeatable: all of them."),
    ] = None,
    user: Annotated[str | None, typer.Option(help="With --match: only events of this player.")] = None,
    reason: Reason = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Void events, so that they no longer count; `users restore` reverts it.

    Shows first how many events and players it concerns, and asks.
    """
    body = {"eventIds": events or [], "match": read_fields(match), "userId": user}
    if dry_run or not yes:
        preview = ask(settings, "POST", f"{path_of(board)}/void/preview", body)
        if dry_run and as_json:
            typer.echo(json.dumps(preview, ensure_ascii=False))
            return
        more = "" if preview["complete"] else "at least "
        typer.echo(f"Events to void: {more}{preview['events']}, of {more}{preview['users']} players.", err=True)
        show(preview["scores"], ["userId", "score", "scoreAfter"], as_json=False)
        if dry_run:
            return
        confirm("Void them?", yes=yes)
    show_act(ask(settings, "POST", f"{path_of(board)}/void", body | {"reason": reason}), as_json)


@users.command("restore")
@with_server
def restore_act(
    settings: Settings,
    act: Annotated[str, typer.Argument(help="The act's id, as shown by `laurels users acts`.")],
    pod: OfPod = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Revert an act of moderation: events count again, a player is shown as before."""
    path = f"/api/v1/acts/{quote(act, safe='')}/restore"
    show_act(ask(settings, "POST", path, {"reason": reason}, podId=pod), as_json)


@users.command("acts")
@with_server
def list_acts(
    settings: Settings,
    pod: OfPod = None,
    board: OnBoard = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the acts of moderation, newest first."""
    show(ask_all(settings, "/api/v1/acts", "acts", limit, podId=pod, UUID=board), ACT_COLUMNS, as_json)


@users.command("erase")
@with_server
def erase_user(
    settings: Settings,
    user: UserId,
    pod: OfPod = None,
    reason: Reason = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase a player: the name disappears everywhere, for good."""
    confirm(f"Erase {user}? This can't be undone.", yes=yes)
    show_act(ask(settings, "DELETE", _user(user), podId=pod, reason=reason), as_json)


@users.command("export")
@with_server
def export_user(
    settings: Settings,
    user: UserId,
    output: Annotated[Path | None, typer.Argument(help="File to write. Default: standard output.")] = None,
    pod: OfPod = None,
) -> None:
    """Export all data about a player, as JSON lines."""
    asyncio.run(_export(settings, user, pod, output))


@reviews.command("list")
@with_server
def list_reviews(
    settings: Settings,
    board: BoardId,
    status: Annotated[ReviewState | None, typer.Option(help="Only those with this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the scores of a board that wait for a moderator, or did."""
    path = f"{path_of(board)}/reviews"
    show(ask_all(settings, path, "reviews", limit, status=status and status.value), REVIEW_COLUMNS, as_json)


ReviewId = Annotated[str, typer.Argument(help="The review's id, as shown by `laurels reviews list`.")]


@reviews.command("accept")
@with_server
def accept_review(
    settings: Settings, board: BoardId, review: ReviewId, reason: Reason = None, as_json: AsJson = False
) -> None:
    """Let a score count, with its own time."""
    show_act(_decide(settings, board, review, "accept", reason), as_json)


@reviews.command("reject")
@with_server
def reject_review(
    settings: Settings, board: BoardId, review: ReviewId, reason: Reason = None, as_json: AsJson = False
) -> None:
    """Refuse a score: it never counts."""
    show_act(_decide(settings, board, review, "reject", reason), as_json)


def show_act(act: dict[str, Any], as_json: bool) -> None:
    show([act], [name for name in ACT_COLUMNS if as_json or act.get(name) is not None], as_json)


def _decide(settings: Settings, board: str, review: str, decision: str, reason: str | None) -> Any:
    path = f"{path_of(board)}/reviews/{quote(review, safe='')}/{decision}"
    return ask(settings, "POST", path, {"reason": reason})


async def _export(settings: Settings, user: str, pod: str | None, output: Path | None) -> None:
    params = {} if pod is None else {"podId": pod}
    async with (
        connect(settings) as client,
        # No timeout between two lines, because users with many events take long to read.
        client.http.stream("GET", f"{_user(user)}/export", params=params, timeout=None) as answer,
    ):
        if not answer.is_success:
            await answer.aread()
            raise client.with_hint(error_of(answer))
        with contextlib.nullcontext(sys.stdout.buffer) if output is None else output.open("wb") as file:
            async for chunk in answer.aiter_bytes():
                file.write(chunk)


def _hidden(user: str, pod: str | None, board: str | None) -> tuple[str, dict[str, str | None]]:
    """Return the path and the query of what hides a player."""
    if board is None:
        return f"{_user(user)}/hidden", {"podId": pod}
    if pod is not None:
        raise Invalid("wrong_format", "Use either --pod or --board.", field="--pod")
    return f"{path_of(board)}/users/{quote(user, safe='')}/hidden", {}


def _places(hidden: list[dict[str, Any]]) -> str:
    return ", ".join((each["UUID"] or "all boards") + (" (shadow)" if each["shadow"] else "") for each in hidden)


def _user(user: str) -> str:
    return f"/api/v1/users/{quote(user, safe='')}"
