"""Whole readings of machines of 2025 and 2026: ports, rails, GPUs and findings, against each expected.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holmes_core.records.inventory import Host, Inventory
from prober.asking.recording import HostRecording, Recorded
from prober.findings.audit import refuses
from prober.probe import inventory_of
from prober.rails.choose_rails import rails_of
from tests.prober.test_recordings import COPIES, SHARED

ORDER = "FWI"


def readings() -> list[Path]:
    """The scenarios with a reading of the host as a whole."""
    places = [place for place in (COPIES, SHARED) if place.is_dir()]
    folders = {folder.name: folder for place in places for folder in sorted(place.iterdir())}
    return [folders[name] for name in sorted(folders) if _is_whole(folders[name])]


def _is_whole(folder: Path) -> bool:
    if not (folder / "expected.json").exists():
        return False
    alone = folder.parent == SHARED and not (COPIES / folder.name).exists()
    keys = {"refuses_launch", "told"}
    return alone or bool(keys & set(wanted(folder))) or isinstance(wanted(folder).get("rails"), dict)


def wanted(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return data


def inventory_of_scenario(folder: Path) -> Inventory:
    """The inventory of the scenario's hosts."""
    outputs: dict[str, list[Recorded]] = {}
    for name, about in wanted(folder)["files"].items():
        text = (folder / name).read_bytes().decode(errors="replace")
        output = Recorded(about["command"], text, about["exit_code"])
        outputs.setdefault(about.get("host", "host-a"), []).append(output)
    return inventory_of({name: HostRecording(tuple(of_host)) for name, of_host in outputs.items()})


def faults(folder: Path) -> list[str]:
    """The differences between the reading and the right one."""
    data, seen = wanted(folder), inventory_of_scenario(folder)
    hosts = {host.name: host for host in seen.hosts}
    wrong = []
    for port in data.get("nics", ()):
        host = hosts[port.get("host", next(iter(hosts)))]
        wrong += _of_port(host, port)
    for name, rails in data.get("rails", {}).items() if isinstance(data.get("rails"), dict) else ():
        if sorted(nic.hca for nic in rails_of(hosts[name])) != sorted(rails):
            wrong.append(f"rails of {name}: {[nic.hca for nic in rails_of(hosts[name])]}")
    for gpu in data.get("gpus", ()):
        found = {each.index: each.model_dump() for each in next(iter(hosts.values())).gpus}.get(gpu["index"], {})
        wrong += [f"GPU {gpu['index']}: {key} {found.get(key)}" for key in gpu if found.get(key) != gpu[key]]
    findings = [(finding.rule, ORDER.index(finding.severity)) for finding in seen.findings]
    for each in data.get("expected_findings", ()):
        rule, least = (each, "I") if isinstance(each, str) else (each["id"], each.get("severity", "I"))
        if not any(found == rule and severity <= ORDER.index(least) for found, severity in findings):
            wrong.append(f"not found: {rule} {least}")
    wrong += [f"found: {rule}" for rule in data.get("refuted_findings", ()) if rule in dict(findings)]
    if "refuses_launch" in data and refuses(seen) != data["refuses_launch"]:
        wrong.append(f"refuses: {[finding.rule for finding in seen.findings if finding.severity == 'F']}")
    if "clusters" in data and len(seen.clusters) != data["clusters"]:
        wrong.append(f"clusters: {[cluster.hosts for cluster in seen.clusters]}")
    graver = " ".join(finding.evidence for finding in seen.findings if finding.severity in "FW")
    return [*wrong, *(f"not told: {text}" for text in data.get("told", ()) if text not in graver)]


def _of_port(host: Host, port: dict[str, Any]) -> list[str]:
    """A null is not known, and compared with nothing."""
    seen = {(nic.device, nic.port): nic.model_dump() for nic in host.nics}.get((port["device"], port["port"]))
    if seen is None:
        return [f"no port {port['device']}"]
    keys = ("kind", "rate_gbps", "state", "phys_state", "netdev", "usable_by_nccl_ib")
    return [f"{port['device']}: {key} {seen[key]}" for key in keys if port.get(key) not in (None, seen[key])]


@pytest.mark.parametrize("folder", readings(), ids=lambda folder: folder.name)
def test_the_reading_of_a_whole_machine_is_right(folder: Path) -> None:
    assert faults(folder) == []
