"""Devices that libfabric can open, and so NCCL's plugin for it, from `fi_info` with or without -v."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holmes_core.records.inventory import LibfabricDomain
from prober.asking.commands import Command
from prober.asking.recording import Recorded
from prober.facts.rdma.port_facts import PortFacts

FI_INFO = Command(
    "fi_info -p efa",
    limited=True,
    when="grep -qs 0x1d0f /sys/class/infiniband/*/device/vendor && command -v fi_info >/dev/null 2>&1",
)

_ENDPOINT = re.compile(r"-(?:rdm|dgrm|dgram|msg)$")  # libfabric names a domain by device and endpoint type
_LINK_STATES = {"FI_LINK_UP": "Active", "FI_LINK_DOWN": "Down"}


@dataclass
class _LibfabricEntry:
    """The facts of one entry of the list."""

    provider: str | None = None
    device: str | None = None
    rate_gbps: float | None = None
    state: str | None = None


def read_libfabric(outputs: Iterable[Recorded]) -> tuple[LibfabricDomain, ...] | None:
    """Return each device once for every provider. Return None if fi_info did not run, () if libfabric finds none."""
    asked = [output for output in outputs if output.tool == "fi_info" and not output.tool_missing]
    if not asked:
        return None
    found = [(seen.provider, seen.device) for output in asked for seen in _entries(output)]
    known = dict.fromkeys((provider, device) for provider, device in found if provider and device)
    return tuple(LibfabricDomain(provider=provider, device=device) for provider, device in known)


def parse_fi_info(output: Recorded) -> tuple[PortFacts, ...]:
    """Return the EFA adapters, with rate and state if -v shows them."""
    return tuple(
        PortFacts(seen.device, 1, driver="efa", rate_gbps=seen.rate_gbps, state=seen.state)
        for seen in _entries(output)
        if seen.provider == "efa" and seen.device
    )


def _entries(output: Recorded) -> Iterator[_LibfabricEntry]:
    seen, section = _LibfabricEntry(), ""
    for line in output.whole_lines:
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("fi_info", "provider"):
            yield seen
            seen = _LibfabricEntry()
        if not value:
            section = key
        _note(seen, section, key, value)
    yield seen


def _note(seen: _LibfabricEntry, section: str, key: str, value: str) -> None:
    if key in ("provider", "prov_name"):
        seen.provider = value.partition(";")[0]  # `efa;ofi_rxd` is a layer above it
    elif (key == "domain" or (section, key) == ("fi_device_attr", "name")) and re.fullmatch(
        r"[a-z][\w.-]{0,63}", value
    ):
        seen.device = _ENDPOINT.sub("", value)
    elif (section, key) == ("fi_link_attr", "speed") and value.isdecimal() and int(value):
        seen.rate_gbps = int(value) / 1e9
    elif (section, key) == ("fi_link_attr", "state"):
        seen.state = _LINK_STATES.get(value)
