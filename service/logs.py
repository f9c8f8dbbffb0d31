"""How the service logs: structlog to stderr, for people or as JSON. Prompts are never logged."""

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import Processor


def configure_logs(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Sets up structlog for the process. level: debug to error. log_format: console or json."""
    target = stream or sys.stderr
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=target.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
