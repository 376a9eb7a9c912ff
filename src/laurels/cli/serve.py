"""`laurels serve` and `laurels ingest`."""

from pathlib import Path
from typing import Annotated

import typer

from laurels.cli.options import ConfigFile, DataDir, IndexUrl, LedgerUrl, option
from laurels.config import is_shared, read_settings
from laurels.errors import Invalid
from laurels.logs import configure_logs

Kafka = Annotated[str | None, option("kafka")]
KafkaConfig = Annotated[Path | None, option("kafka_config")]
LogLevel = Annotated[str | None, option("log_level")]


def serve(
    host: Annotated[str | None, option("host")] = None,
    port: Annotated[int | None, option("port")] = None,
    data_dir: DataDir = None,
    ledger: LedgerUrl = None,
    index: IndexUrl = None,
    spool: Annotated[Path | None, option("spool")] = None,
    kafka: Kafka = None,
    kafka_config: KafkaConfig = None,
    ingest: Annotated[
        bool, typer.Option("--ingest", help="Also read scores from Kafka. Variable: LAURELS_INGEST=1.")
    ] = False,
    workers: Annotated[int | None, option("workers")] = None,
    log_level: LogLevel = None,
    config: ConfigFile = None,
) -> None:
    """Start the server. The first start creates the data folder, the ledger and the admin key."""
    settings = read_settings(
        {
            "kafka": kafka,
            "kafka_config": kafka_config,
            "ingest": 1 if ingest else None,
            "host": host,
            "port": port,
            "data_dir": data_dir,
            "ledger": ledger,
            "index": index,
            "spool": spool,
            "workers": workers,
            "log_level": log_level,
            "config": config,
        }
    )
    configure_logs(settings.server.log_level)
    from laurels.cli import serving

    if settings.server.workers > 1:
        raise typer.Exit(serving.serve_with_workers(settings))
    serving.serve(settings)


def ingest(
    kafka: Kafka = None,
    kafka_config: KafkaConfig = None,
    ledger: LedgerUrl = None,
    index: IndexUrl = None,
    data_dir: DataDir = None,
    host: Annotated[str | None, option("host")] = None,
    port: Annotated[int | None, option("ingest_port")] = None,
    workers: Annotated[int | None, option("workers")] = None,
    log_level: LogLevel = None,
    config: ConfigFile = None,
) -> None:
    """Read scores from Kafka into PostgreSQL and Redis, without serving the API. Serves health checks and metrics."""
    settings = read_settings(
        {
            "kafka": kafka,
            "kafka_config": kafka_config,
            "ingest": 1,
            "ledger": ledger,
            "index": index,
            "data_dir": data_dir,
            "host": host,
            "ingest_port": port,
            "workers": workers,
            "log_level": log_level,
            "config": config,
        }
    )
    if not is_shared(settings):
        raise Invalid(
            "wrong_format",
            "Only one process can use a SQLite ledger. Run `laurels serve --ingest` instead, or set LAURELS_LEDGER "
            "(--ledger) to postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
            field="LAURELS_LEDGER",
        )
    configure_logs(settings.server.log_level)
    from laurels.cli import serving

    if settings.server.workers > 1:
        raise typer.Exit(serving.ingest_with_workers(settings))
    serving.ingest(settings)
