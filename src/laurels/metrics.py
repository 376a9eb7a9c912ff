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
BUILDS = Counter("laurels_builds", "Rankings that were built anew from the ledger.")
SPOOLED = Counter("laurels_spooled_events", "Events kept on the local disk, for the ledger could not be reached.")
SPOOL = Gauge("laurels_spool_events", "Events that wait on the local disk.", multiprocess_mode="livesum")

METRICS_TYPE = CONTENT_TYPE_LATEST


def render_metrics() -> bytes:
    """All of them as text; with several workers, those of all workers together."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
