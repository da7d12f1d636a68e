"""Omni-Path ports as opainfo shows them."""

from __future__ import annotations

import re
from dataclasses import replace

from prober.asking.commands import Command
from prober.asking.recording import Recorded
from prober.facts.rdma.port_facts import PortFacts, state_word

OPAINFO = Command("opainfo", limited=True, when="has /sys/class/infiniband/hfi1_*")


def parse_opainfo(output: Recorded) -> tuple[PortFacts, ...]:
    """Return the ports below lines such as `hfi1_0:1   PortGID:...`. The rate is the active lanes times their speed."""
    ports: list[PortFacts] = []
    lane_gbps: float | None = None
    for line in output.whole_lines:
        if match := re.match(r"(hfi1_\d{1,2}):(\d{1,2})\s+PortGID:", line):
            ports.append(PortFacts(match.group(1), int(match.group(2))))
            lane_gbps = None
        elif ports and (match := re.match(r"\s+PortState:\s+(\w+)", line)):
            ports[-1] = replace(ports[-1], state=state_word(match.group(1)))
        elif match := re.match(r"\s+LinkSpeed\s+Act: ([\d.]{1,5})Gb\b", line):
            lane_gbps = float(match.group(1))
        elif ports and lane_gbps and (match := re.match(r"\s+LinkWidth\s+Act: (\d{1,2})\b", line)):
            ports[-1] = replace(ports[-1], rate_gbps=lane_gbps * int(match.group(1)) or None)
        elif ports and (match := re.match(r"\s+LID: 0x([0-9a-f]{8})-0x[0-9a-f]{8}\s+SM LID: 0x([0-9a-f]{8})\b", line)):
            ports[-1] = replace(ports[-1], lid=int(match.group(1), 16), sm_lid=int(match.group(2), 16))
    return tuple(ports)
