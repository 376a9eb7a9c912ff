"""Every metric, with what it counts. docs/operating.md lists them."""

import os

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

# When a counter was made is of no use here, and doubles their number.
disable_created_metrics()  # type: ignore[no-untyped-call]

EVENTS = Counter("laurels_events", "Events by what became of them.", ["outcome"])
BATCHES = Counter("laurels_batches", "Transactions that recorded events.")
DEGRADED_READS = Counter("laurels_degraded_reads", "Reads answered from the ledger, for the index could not be asked.")
REFUSED_READS = Counter("laurels_refused_reads", "Reads refused with 503, for neither could be asked.")
REPAIRED = Counter("laurels_repaired_rows", "Rows that were applied to the index from the repair queue.")
REPAIR_QUEUE = Gauge("laurels_repair_queue_rows", "Rows that wait to be applied again.", multiprocess_mode="livesum")
NAME_QUERIES = Counter("laurels_name_queries", "Queries for names that the cache did not have, one a page at most.")
BUILDS = Counter("laurels_builds", "Rankings that were built anew from the ledger.")
SPOOLED = Counter("laurels_spooled_events", "Events kept on the local disk, for the ledger could not be reached.")
SPOOL = Gauge("laurels_spool_events", "Events that wait on the local disk.", multiprocess_mode="livesum")
SPOOL_ASIDE = Gauge(
    "laurels_spool_events_put_aside",
    "Events on the local disk that could not be replayed and wait for somebody to look at them.",
    multiprocess_mode="livesum",
)
SPOOL_DAMAGED = Counter("laurels_spool_events_damaged", "Events on the local disk that could not be read any more.")

INGESTED = Counter("laurels_ingested_records", "Records read from Kafka, by what became of them.", ["pod", "outcome"])
DEAD_LETTERS = Counter("laurels_dead_letters", "Records that could not be counted, by reason.", ["pod", "code"])
DEAD_LETTER_ALERT = Gauge(
    "laurels_dead_letter_alert",
    "1: more than the allowed share of a pod's records became dead letters in the last minute.",
    ["pod"],
    multiprocess_mode="livemax",
)
INGEST_LAG = Gauge(
    "laurels_ingest_lag_records", "Records of a pod that wait in Kafka.", ["pod"], multiprocess_mode="livesum"
)
INGEST_STOPPED = Gauge(
    "laurels_ingest_stopped",
    "1: nothing is read from Kafka, for what was read can't be stored, or Kafka can't be reached.",
    multiprocess_mode="livemax",
)
PUBLISH_BEHIND = Gauge(
    "laurels_publish_behind",
    "1: a pod's topics can't be written, and it waits while the others are published.",
    ["pod"],
    multiprocess_mode="mostrecent",
)
PUBLISHED = Counter("laurels_published_messages", "Messages published to Kafka, by kind.", ["kind"])

LIVE_SUBSCRIPTIONS = Gauge(
    "laurels_live_subscriptions", "Connections that look at a board.", multiprocess_mode="livesum"
)
LIVE_FRAMES = Counter("laurels_live_frames", "Changes of what is looked at, each sent to all who look at the same.")
LIVE_CUT_OFF = Counter("laurels_live_cut_off", "Connections that were ended, for they took nothing for too long.")

FROZEN_PERIODS = Counter("laurels_frozen_periods", "Periods whose final ranks were written.")
GRANTS = Counter("laurels_granted_rewards", "Rewards that were granted.")
DELIVERED = Counter("laurels_webhook_deliveries", "Messages sent to webhooks, by what came of it.", ["outcome"])
OUTBOX = Gauge("laurels_outbox_messages", "Messages that wait to be delivered.", multiprocess_mode="mostrecent")
BUFFERED = Gauge(
    "laurels_buffered_rows", "Rows that wait for the next flush of their board.", multiprocess_mode="livesum"
)
JOB_RUNS = Counter("laurels_job_runs", "Runs of jobs on this server, by what came of them.", ["job", "outcome"])
JOB_SUCCESS = Gauge(
    "laurels_job_last_success_seconds",
    "When a job last went well on this server, in seconds since 1970.",
    ["job"],
    multiprocess_mode="max",
)

METRICS_TYPE = CONTENT_TYPE_LATEST


def render_metrics() -> bytes:
    """All of them as text; with several workers, those of all workers together."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
