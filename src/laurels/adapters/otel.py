"""The Tracer of laurels.tracing with OpenTelemetry: sends spans to a collector, by OTLP over HTTP."""

import contextlib
from collections.abc import Iterable, Iterator

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from laurels.tracing import Attributes, Headers

FLUSH_MS = 3000
FAULT = 500


class _OtelTrace:
    def __init__(self, span: Span) -> None:
        self._span = span

    def note(self, route: str, status: int, pod_id: str | None) -> None:
        method, _, path = route.partition(" ")
        self._span.update_name(route)
        self._span.set_attributes(
            {"http.request.method": method, "http.route": path, "http.response.status_code": status}
        )
        if pod_id is not None:
            self._span.set_attribute("laurels.pod", pod_id)
        if status >= FAULT:
            self._span.set_status(Status(StatusCode.ERROR))


class _OtelStep:
    def __init__(self, span: Span) -> None:
        self._span = span

    def active(self) -> contextlib.AbstractContextManager[Span]:
        # An error's text can name a user.
        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self) -> None:
        self._span.end()


class OtelTracer:
    def __init__(self, url: str) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": "laurels"}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("laurels")
        self._propagator = TraceContextTextMapPropagator()

    @contextlib.contextmanager
    def request(self, headers: Headers) -> Iterator[_OtelTrace]:
        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name.startswith(b"trace")}
        above = self._propagator.extract(sent)
        with self._tracer.start_as_current_span(
            "request", above, kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:
            yield _OtelTrace(span)

    def current(self) -> SpanContext | None:
        found = get_current_span().get_span_context()
        return found if found.is_valid else None

    def begin(self, name: str, attributes: Attributes, above: SpanContext, linked: Iterable[SpanContext]) -> _OtelStep:
        below = set_span_in_context(NonRecordingSpan(above))
        links = [Link(each) for each in linked]
        kind = SpanKind.CLIENT if "db.system.name" in attributes else SpanKind.INTERNAL
        return _OtelStep(self._tracer.start_span(name, below, kind=kind, attributes=attributes, links=links))

    def close(self) -> None:
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()
