"""Traces: a real collector receives spans from the request down to SQL and Redis."""

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.running import RunningServer, laurels
from support.stores import shared_postgres, shared_redis
from support.waiting import until

BOARD = "/api/v1/leaderboards/default"
PUT = "PUT /api/v1/leaderboards/{UUID}/users/{userId}"
RANK = "GET /api/v1/leaderboards/{UUID}/users/{userId}/rank"
PARENT = "00f067aa0ba902b7"


class SeenSpan(NamedTuple):
    name: str
    trace_id: str
    span_id: str
    above: str
    links: list[str]
    attributes: dict[str, Any]


class Collector:
    def __init__(self) -> None:
        self.spans: list[SeenSpan] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.add(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, sent: ExportTraceServiceRequest) -> None:
        for resource in sent.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {each.key: _value(each.value) for each in span.attributes}
                    links = [link.span_id.hex() for link in span.links]
                    self.spans.append(
                        SeenSpan(
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            links,
                            values,
                        )
                    )

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == name]

    def below(self, above: SeenSpan) -> list[str]:
        return [span.name for span in self.spans if span.above == above.span_id]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def test_request_leads_to_its_batch_and_to_sql(tmp_path: Path, collector: Collector) -> None:
    with RunningServer(tmp_path, otlp_traces=collector.url, trace_percent="100") as server:
        with server.client() as api:
            trace_id = uuid.uuid4().hex
            headers = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
            for _ in range(2):
                assert api.put(f"{BOARD}/users/ada-secret", json={"score": 1}, headers=headers).status_code == 200
            assert api.get(f"{BOARD}/users/ada-secret/history").status_code == 200
            assert api.get(f"{BOARD}/users/nobody/rank").status_code == 404
        # The rest is sent when the server stops.
        server.terminate()
    first, second = collector.named(PUT)
    assert (first.trace_id, first.above) == (trace_id, PARENT)
    assert first.attributes["http.response.status_code"] == 200
    assert first.attributes["http.route"] == PUT.split()[1]
    assert first.attributes["laurels.pod"] == "default"
    (batch,) = [span for span in collector.named("batch") if span.above == first.span_id]
    assert batch.attributes["laurels.events"] == 1
    assert collector.below(batch) == ["sqlite write"]
    assert second.trace_id == trace_id
    (history,) = [span for span in collector.spans if span.name.endswith("/history")]
    assert "sqlite read" in collector.below(history)
    assert collector.named(RANK)[0].attributes["http.response.status_code"] == 404
    # Users, keys and scores are in no span, and the server's own work is not traced.
    assert "secret" not in str(collector.spans)
    assert {span.above for span in collector.spans if span.name.startswith("sqlite")} <= {
        span.span_id for span in collector.spans
    }


def test_traces_lead_to_postgresql_and_redis(tmp_path: Path, collector: Collector) -> None:
    ledger = shared_postgres().new_database(f"traces_{uuid.uuid4().hex[:8]}")
    settings = {"ledger": ledger, "index": shared_redis().url, "otlp_traces": collector.url, "trace_percent": "100"}
    with RunningServer(tmp_path, **settings) as server:
        with server.client() as api, ThreadPoolExecutor(8) as threads:
            until(lambda: api.get("/readyz").status_code == 200, "the server")
            put = [threads.submit(api.put, f"{BOARD}/users/u{number}", json={"score": number}) for number in range(40)]
            assert {each.result().status_code for each in put} == {200}
            assert api.get(f"{BOARD}/users/u1/rank").status_code == 200
        server.terminate()
    batches = collector.named("batch")
    for batch in batches:
        # One call of Redis per window of the board.
        assert collector.below(batch) == ["postgresql", "redis apply", "redis apply"]
    # Each request is above a batch, or linked to one.
    reached = {batch.above for batch in batches} | {link for batch in batches for link in batch.links}
    assert {span.span_id for span in collector.named(PUT)} == reached
    assert sum(batch.attributes["laurels.events"] for batch in batches) == 40
    (rank,) = collector.named(RANK)
    assert any(name.startswith("redis ") for name in collector.below(rank))


def test_only_a_part_of_the_requests_is_traced(tmp_path: Path, collector: Collector) -> None:
    with RunningServer(tmp_path, otlp_traces=collector.url, trace_percent="20") as server:
        with server.client() as api:
            for _ in range(300):
                # A caller can't have its requests traced.
                api.get(f"{BOARD}/top", headers={"traceparent": f"00-{uuid.uuid4().hex}-{PARENT}-01"})
        server.terminate()
    assert 20 < len(collector.named("GET /api/v1/leaderboards/{UUID}/top")) < 110


def test_server_works_without_a_collector_that_answers(tmp_path: Path) -> None:
    began = time.monotonic()
    with RunningServer(tmp_path, otlp_traces="http://127.0.0.1:9/v1/traces", trace_percent="100") as server:
        with server.client() as api:
            assert api.put(f"{BOARD}/users/ada", json={"score": 1}).status_code == 200
        assert server.terminate() in {0, -15}
    assert time.monotonic() - began < 45


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "without" / "opentelemetry"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('not installed')")
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    done = laurels("serve", data_dir=tmp_path, otlp_traces="http://127.0.0.1:9/v1/traces", port="0")
    assert done.returncode == 2
    assert "laurels[otel]" in done.stderr
