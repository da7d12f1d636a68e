"""Limits of the login shell: locked memory, open files, shared memory, verbs devices, and the host's own name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prober.asking.commands import Command
from prober.asking.recording import Recorded

UNLIMITED = -1

MEMLOCK = Command("ulimit -l")
NOFILE = Command("ulimit -n")
SHM = Command("df -kP /dev/shm")
CLOCK = Command("date +%s.%N")
USER = Command("id -u")
OWN_NAME = Command('getent ahosts "$(uname -n)"', shown="getent ahosts $(uname -n)")
UVERBS = Command(
    'for d in /dev/infiniband/uverbs*; do if [ -r "$d" ] && [ -w "$d" ]; then w=open; else w=closed; fi; '
    'echo "$d $w"; done',
    when="has /sys/class/infiniband/*",
    shown="test -r /dev/infiniband/uverbs* -a -w /dev/infiniband/uverbs*",
)


def parse_ulimit(outputs: Sequence[Recorded], option: str, unit_bytes: int = 1) -> int | None:
    """Return the limit in bytes or pieces, UNLIMITED, or None if it was not read."""
    for output in outputs:
        if output.tool == "ulimit" and {option, "-a"} & set(output.words) and output.exit_code in (0, None):
            listed = re.search(rf"\([^()\n]*{option}\)[ \t]+(\S+)$", output.plain, flags=re.MULTILINE)
            word: str = listed.group(1) if listed else output.plain.strip()
            if word == "unlimited":
                return UNLIMITED
            return int(word) * unit_bytes if re.fullmatch(r"\d{1,15}", word) else None
    return None


def parse_shm(outputs: Sequence[Recorded]) -> int | None:
    """Return the bytes of /dev/shm, from `df -k` or `df -h`."""
    for output in outputs:
        if output.tool == "df":
            match = re.search(
                r"^\S+\s+(\d{1,15}(?:\.\d)?)([KMGT]?)\s+\S+\s+\S+\s+\d+%\s+/dev/shm$", output.plain, flags=re.MULTILINE
            )
            if match:
                return round(float(match.group(1)) * 1024.0 ** " KMGT".index(match.group(2) or "K"))
    return None


def parse_user_is_root(outputs: Sequence[Recorded]) -> bool | None:
    """Return True if the probe ran as root, or None if not known."""
    for output in outputs:
        if output.tool == "id" and re.fullmatch(r"\d+\s*", output.plain):
            return output.plain.strip() == "0"
    return None


def parse_own_name(outputs: Sequence[Recorded]) -> tuple[str, ...]:
    """Return the addresses that the host's own name resolves to on the host."""
    for output in outputs:
        if output.tool == "getent":
            return tuple(dict.fromkeys(re.findall(r"^([0-9a-f.:]+)\s", output.plain, flags=re.MULTILINE)))
    return ()


def parse_uverbs(outputs: Sequence[Recorded]) -> tuple[int | None, int | None]:
    """Return the number of verbs devices, and the number that this user may open."""
    for output in outputs:
        if output.tool == "test" and "/dev/infiniband/uverbs*" in output.words:
            states = re.findall(r"^/dev/infiniband/uverbs(?:\d+) (open|closed)$", output.plain, flags=re.MULTILINE)
            return len(states), states.count("open")
    return None, None


def parse_clock(outputs: Sequence[Recorded]) -> tuple[float, float] | None:
    """Return the host's clock at the start and the end of the probe, in seconds since 1970."""
    times = [output.plain.strip() for output in outputs if output.tool == "date"]
    if len(times) < 2 or not all(re.fullmatch(r"\d{9,11}\.\d{3,9}", time) for time in (times[0], times[-1])):
        return None
    return float(times[0]), float(times[-1])
