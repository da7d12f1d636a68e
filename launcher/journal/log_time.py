"""When a line of a log came, in front of it: `2026-11-23T09:41:12.345Z`, in UTC."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone
from typing import NamedTuple

from launcher.journal.run_events import LogLine

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ")


class WrittenLine(NamedTuple):
    """A line of a log, and its time as it stands there; None in logs that have none."""

    when: str | None
    event: LogLine


def stamped(line: str) -> str:
    """The line behind the time it is now."""
    now = datetime.fromtimestamp(time.time(), timezone.utc)
    return f"{now.strftime('%Y-%m-%dT%H:%M:%S')}.{now.microsecond // 1000:03d}Z {line}"


def split_stamp(text: str) -> tuple[str | None, str]:
    """The time before a line, and the line."""
    found = _STAMP.match(text)
    return (found[1], text[found.end() :]) if found else (None, text)
