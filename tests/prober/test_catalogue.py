"""Every rule that can occur is explained, with its source; and docs/rules.md says what the rules say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holmes_core.errors import WRONG_USAGE, HolmesError
from prober.findings.catalogue import CATALOGUE, explain
from prober.rule_text import RuleText
from tests import doc_rules

PROBER = Path(__file__).parents[2] / "prober"
ENTRIES = [about for entries in CATALOGUE.values() for about in entries]
SUBJECTS = "|".join(sorted({rule_id.partition("-")[0] for rule_id in CATALOGUE}))


def ids_in_code() -> Iterator[tuple[str, str]]:
    """Every string of the prober that looks like a rule's id: after `rule=`, or beginning as known ids do."""
    for file in sorted(PROBER.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and re.fullmatch(rf"(?:{SUBJECTS})(?:-[A-Z0-9]+)+", str(node.value)):
                yield file.name, str(node.value)
            if isinstance(node, ast.keyword) and node.arg == "rule" and isinstance(node.value, ast.Constant):
                yield file.name, str(node.value.value)


def test_every_rule_in_the_code_is_in_the_catalogue() -> None:
    found = list(ids_in_code())
    assert len(found) > 60
    assert [(file, rule) for file, rule in found if rule not in CATALOGUE] == []


@pytest.mark.parametrize("about", ENTRIES, ids=lambda about: f"{about.id}-{about.severity}")
def test_every_rule_says_what_it_checks_does_and_needs_and_who_says_so(about: RuleText) -> None:
    for text in (about.checks, about.effect, about.remedy, about.source):
        assert len(text) > 3
        assert text == text.strip()
        assert not text.endswith(".")


def test_one_id_has_no_two_entries_that_say_the_same() -> None:
    said = [(about.id, about.checks) for about in ENTRIES]
    assert len(said) == len(set(said))


WHETHER_RAILS_OR_NOT = {
    *("GDR-NO-PEERMEM", "NET-ADDRESS-TWICE", "NET-INTERFACE-DOWN", "NET-MASK-DIFFERS", "NIC-BOND-ONE-QP"),
    *("PCI-LINK-DEGRADED", "RDMA-BW-LOW"),
    *("ROCE-MTU-DIFFERS", "ROCE-NO-V2-GID", "ROCE-PFC-DIFFERS", "ROCE-RP-FILTER"),
    "NCCL-ADAPTIVE-ROUTING",
    "NCCL-SERVICE-LEVEL",
    "NIC-FEC-DIFFERS",
    "PCI-RELAXED-ORDERING",
    "ROCE-TRUST",
}
"""Rules about rails whose remedy is to mend the port or its settings, even where it should be no rail."""
WITHOUT_PORTS_TO_NAME = {"a host has no RDMA port at all, and most hosts with the same GPUs have rails"}
WITHOUT_PORTS_TO_NAME |= {"Ethernet ports that are no rails have neither netdev nor GIDs here"}


def test_every_remedy_of_a_finding_about_which_ports_are_rails_names_rails_of_hosts_yaml() -> None:
    about_rails = [about for about in ENTRIES if re.search(r"\brails?\b", about.checks)]
    asked = [about for about in about_rails if about.checks not in WITHOUT_PORTS_TO_NAME]
    silent = {about.id for about in asked if "`rails:`" not in about.remedy}
    assert len(about_rails) > 30
    assert silent == WHETHER_RAILS_OR_NOT


def test_a_rule_is_found_in_any_case_of_letters() -> None:
    assert [about.severity for about in explain("nic-port-down")] == ["F", "W", "I", "F", "W"]


def test_a_rule_that_is_not_known_names_the_nearest() -> None:
    with pytest.raises(HolmesError) as error:
        explain("NIC-PRT-DOWN")
    assert error.value.exit_code == WRONG_USAGE
    assert "NIC-PORT-DOWN" in error.value.hint


def test_the_page_of_rules_is_what_the_rules_say() -> None:
    assert doc_rules.PAGE.read_text(encoding="utf-8") == doc_rules.page(), "write it: python -m tests.doc_rules"
