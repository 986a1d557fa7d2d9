"""structlog set-up: JSON lines for files, coloured lines for a terminal, one event name per thing that happens."""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import orjson
import structlog
from structlog.typing import EventDict, Processor

LogFormat: TypeAlias = Literal["console", "json"]
TAIL_BYTES = 16 << 10
"""Enough for the traceback of one failure."""


def set_up_logs(log_format: LogFormat, level: str, *, also_to: Path | None = None, **bound: Any) -> None:
    """Send every log event of this process to stderr, and as JSON to a file; `bound` goes into each JSON line."""
    copy = None if also_to is None else also_to.open("a", buffering=1)

    def bind(_: Any, __: str, event: EventDict) -> EventDict:
        return {**bound, **event}

    def keep(logger: Any, method: str, event: EventDict) -> EventDict:
        if copy is not None:
            line = structlog.processors.format_exc_info(logger, method, {**bound, **event})
            with suppress(OSError):  # a full disk loses log lines, never what they tell of
                copy.write(_dumps(line) + "\n")
        return event

    steps: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        keep,
    ]
    if log_format == "json":
        render = structlog.processors.JSONRenderer(serializer=_dumps)
        steps += [bind, structlog.processors.format_exc_info, render]
    else:
        steps.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24))
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=steps,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_Stderr,
        cache_logger_on_first_use=False,
    )


class _Stderr:
    """Writes lines to whatever sys.stderr is now: a live table on a terminal puts itself before it."""

    def __init__(self, *_: Any) -> None:
        pass

    def msg(self, message: str) -> None:
        """Write one line."""
        with suppress(OSError):
            sys.stderr.write(message + "\n")
            sys.stderr.flush()

    log = debug = info = warn = warning = error = critical = exception = fatal = failure = err = msg


def _dumps(event: MutableMapping[str, Any], **_: Any) -> str:
    return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def last_words(path: Path) -> str:
    """The last line of a log that says why its process ended; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        event = read_line(line)
        if event.get("reason"):
            return str(event["reason"])
        text = str(event.get("event", "")).strip()
        if text and event.get("level") not in {"debug", "info"}:
            return text
    return ""


def read_line(line: str) -> dict[str, Any]:
    """A log line as an event; a line that is no JSON of ours is an event of level ``print``."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if isinstance(event, dict):
        return cast("dict[str, Any]", event)
    return {"event": line.rstrip(), "level": "print"}


def merged(paths: Mapping[str, Path]) -> Iterator[dict[str, Any]]:
    """All events of the logs of several processes in order of time, each with its process."""
    events: list[tuple[str, int, dict[str, Any]]] = []
    for process, path in paths.items():
        at = ""
        for line in path.read_text(errors="replace").splitlines():
            event = read_line(line)
            at = str(event.get("timestamp", at))  # a bare line belongs to the event before it
            event.setdefault("process", process)
            events.append((at, len(events), event))
    for _, _, event in sorted(events, key=lambda one: one[:2]):
        yield event


def as_text(event: Mapping[str, Any]) -> str:
    """One event on one line for a terminal."""
    rest = {k: v for k, v in event.items() if k not in {"timestamp", "process", "event", "level", "host", "pid"}}
    exception = rest.pop("exception", None)
    fields = " ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in rest.items())
    when = str(event.get("timestamp", ""))[11:23]
    text = f"{when:12} {event.get('process', ''):16} {event.get('level', ''):7} {event.get('event', '')} {fields}"
    return text.rstrip() + (f"\n{exception}" if exception else "")
