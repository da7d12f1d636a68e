"""`holmes probe --explain RULE`: one rule in words; no host is asked and nothing is written."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command


def test_a_rule_is_explained_with_its_source_and_nothing_is_written(command: Command, tmp_path: Path) -> None:
    done = command("probe", "--explain", "PCI-ACS-ON-PATH")
    assert done.code == 0
    assert done.stdout.startswith("PCI-ACS-ON-PATH (W, warns)\n  found when: ")
    assert "setpci -s BDF ECAP_ACS+0x6.w=0000" in done.stdout
    assert "source: NCCL user guide" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_rule_is_wrong_usage_and_names_the_nearest(command: Command) -> None:
    done = command("probe", "--explain", "NIC-PORT-DWN")
    assert done.code == 2
    assert "NIC-PORT-DOWN" in done.stderr


def test_explaining_asks_no_host(command: Command) -> None:
    done = command("probe", "hosts.yaml", "--explain", "NIC-PORT-DOWN")
    assert done.code == 2
    assert "--explain asks no host" in done.stderr
