"""Traces: from a request through its batch to SQL and Redis. Off until a tracer is set; adapters/otel.py is one.

A part of the requests is chosen at random. What a chosen request waits for is a step below it; what other requests and
background jobs do is not traced. Events of several requests share a batch, which is below the first of them, and
linked to the others.
"""

import contextlib
import random
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

Headers = Iterable[tuple[bytes, bytes]]
Attributes = Mapping[str, Any]


class Trace(Protocol):
    """A request that is traced."""

    def note(self, route: str, status: int, pod_id: str | None) -> None:
        """Name the request by its route, and note its outcome."""


class Step(Protocol):
    """A step that began. `active`: what runs inside is below it."""

    def active(self) -> contextlib.AbstractContextManager[Any]: ...

    def end(self) -> None: ...


class Tracer(Protocol):
    def request(self, headers: Headers) -> contextlib.AbstractContextManager[Trace]:
        """Trace a request, below the one that its headers name."""

    def current(self) -> Any:
        """Return the request or step in which the caller runs; None if it is not traced."""

    def begin(self, name: str, attributes: Attributes, above: Any, linked: Iterable[Any]) -> Step:
        """Begin a step below another one, linked to others."""

    def close(self) -> None:
        """Send what is left. Blocks for a few seconds at most."""


class _Nothing:
    """A request or a step that is not traced."""

    def note(self, route: str, status: int, pod_id: str | None) -> None:
        pass

    def active(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def end(self) -> None:
        pass


_NOTHING = _Nothing()
# The tracer of this process, and the percentage of requests that it traces.
_tracer: Tracer | None = None
_percent = 0.0


def start(tracer: Tracer, percent: float) -> None:
    global _tracer, _percent
    _tracer, _percent = tracer, percent


def stop() -> None:
    """Send what is left, and end tracing. Blocks for a few seconds at most."""
    global _tracer
    tracer, _tracer = _tracer, None
    if tracer is not None:
        tracer.close()


def is_on() -> bool:
    return _tracer is not None


def chooses() -> bool:
    """Return True if the next request is to be traced."""
    return _tracer is not None and random.random() * 100 < _percent  # noqa: S311 - no secret


def request(headers: Headers, *, is_chosen: bool) -> contextlib.AbstractContextManager[Trace]:
    if _tracer is None or not is_chosen:
        return contextlib.nullcontext(_NOTHING)
    return _tracer.request(headers)


def current() -> Any:
    """Return the request or step in which the caller runs; None if it is not traced."""
    return None if _tracer is None else _tracer.current()


def begin(name: str, attributes: Attributes) -> Step | None:
    """Begin a step of what the caller runs in, which the caller ends; None if that is not traced."""
    above = current()
    return None if _tracer is None or above is None else _tracer.begin(name, attributes, above, ())


@contextlib.contextmanager
def step(name: str, attributes: Attributes) -> Any:
    """Trace a step of what the caller runs in."""
    found = begin(name, attributes)
    if found is None:
        yield
        return
    try:
        with found.active():
            yield
    finally:
        found.end()


def batch(events: int, senders: Iterable[Any]) -> Step:
    """Begin a batch. `senders`: what `current` returned for each of its requests."""
    if _tracer is None:
        return _NOTHING
    traced = [sender for sender in senders if sender is not None]
    if not traced:
        return _NOTHING
    return _tracer.begin("batch", {"laurels.events": events}, traced[0], traced[1:])
