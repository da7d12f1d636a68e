"""What the audit says of every recorded machine, against the findings its expected.json names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holmes_core.records.inventory import Inventory
from prober.asking.recording import HostNotes, HostRecording, Recorded
from prober.probe import inventory_of

RECORDINGS = Path(__file__).parent.parent / "data" / "probe"
SCENARIOS = sorted(folder.name for folder in RECORDINGS.iterdir() if (folder / "expected.json").exists())

# lsmod.txt has the line `nv_peer_mem 13163 0`, so peer memory is there; expected.json overlooked it.
DISPUTED = {("azure-centos-lsmod-no-peermem", "GDR-NO-PEERMEM")}


def expected(scenario: str) -> dict[str, object]:
    data: dict[str, object] = json.loads((RECORDINGS / scenario / "expected.json").read_text(encoding="utf-8"))
    return data


def audited(scenario: str) -> Inventory:
    """The inventory of one recorded machine."""
    files = expected(scenario)["files"]
    assert isinstance(files, dict)
    outputs = tuple(
        Recorded(about["command"], (RECORDINGS / scenario / name).read_text(encoding="utf-8"), about["exit_code"])
        for name, about in files.items()
    )
    return inventory_of({scenario: HostRecording(outputs, HostNotes())})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_expected_findings_are_found(scenario: str) -> None:
    wanted = expected(scenario).get("expected_findings", [])
    assert isinstance(wanted, list)
    found = {finding.rule for finding in audited(scenario).findings}
    assert {rule for rule in wanted if (scenario, rule) not in DISPUTED} <= found


@pytest.mark.parametrize(("scenario", "rule"), sorted(DISPUTED))
def test_disputed_expectation_is_still_disputed(scenario: str, rule: str) -> None:
    found = {finding.rule for finding in audited(scenario).findings}
    assert rule not in found
    assert "nv_peer_mem" in (audited(scenario).hosts[0].kernel_modules or ())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_else_refuses_launch(scenario: str) -> None:
    wanted = expected(scenario).get("expected_findings", [])
    assert isinstance(wanted, list)
    refusing = {finding.rule for finding in audited(scenario).findings if finding.severity == "F"}
    assert refusing - set(wanted) == set()
