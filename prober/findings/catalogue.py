"""The catalogue of all rules by id, for `holmes probe --explain` and docs/rules.md."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from holmes_core.errors import HolmesError
from prober.fabrics import fabric_findings, nvlink_domains, own_bridges, settled_findings
from prober.findings import gpu_choice, hint_findings
from prober.findings.audit import HOST_RULES, PEER_RULES
from prober.rails import stated_rails
from prober.rule_text import RuleText
from prober.rules import network_rules, reported_rules
from prober.rules.rule import PeerRule

SEVERITIES = {"F": "refuses launch", "W": "warns", "I": "informs"}


def _by_id() -> Mapping[str, tuple[RuleText, ...]]:
    found: dict[str, tuple[RuleText, ...]] = {}
    everything: tuple[RuleText, ...] = (
        *HOST_RULES,
        *PEER_RULES,
        *network_rules.TEXTS,
        *own_bridges.TEXTS,
        *reported_rules.TEXTS,
        *nvlink_domains.TEXTS,
        *hint_findings.TEXTS,
        *gpu_choice.TEXTS,
        *fabric_findings.TEXTS,
        *settled_findings.TEXTS,
        *stated_rails.TEXTS,
    )
    for about in everything:
        found[about.id] = (*found.get(about.id, ()), about)
    return dict(sorted(found.items()))


CATALOGUE = _by_id()
"""Rules by id in alphabetic order. An id has several texts if its severity depends on circumstances."""


def explain(rule_id: str) -> Sequence[RuleText]:
    """Return the texts of one rule, whose id may be in upper or lower case.

    Raises:
        HolmesError: No rule has this id. The hint names the nearest ids.
    """
    known = CATALOGUE.get(rule_id.upper())
    if known is None:
        near = difflib.get_close_matches(rule_id.upper(), CATALOGUE, n=3, cutoff=0.4)
        hint = f"the nearest are {', '.join(near)}" if near else "docs/rules.md lists them all"
        raise HolmesError(f"no rule is called {rule_id}", hint)
    return known


def when_found(about: RuleText) -> str:
    """Return the rule's check and the hosts that it compares, as a sentence."""
    among = {"cluster": " (hosts of one cluster)", "job": " (all hosts of the job)"}
    return about.checks + (among[about.scope] if isinstance(about, PeerRule) else "")
