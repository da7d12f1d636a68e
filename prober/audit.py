"""Audit rules: pure functions from facts to findings. Ids and severities are those of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from holmes_core.inventory import Cluster, Finding, Host, Inventory, Network, Severity
from prober.clusters import fabric_of

Rule = Callable[[Host], Iterable[Finding]]


def python_or_torch_missing(host: Host) -> Iterable[Finding]:
    """HOST-OS-LIB: the run needs both."""
    python, software = host.access.python, host.software
    if software.python is None:
        yield _finding(
            host,
            "HOST-OS-LIB",
            "F",
            f"`{python}` does not run",
            "nothing can be started there",
            "install Python >= 3.10, or name it: `python: /path/to/python` in hosts.yaml",
        )
    elif software.torch is None:
        yield _finding(
            host,
            "HOST-OS-LIB",
            "F",
            f"`{python}` (Python {software.python}) has no torch",
            "the training runtime cannot start",
            f"`{python} -m pip install torch`, or name a Python that has it in hosts.yaml",
        )


def ports_down(host: Host) -> Iterable[Finding]:
    """NIC-PORT-DOWN and NIC-NO-SM: RDMA ports that are not Active."""
    for nic in host.nics:
        if nic.state in (None, "Active"):
            continue
        where = f"{nic.device}:{nic.port} is {nic.state}, physical state {nic.phys_state or 'not known'}"
        if nic.phys_state == "LinkUp" and nic.kind == "InfiniBand":
            remedy = "start the subnet manager (opensm, UFM); for a virtual function set its GUID"
            yield _finding(host, "NIC-NO-SM", "F", where, "no subnet manager has set the port up", remedy)
        else:
            remedy = "Disabled: bring the port up; Polling: check cable, optic and switch port"
            yield _finding(host, "NIC-PORT-DOWN", "I", where, "NCCL leaves this port out without a word", remedy)


def ports_left_out(host: Host) -> Iterable[Finding]:
    """NIC-MIXED-LINK-LAYER and NIC-RATE-OUTLIER: Active ports that must not carry the job."""
    rails = fabric_of(host).rails
    if not rails:
        return
    for nic in host.nics:
        if not nic.usable_by_nccl_ib or nic in rails:
            continue
        what = f"{nic.device}:{nic.port} is {nic.kind} at {nic.rate_gbps or 0:g} Gbit/s; the rails are "
        what += f"{rails[0].kind} at {rails[0].rate_gbps or 0:g} Gbit/s"
        rule = "NIC-MIXED-LINK-LAYER" if nic.kind != rails[0].kind else "NIC-RATE-OUTLIER"
        effect = "NCCL would take it too; the plan names the rails exactly"
        yield _finding(
            host, rule, "I", what, effect, "nothing to do with Holmes; by hand, set NCCL_IB_HCA to the rails"
        )


def roce_without_address(host: Host) -> Iterable[Finding]:
    """ROCE-NO-V2-GID: a RoCE rail without an IP address has no routable GID, and its fabric cannot be told."""
    fabric = fabric_of(host)
    if fabric.kind == "RoCE" and not fabric.networks:
        names = ", ".join(f"{nic.device}:{nic.port}" for nic in fabric.rails)
        effect = "no RoCE v2 GID there, and which hosts share the fabric cannot be told"
        remedy = "give the port's netdev an address, or pin `cluster:` in hosts.yaml"
        yield _finding(host, "ROCE-NO-V2-GID", "F", f"no IPv4 address on the netdevs of {names}", effect, remedy)


RULES: tuple[Rule, ...] = (python_or_torch_missing, ports_down, ports_left_out, roce_without_address)


def audit(hosts: Sequence[Host], clusters: Sequence[Cluster], shared: Network | None) -> tuple[Finding, ...]:
    """All findings of all rules, hosts in order."""
    findings = [finding for host in hosts if host.reachable for rule in RULES for finding in rule(host)]
    if shared is None and len(clusters) > 1:
        findings.append(
            Finding(
                rule="NET-NO-SHARED-SUBNET",
                severity="F",
                hosts=tuple(host.name for host in hosts if host.reachable),
                evidence="no IPv4 network on which every host has an address, and not every host has a default route",
                effect="clusters cannot reach each other",
                remedy="give every host an address on one Ethernet, or routes between the networks",
            )
        )
    return tuple(findings)


def joined(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings that say the same of several hosts as one, in order of first mention."""
    merged: dict[Finding, tuple[str, ...]] = {}
    for finding in findings:
        anonymous = finding.model_copy(update={"hosts": ()})
        merged[anonymous] = (*merged.get(anonymous, ()), *finding.hosts)
    return tuple(finding.model_copy(update={"hosts": hosts}) for finding, hosts in merged.items())


def refuses(inventory: Inventory) -> bool:
    """Whether a finding stands against launching on these hosts."""
    return any(finding.severity == "F" for finding in inventory.findings)


def _finding(host: Host, rule: str, severity: Severity, evidence: str, effect: str, remedy: str) -> Finding:
    return Finding(rule=rule, severity=severity, hosts=(host.name,), evidence=evidence, effect=effect, remedy=remedy)
