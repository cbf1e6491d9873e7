"""How every process logs: one line a record, for people or as JSON, with the call and the task it belongs to.

Structlog's formatter stands over the loggers of the standard library, so Django, uvicorn and Celery look the same.
What a record carries besides its message (`extra`) is left out, and tracebacks have no local variables: they are where
payloads and keys would come into a log.
"""

import logging
from datetime import UTC, datetime

from celery import current_task
from structlog.processors import ExceptionRenderer, JSONRenderer
from structlog.stdlib import ProcessorFormatter
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor, WrappedLogger

from registry import log_context

FORMATS = ("line", "json")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def formatter(style: str) -> ProcessorFormatter:
    """The formatter of LOGGING. `style` is one of FORMATS."""
    processors: list[Processor] = (
        [as_line] if style == "line" else [as_fields, ExceptionRenderer(structured_exception), JSONRenderer()]
    )
    return ProcessorFormatter(processors=processors, keep_exc_info=style == "line")


structured_exception = ExceptionDictTransformer(show_locals=False, max_frames=30)


def context() -> dict[str, str]:
    """The call and the Celery task that are at work here."""
    fields = log_context.fields()
    if current_task:
        fields |= {"task": current_task.name, "task_id": current_task.request.id or ""}
    return fields


def as_line(_logger: WrappedLogger, _name: str, event: EventDict) -> str:
    """For people: moment, level, logger, message, and in brackets what it belongs to. A traceback follows, if any."""
    record: logging.LogRecord = event["_record"]
    about = " ".join(f"{name}={value}" for name, value in context().items())
    moment = moments.formatTime(record)
    return f"{moment} {record.levelname} {record.name}: {event['event']}" + (f" [{about}]" if about else "")


moments = logging.Formatter()


def as_fields(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """For machines: the same facts, named."""
    record: logging.LogRecord = event["_record"]
    fields: EventDict = {
        "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": event["event"],
        "pid": record.process,
        **context(),
    }
    if event.get("exc_info"):
        fields["exc_info"] = event["exc_info"]
    return fields
