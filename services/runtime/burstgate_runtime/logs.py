"""Where log lines go and what they look like.

Everything the process says is one stream of lines in one format: our own lines through structlog,
and lines of libraries that use the standard logger. Values bound to the context (such as request_id)
are on every line of the call they belong to. A traceback shows where, never with what values.
"""

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import Processor

# Without the values of local variables: they hold prompts.
_tracebacks = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def configure_logs(level: str, fmt: str, stream: TextIO | None = None) -> None:
    """Sets the least level ("debug" to "error") and the format ("json" or "console"); writes to stderr."""
    stream = stream or sys.stderr
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[Processor] = (
        [_tracebacks, structlog.processors.JSONRenderer()]
        if fmt == "json"
        else [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler], force=True)
