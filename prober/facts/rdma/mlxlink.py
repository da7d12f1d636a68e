"""An RDMA port as mlxlink shows it. It needs root, and does not work with virtual functions."""

from __future__ import annotations

import re

from prober.asking.commands import Command
from prober.asking.recording import Recorded
from prober.facts.rdma.port_facts import PortFacts, phys_state_word, state_word

PHYSICAL_MELLANOX = 'grep -qs 0x15b3 "$d/device/vendor" && [ ! -e "$d/device/physfn" ]'  # the device in $d
MLXLINK = Command(
    'mlxlink -d "$n" -c',
    each="/sys/class/infiniband/*",
    only=PHYSICAL_MELLANOX,
    limited=True,
    when='[ "$uid" = 0 ] && command -v mlxlink >/dev/null 2>&1',
)

# Gbit/s a lane. Source: InfiniBand Architecture Specification, link speeds.
_LANE_GBPS = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}


def parse_mlxlink(output: Recorded) -> tuple[PortFacts, ...]:
    """Return the port that `-d DEVICE` and `-p PORT` of the command name. The default port is 1."""
    device = re.search(r"(?:-d|--device)[ =]([A-Za-z][\w-]*)(?=\s|$)", output.call)
    port = re.search(r"(?:-p|--port)[ =]([0-9]{1,9})\b", output.call)
    found = re.findall(r"^(\w[^:\n]*)\s: *(.*)\n", output.plain, flags=re.MULTILINE)
    lines = {name.rstrip(): value for name, value in found}
    if not device or "State" not in lines:
        return ()
    # If the link is not up, the tool prints the state of the physical layer twice.
    seeking = phys_state_word(lines["State"])
    state = "Down" if seeking else state_word(lines["State"])
    return (
        PortFacts(
            device.group(1),
            int(port.group(1)) if port else 1,
            state=state,
            link_layer=_link_layer(lines),
            phys_state=phys_state_word(lines.get("Physical state")) or seeking,
            rate_gbps=_rate_gbps(lines) if state == "Active" else None,
            firmware=lines.get("Firmware Version") or None,
            effective_ber=_error_rate(lines.get("Effective Physical BER")) if state == "Active" else None,
            raw_ber=_error_rate(lines.get("Raw Physical BER")) if state == "Active" else None,
            fec=lines["FEC"][:60] if lines.get("FEC", "N/A") not in ("", "N/A") else None,
        ),
    )


def _error_rate(text: str | None) -> float | None:
    """Return the rate of `2E-7`, or of `15E-255`, which stands for no errors."""
    return float(text) if text and re.fullmatch(r"\d{1,6}(?:\.\d{1,6})?E-\d{1,3}", text) else None


def _link_layer(lines: dict[str, str]) -> str | None:
    if lines.get("Speed", "").startswith("IB-"):
        return "InfiniBand"
    is_ethernet = lines.get("Physical state", "").startswith("ETH_") or re.match(r"\d+G", lines.get("Speed", ""))
    return "Ethernet" if is_ethernet else None


def _rate_gbps(lines: dict[str, str]) -> float | None:
    speed = lines.get("Speed", "")
    if match := re.match(r"(\d{1,4})G(?:bE|\b)", speed):
        return float(match.group(1))
    lane, width = _LANE_GBPS.get(speed.removeprefix("IB-")), re.match(r"(\d{1,2})x", lines.get("Width", ""))
    return lane * int(width.group(1)) if lane and width else None
