"""`laurels seasons` and `laurels rewards`."""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from laurels.cli.boards import path_of
from laurels.cli.connect import ask, ask_all
from laurels.cli.options import AsJson, BoardId, OfPod, OnBoard, PeriodName, Reason, UserId, Yes, with_server
from laurels.cli.output import confirm, show
from laurels.cli.users import show_act
from laurels.settings import Settings

seasons = typer.Typer(help="List, close, extend and correct the periods of a board.", no_args_is_help=True)
rewards = typer.Typer(help="List and claim rewards.", no_args_is_help=True)

PERIOD_COLUMNS = ["period", "window", "status", "startTime", "endTime", "totalUsers"]
REWARD_COLUMNS = ["rewardId", "userId", "reward", "rank", "score", "prize", "claimedAt"]


@seasons.command("list")
@with_server
def list_seasons(
    settings: Settings,
    board: BoardId,
    window: Annotated[str | None, typer.Option(help="Only periods of this window.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list, latest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the next, current and past periods of a board, latest first."""
    show(ask_all(settings, f"{path_of(board)}/periods", "periods", limit, window=window), PERIOD_COLUMNS, as_json)


@seasons.command("close")
@with_server
def close_season(
    settings: Settings, board: BoardId, period: PeriodName, yes: Yes = False, as_json: AsJson = False
) -> None:
    """End a period now, before its time. The next one begins at once."""
    confirm(f"End {period} of board {board} now? This can't be undone.", yes=yes)
    show([ask(settings, "POST", f"{_period(board, period)}/close")], PERIOD_COLUMNS, as_json)


@seasons.command("extend")
@with_server
def extend_season(
    settings: Settings,
    board: BoardId,
    period: PeriodName,
    end_time: Annotated[str, typer.Argument(help="The new end, such as 2027-01-31T00:00:00Z.")],
    as_json: AsJson = False,
) -> None:
    """Let a period end later. The next one begins at the new end."""
    changed = ask(settings, "POST", f"{_period(board, period)}/extend", {"endTime": end_time})
    show([changed], PERIOD_COLUMNS, as_json)


@seasons.command("refreeze")
@with_server
def refreeze_season(
    settings: Settings, board: BoardId, period: PeriodName, reason: Reason = None, as_json: AsJson = False
) -> None:
    """Correct the final ranks of a period, from the events that count now. The previous ones stay readable."""
    show_act(ask(settings, "POST", f"{_period(board, period)}/refreeze", {"reason": reason}), as_json)


@rewards.command("list")
@with_server
def list_rewards(
    settings: Settings,
    board: BoardId,
    period: PeriodName,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number to list. Default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the rewards that a period granted, best ranks first."""
    show(ask_all(settings, f"{_period(board, period)}/rewards", "rewards", limit), REWARD_COLUMNS, as_json)


@rewards.command("of")
@with_server
def rewards_of_user(
    settings: Settings, user: UserId, pod: OfPod = None, board: OnBoard = None, as_json: AsJson = False
) -> None:
    """List the rewards of a user, latest period first."""
    path = f"/api/v1/users/{quote(user, safe='')}/rewards"
    found = ask_all(settings, path, "rewards", podId=pod, UUID=board)
    show(found, ["rewardId", "UUID", "period", *REWARD_COLUMNS[2:]], as_json)


@rewards.command("claim")
@with_server
def claim_reward(
    settings: Settings,
    reward: Annotated[str, typer.Argument(help="The reward's id, as shown by `laurels rewards list`.")],
    as_json: AsJson = False,
) -> None:
    """Note that a reward was handed over. A second claim changes nothing, and says so."""
    answer = ask(settings, "POST", f"/api/v1/rewards/{quote(reward, safe='')}/claim")
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo("Claimed before." if answer["alreadyClaimed"] else "Claimed.", err=True)
        show([answer["reward"]], REWARD_COLUMNS, as_json)


def _period(board: str, period: str) -> Any:
    return f"{path_of(board)}/periods/{quote(period, safe='')}"
