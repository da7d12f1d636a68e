"""The time at the start of a log line: `2026-11-23T09:41:12.345Z`, in UTC."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone
from typing import NamedTuple

from launcher.journal.run_events import LogLine

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ")


class WrittenLine(NamedTuple):
    """A log line and the time written before it; the time is None in logs without times."""

    when: str | None
    event: LogLine


def stamped(line: str) -> str:
    """Return the line with the current time in front."""
    now = datetime.fromtimestamp(time.time(), timezone.utc)
    return f"{now.strftime('%Y-%m-%dT%H:%M:%S')}.{now.microsecond // 1000:03d}Z {line}"


def split_stamp(text: str) -> tuple[str | None, str]:
    """Return the time written before a line (None without one), and the line itself."""
    found = _STAMP.match(text)
    return (found[1], text[found.end() :]) if found else (None, text)
