"""The setup of logging."""

import logging
import sys

import structlog


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
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr)


def _as_it_is(logger: object, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    del logger, name
    return event
