"""`laurels bench`: measure this machine with Laurels and with baselines in the same run."""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from laurels.errors import Invalid


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(help="What to measure: calls (default), sizes (a million users), mixed (open loop), boards."),
    ] = None,
    users: Annotated[int, typer.Option(min=100, max=10_000_000, help="Users of the board.")] = 100_000,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds per call and round.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds. All sides are measured in turn.")] = 3,
    connections: Annotated[int, typer.Option(min=1, max=1000, help="Connections of the client.")] = 64,
    peer: Annotated[
        list[str] | None, typer.Option(help="Another server to measure, as NAME=URL. It gets all the users.")
    ] = None,
    describe: Annotated[
        list[str] | None, typer.Option(help="How to call a peer, as NAME=FILE (TOML). podium and laurels are known.")
    ] = None,
    docs: Annotated[Path | None, typer.Option(help="Write tables and plots into this Markdown page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure Laurels and baselines on this machine, in the same run.

    Starts every server that it needs on free ports, with data in a temporary folder, and stops them at the end. Sides
    whose programs are not installed are left out.
    """
    from laurels.bench import report
    from laurels.bench.peers import read_peer
    from laurels.bench.sides import Options
    from laurels.bench.suites import SUITES, Row

    chosen = suites or ["calls"]
    unknown = [name for name in chosen if name not in SUITES]
    if unknown:
        raise Invalid(
            "not_a_choice", f"There is no suite {unknown[0]!r}. Use one of: {', '.join(SUITES)}.", field="SUITES"
        )
    described = {name: Path(file) for name, _, file in (each.partition("=") for each in describe or ())}
    peers = [read_peer(each, described) for each in peer or ()]
    options = Options(users, seconds, rounds, connections)

    def say(text: str) -> None:
        typer.echo(text, err=True)

    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="laurels-bench-") as folder:
        for name in chosen:
            say(f"suite {name}")
            own = Path(folder) / name
            own.mkdir()
            rows += SUITES[name](own, options, peers, say)
    told = report.facts(report.own_command(), options)
    typer.echo(json.dumps(report.to_json(told, rows), indent=2) if as_json else report.to_text(told, rows))
    if docs is not None:
        report.write_docs(docs, told, rows)
