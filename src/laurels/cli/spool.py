"""`laurels spool`: events in a server's spool that could not be replayed."""

import typer

from laurels.cli.admin import AsJson, Key, Url, ask, reach, show
from laurels.cli.serve import DataDir

spool = typer.Typer(
    help="Inspect the events that a server keeps on its disk while the ledger is unreachable.", no_args_is_help=True
)

COLUMNS = ["UUID", "userId", "score", "eventId", "code", "reason", "putAsideAt"]


@spool.command("list")
def list_events(url: Url = None, key: Key = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the events that were set aside because they could not be replayed, with the reason."""
    found = ask(reach(url, key, data_dir), "GET", "/api/v1/spool")
    show(found["putAside"], COLUMNS, as_json)
    typer.echo(f"Waiting for the ledger: {found['waiting']}. Set aside: {len(found['putAside'])}.", err=True)


@spool.command("replay")
def replay(url: Url = None, key: Key = None, data_dir: DataDir = None) -> None:
    """Replay the events that were set aside."""
    found = ask(reach(url, key, data_dir), "POST", "/api/v1/spool/replay")
    typer.echo(f"Events to replay: {found['replaying']}.")
