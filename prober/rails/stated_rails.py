"""What is wrong with the `rails:` that hosts.yaml states of a host. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holmes_core.hosts.rail_pattern import names_port
from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Finding, Host, Severity
from prober.rails.choose_rails import IN_VAIN, RAIL_KINDS

RULE = "NIC-RAILS-STATED"


def stated_rail_findings(host: Host, stated: Sequence[str] | None) -> Iterable[Finding]:
    """A finding for each pattern that names no port, and each port named that is none for the job.

    It refuses launch where no rail is left, though the host has RDMA ports: hosts.yaml is about others then. A port
    without a link beside rails is told as a lost rail, by NIC-PORT-DOWN and NIC-NO-SM.
    """
    ports = [nic for nic in host.nics if nic.kind != "Ethernet"]
    severity: Severity = "W" if any(nic.rail is not None for nic in ports) else "F" if ports else "I"
    for pattern in stated or ():
        named = [nic for nic in ports if names_port(pattern, nic.device, nic.port)]
        if not named:
            there = ", ".join(nic.hca for nic in ports) or "no RDMA port"
            yield _finding(host, severity, f"`rails:` names {pattern}; the host has {there}")
        for nic in named:
            without_link = nic.kind in RAIL_KINDS and nic.state not in (None, "Active")
            if nic.rail is None and not (without_link and severity == "W"):
                yield _finding(host, severity, f"`rails:` names {nic.hca} by {pattern}: {_why_not(nic)}")


def _why_not(nic: Nic) -> str:
    return nic.rail_why.removeprefix(IN_VAIN) if nic.kind in RAIL_KINDS else f"{nic.kind}; {nic.why}"


def _finding(host: Host, severity: Severity, evidence: str) -> Finding:
    effects = {
        "W": "the other ports it names are the rails",
        "F": "no rail is left, and the job would go over sockets",
        "I": "none: the host has no RDMA ports",
    }
    return Finding(
        rule=RULE,
        severity=severity,
        hosts=(host.name,),
        evidence=evidence,
        effect=effects[severity],
        remedy="correct `rails:` in hosts.yaml, or leave it out and let the probe choose",
    )
