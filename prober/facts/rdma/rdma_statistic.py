"""Error counters of RDMA ports from `rdma statistic`, for containers and other hosts without /sys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prober.asking.commands import Command
from prober.asking.json_list import json_list
from prober.asking.numbers import whole_number
from prober.asking.recording import Recorded
from prober.facts.rdma.port_facts import PortFacts
from prober.facts.rdma.rdma_sysfs import COUNTER_NAMES

_NO_COUNTERS = "has /sys/class/infiniband/*/ports/*/hw_counters"
RDMA_STATISTIC = Command(
    "rdma -j statistic show", limited=True, when=f"has /sys/class/infiniband/* && ! {_NO_COUNTERS}"
)


def parse_rdma_statistic(output: Recorded) -> tuple[PortFacts, ...]:
    """Return ports with the counters that sysfs has too, from JSON, from lines, or from the lines of `-p`."""
    if not any(word.startswith("stat") for word in output.words[1:]) or "qp" in output.words:
        return ()
    entries = json_list(output.plain) or _text_entries(output)
    return tuple(port for entry in entries if (port := _facts(entry)) is not None)


def _text_entries(output: Recorded) -> Iterator[dict[str, Any]]:
    """Yield the ports of the text. Mail may have broken a line between a counter's name and its value."""
    blocks = re.split(r"(?:^|\n)link\s+(\S+)/(\d{1,9})(?=\s)", output.plain)
    for device, port, text in zip(blocks[1::3], blocks[2::3], blocks[3::3], strict=True):
        yield {"ifname": device, "port": int(port), **dict(re.findall(r"([a-z_]+)\s+(\d{1,20})(?=\s)", text))}


def _facts(entry: Mapping[str, Any]) -> PortFacts | None:
    device, port = entry.get("ifname"), entry.get("port")
    if not isinstance(device, str) or not isinstance(port, int):
        return None
    counters = [(name, whole_number(str(entry[name]))) for name in COUNTER_NAMES if name in entry]
    return PortFacts(device, port, counters=tuple((name, value) for name, value in counters if value is not None))
