"""What the audit says of every recorded machine, against the findings its expected.json names."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from holmes_core.records.inventory import Inventory
from prober.asking.recording import HostNotes, HostRecording, Recorded
from prober.probe import inventory_of

RECORDINGS = Path(__file__).parent.parent / "data" / "probe"
SCENARIOS = sorted(folder.name for folder in RECORDINGS.iterdir() if (folder / "expected.json").exists())


def expected(scenario: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((RECORDINGS / scenario / "expected.json").read_text(encoding="utf-8"))
    return data


@functools.cache
def audited(scenario: str) -> Inventory:
    """The inventory of one recorded machine."""
    files = expected(scenario)["files"]
    outputs = tuple(
        Recorded(about["command"], (RECORDINGS / scenario / name).read_text(encoding="utf-8"), about["exit_code"])
        for name, about in files.items()
    )
    return inventory_of({scenario: HostRecording(outputs, HostNotes())})


def found(scenario: str) -> set[str]:
    return {finding.rule for finding in audited(scenario).findings}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_expected_findings_are_found(scenario: str) -> None:
    assert set(expected(scenario).get("expected_findings", [])) <= found(scenario)


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if "refuted_findings" in expected(name)])
def test_refuted_findings_are_not_found(scenario: str) -> None:
    assert not set(expected(scenario)["refuted_findings"]) & found(scenario)


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if "severities" in expected(name)])
def test_findings_are_as_grave_as_expected(scenario: str) -> None:
    findings = audited(scenario).findings
    for rule, severities in expected(scenario)["severities"].items():
        assert sorted({finding.severity for finding in findings if finding.rule == rule}) == severities


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_else_refuses_launch(scenario: str) -> None:
    refusing = {finding.rule for finding in audited(scenario).findings if finding.severity == "F"}
    assert refusing - set(expected(scenario).get("expected_findings", [])) == set()
