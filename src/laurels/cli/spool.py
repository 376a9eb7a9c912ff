"""`laurels spool`: events in a server's spool that could not be replayed."""

import typer

from laurels.cli.connect import ask
from laurels.cli.options import AsJson, with_server
from laurels.cli.output import show
from laurels.settings import Settings

spool = typer.Typer(
    help="Inspect the events that a server keeps on its disk while the ledger is unreachable.", no_args_is_help=True
)

COLUMNS = ["UUID", "userId", "score", "eventId", "code", "reason", "putAsideAt"]


@spool.command("list")
@with_server
def list_events(settings: Settings, as_json: AsJson = False) -> None:
    """List the events that were set aside because they could not be replayed, with the reason."""
    found = ask(settings, "GET", "/api/v1/spool")
    show(found["putAside"], COLUMNS, as_json)
    typer.echo(f"Waiting for the ledger: {found['waiting']}. Set aside: {len(found['putAside'])}.", err=True)


@spool.command("replay")
@with_server
def replay(settings: Settings) -> None:
    """Replay the events that were set aside."""
    found = ask(settings, "POST", "/api/v1/spool/replay")
    typer.echo(f"Events to replay: {found['replaying']}.")
