"""All metrics, with their help texts. docs/operations/failures.md lists them."""

import os

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

# The creation times of counters are of no use here, and double the number of series.
disable_created_metrics()  # type: ignore[no-untyped-call]

EVENTS = Counter("laurels_events", "Number of events, by outcome.", ["outcome"])
BATCHES = Counter("laurels_batches", "Number of ledger transactions that recorded events.")
DEGRADED_READS = Counter(
    "laurels_degraded_reads", "Number of reads answered from the ledger, because the index was unavailable or stale."
)
REFUSED_READS = Counter(
    "laurels_refused_reads", "Number of reads refused with 503, because neither the index nor the ledger could answer."
)
REPAIRED = Counter("laurels_repaired_rows", "Number of rows applied to the index from the repair queue.")
REPAIR_QUEUE = Gauge(
    "laurels_repair_queue_rows",
    "Number of rows that wait in the repair queue to be applied to the index again.",
    multiprocess_mode="livesum",
)
NAME_QUERIES = Counter(
    "laurels_name_queries", "Number of ledger queries for names that were not in the cache, at most one per page."
)
BUILDS = Counter("laurels_builds", "Number of rankings built from the ledger.")
SPOOLED = Counter(
    "laurels_spooled_events", "Number of events stored in the spool, because the ledger could not be reached."
)
SPOOL = Gauge("laurels_spool_events", "Number of events that wait in the spool.", multiprocess_mode="livesum")
SPOOL_ASIDE = Gauge(
    "laurels_spool_events_put_aside",
    "Number of events in the spool that were set aside, because they could not be replayed: check them.",
    multiprocess_mode="livesum",
)
SPOOL_DAMAGED = Counter(
    "laurels_spool_events_damaged", "Number of events in the spool that were damaged on the disk and can't be read."
)

# The upper bounds of the latencies that are counted together, in seconds.
LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CALLS = Counter(
    "laurels_calls",
    "Number of calls, by route, status and class: admin, own_pod (a key of the pod), other_pod, no_key.",
    ["route", "status", "class"],
)
CALL_SECONDS = Histogram(
    "laurels_call_seconds", "Time from the head of a request to its response, by route.", ["route"], buckets=LATENCIES_S
)
RESPONSE_BYTES = Counter("laurels_response_bytes", "Bytes of the bodies of responses, by route.", ["route"])
REFUSED_CALLS = Counter("laurels_refused_calls", "Number of calls refused with a 4xx status, by error code.", ["code"])
SHED_CALLS = Counter(
    "laurels_shed_calls", "Number of calls refused with 503, because the server was overloaded, by kind.", ["kind"]
)
QUEUE_DELAY = Gauge(
    "laurels_queue_delay_seconds",
    "The shortest time that reads or writes had to wait in the last twentieth of a second.",
    ["kind"],
    multiprocess_mode="livemax",
)
CONNECTIONS = Gauge("laurels_connections", "Number of open connections.", multiprocess_mode="livesum")
CLOSED_CONNECTIONS = Counter(
    "laurels_connections_closed", "Number of connections that were refused or closed by a limit, by reason.", ["reason"]
)

INGESTED = Counter(
    "laurels_ingested_records", "Number of records read from Kafka, by pod and outcome.", ["pod", "outcome"]
)
DEAD_LETTERS = Counter(
    "laurels_dead_letters", "Number of records that became dead letters, by pod and error code.", ["pod", "code"]
)
UNKNOWN_POD_RECORDS = Counter(
    "laurels_unknown_pod_records", "Number of Kafka records that arrived for a pod that does not exist."
)
DEAD_LETTER_ALERT = Gauge(
    "laurels_dead_letter_alert",
    "1 if more than the allowed share of a pod's records became dead letters in the last minute, else 0.",
    ["pod"],
    multiprocess_mode="livemax",
)
INGEST_LAG = Gauge(
    "laurels_ingest_lag_records", "Number of records of a pod that wait in Kafka.", ["pod"], multiprocess_mode="livesum"
)
INGEST_STOPPED = Gauge(
    "laurels_ingest_stopped",
    "1 if nothing is read from Kafka, because records can't be stored or Kafka can't be reached, else 0.",
    multiprocess_mode="livemax",
)
PUBLISH_BEHIND = Gauge(
    "laurels_publish_behind",
    "1 if publishing for a pod waits, because its topics can't be written, else 0. Other pods don't wait.",
    ["pod"],
    multiprocess_mode="mostrecent",
)
PUBLISHED = Counter("laurels_published_messages", "Number of messages published to Kafka, by kind.", ["kind"])

LIVE_SUBSCRIPTIONS = Gauge("laurels_live_subscriptions", "Number of live subscriptions.", multiprocess_mode="livesum")
LIVE_FRAMES = Counter(
    "laurels_live_frames",
    "Number of changes of live views; each is one frame that goes to all subscribers of the view.",
)
LIVE_CUT_OFF = Counter(
    "laurels_live_cut_off",
    "Number of live subscriptions that were disconnected, because they did not read for too long.",
)

FROZEN_PERIODS = Counter("laurels_frozen_periods", "Number of periods whose final ranks were written.")
GRANTS = Counter("laurels_granted_rewards", "Number of rewards granted.")
DELIVERED = Counter(
    "laurels_webhook_deliveries", "Number of attempts to deliver a message to a webhook, by outcome.", ["outcome"]
)
OUTBOX = Gauge(
    "laurels_outbox_messages", "Number of messages that wait for delivery to a webhook.", multiprocess_mode="mostrecent"
)
BUFFERED = Gauge(
    "laurels_buffered_rows", "Number of rows that wait for the next flush of their board.", multiprocess_mode="livesum"
)
JOB_RUNS = Counter("laurels_job_runs", "Number of job runs on this server, by job and outcome.", ["job", "outcome"])
CHECK_DIFFERENCES = Gauge(
    "laurels_check_differences",
    "Number of differences between rankings, rows and events that the last daily check found.",
    multiprocess_mode="mostrecent",
)
JOB_SUCCESS = Gauge(
    "laurels_job_last_success_seconds",
    "Time of the last successful run of a job on this server, in seconds since 1970.",
    ["job"],
    multiprocess_mode="max",
)

METRICS_TYPE = CONTENT_TYPE_LATEST


def render_metrics() -> bytes:
    """Return all metrics in the Prometheus text format; with several workers, those of all workers together."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
