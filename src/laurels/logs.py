"""The setup of logging, and a limit for lines that an outage repeats."""

import logging
import sys
import time
from collections import Counter

import structlog

# The maximum number of keys that a limit remembers.
MAX_KEYS = 1000
# How often a repeated line is logged.
LOG_EVERY_S = 10.0


def configure_logs(level: str) -> None:
    """Log one line per event to standard error: readable text on a terminal, JSON elsewhere."""
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if not sys.stderr.isatty() else _as_it_is,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # uvicorn logs through the standard library. Below a warning it only reports about itself.
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[_LibraryLines()], force=True)


class LogLimit:
    """Limits the rate of a log line: at most one per interval and key, with the number of its occurrences."""

    def __init__(self, interval_s: float = LOG_EVERY_S) -> None:
        self._interval_s = interval_s
        self._logged_at: dict[str, float] = {}
        self._count: Counter[str] = Counter()

    def count(self, key: str = "") -> int | None:
        """Count an occurrence. Return the number of occurrences since the last line if a line is due, else None."""
        self._count[key] += 1
        now = time.monotonic()
        if now < self._logged_at.get(key, -self._interval_s) + self._interval_s:
            return None
        if len(self._logged_at) >= MAX_KEYS:
            self._logged_at.clear()
            self._count = Counter({key: self._count[key]})
        self._logged_at[key] = now
        return self._count.pop(key)


class _LibraryLines(logging.Handler):
    """Logs the lines of libraries like our own. Anybody can cause some of them, so equal ones are limited."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = LogLimit()

    def emit(self, record: logging.LogRecord) -> None:
        if (count := self._limit.count(f"{record.name} {record.msg}")) is not None:
            structlog.get_logger().log(
                record.levelno,
                "library",
                logger=record.name,
                message=record.getMessage(),
                count=count,
                exc_info=record.exc_info,
            )


def _as_it_is(logger: object, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    del logger, name
    return event
