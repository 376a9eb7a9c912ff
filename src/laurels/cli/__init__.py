"""The `laurels` command line.

`laurels serve` runs a server. Most other commands call a server over HTTP; if no server uses the data folder, the
command serves the folder itself while it runs.
"""

import sys

import httpx
import typer

from laurels import __version__
from laurels.cli import (
    admin,
    backup,
    bench,
    boards,
    configuration,
    data,
    events,
    migrate,
    seasons,
    serve,
    simulate,
    spool,
    users,
    watch,
)
from laurels.errors import ERROR_MAPPINGS, LaurelsError
from laurels.logs import configure_logs

app = typer.Typer(
    name="laurels",
    help="A real-time leaderboard service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve.serve)
app.command()(serve.ingest)
app.command()(migrate.migrate)
app.command()(backup.backup)
app.command()(backup.restore)
app.command()(data.verify)
app.command()(data.rebuild)
app.command()(data.top)
app.command()(data.jobs)
app.command()(admin.audit)
app.command()(watch.watch)
app.command()(simulate.simulate)
app.command()(bench.bench)
app.command("import")(data.import_)
app.command("export")(data.export)
app.add_typer(configuration.config, name="config")
app.add_typer(admin.pods, name="pods")
app.add_typer(admin.keys, name="keys")
app.add_typer(boards.boards, name="boards")
app.add_typer(seasons.seasons, name="seasons")
app.add_typer(seasons.rewards, name="rewards")
app.add_typer(users.users, name="users")
app.add_typer(users.reviews, name="reviews")
app.add_typer(admin.webhooks, name="webhooks")
app.add_typer(events.schemas, name="schemas")
app.add_typer(events.dead_letters, name="dead-letters")
app.add_typer(spool.spool, name="spool")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"laurels {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Handle the options that come before the command."""
    del version
    # Scripts read the output of commands, so only warnings and errors are logged, to standard error. `serve` logs more.
    configure_logs("warning")


def main() -> None:
    """Run the command line; print an expected error as one line, without a traceback, and set the exit code."""
    try:
        app()
    except LaurelsError as error:
        typer.echo(f"laurels: {error.message}", err=True)
        sys.exit(ERROR_MAPPINGS[type(error)].exit_code)
    except httpx.TransportError as error:
        url = error._request.url if error._request else None  # noqa: SLF001 - the property raises if there is none
        where = f" at {url.scheme}://{url.netloc.decode()}" if url else ""
        typer.echo(f"laurels: the server{where} can't be reached: {error}", err=True)
        sys.exit(5)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"laurels: {where}{error.strerror or error}", err=True)
        sys.exit(1)
