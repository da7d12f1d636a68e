"""Findings on `rails:` of hosts.yaml."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from holmes_core.hosts.rail_pattern import names_port
from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Finding, Host
from prober.rails.choose_rails import IN_VAIN, RAIL_KINDS
from prober.rule_text import RuleText

SOME_STATED = RuleText(
    "NIC-RAILS-STATED",
    "W",
    "a pattern in `rails:` of hosts.yaml matches no port, or one that NCCL does not use; others do",
    "the other ports it names are the rails",
    "correct `rails:` in hosts.yaml, or leave it out and let the probe choose",
    "Holmes, docs/probe.md (which ports are the rails)",
)
NONE_STATED = replace(
    SOME_STATED,
    severity="F",
    checks="the host has RDMA ports, and `rails:` of hosts.yaml leaves none of them",
    effect="no rail is left, and the job would go over sockets",
)
STATED_IN_VAIN = replace(
    SOME_STATED,
    severity="I",
    checks="`rails:` of hosts.yaml names ports of a host without RDMA ports",
    effect="none: the host has no RDMA ports",
)
TEXTS = (SOME_STATED, NONE_STATED, STATED_IN_VAIN)


def stated_rail_findings(host: Host, stated: Sequence[str] | None) -> Iterable[Finding]:
    """Yield a finding on each pattern that names no port, and on each named port that cannot be a rail.

    It refuses launch if a host with RDMA ports has no rail left, because hosts.yaml then describes other ports. On a
    host with rails, NIC-PORT-DOWN and NIC-NO-SM report a port without a link.
    """
    ports = [nic for nic in host.nics if nic.kind != "Ethernet"]
    some = any(nic.rail is not None for nic in ports)
    about = SOME_STATED if some else NONE_STATED if ports else STATED_IN_VAIN
    for pattern in stated or ():
        named = [nic for nic in ports if names_port(pattern, nic.device, nic.port)]
        if not named:
            there = ", ".join(nic.hca for nic in ports) or "no RDMA port"
            yield about.finding((host.name,), f"`rails:` names {pattern}; the host has {there}")
        for nic in named:
            without_link = nic.kind in RAIL_KINDS and nic.state not in (None, "Active")
            if nic.rail is None and not (without_link and some):
                yield about.finding((host.name,), f"`rails:` names {nic.hca} by {pattern}: {_why_not(nic)}")


def _why_not(nic: Nic) -> str:
    return nic.rail_why.removeprefix(IN_VAIN) if nic.kind in RAIL_KINDS else f"{nic.kind}; {nic.why}"
