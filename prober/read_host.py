"""From a host's raw outputs to its record. Pure: the same outputs give the same Host and Findings."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_core.hosts_file import Access
from holmes_core.inventory import Finding, Host
from prober.facts import gpus, netdevs, rdma_ports, software
from prober.facts.question import NOTHING, Command, Output


def commands(access: Access) -> tuple[Command, ...]:
    """Everything one probe asks a host, in the order of asking."""
    return (
        software.HOSTNAME,
        netdevs.ADDRESSES,
        netdevs.DEFAULT_ROUTE,
        netdevs.SPEEDS,
        rdma_ports.SYSFS,
        rdma_ports.IBSTAT,
        rdma_ports.IBDEV2NETDEV,
        gpus.QUERY,
        software.software_command(access.python),
    )


def read_host(
    name: str, access: Access, outputs: Mapping[str, Output], pinned_speeds_gbps: Mapping[str, float]
) -> Host:
    """The Host in `outputs`; what no output tells is None."""

    def output(command: Command) -> Output:
        return outputs.get(command.name, NOTHING)

    speeds = netdevs.parse_speeds(output(netdevs.SPEEDS))
    ports = (
        rdma_ports.parse_sysfs(output(rdma_ports.SYSFS)),
        rdma_ports.parse_ibstat(output(rdma_ports.IBSTAT)),
        rdma_ports.parse_ibdev2netdev(output(rdma_ports.IBDEV2NETDEV)),
    )
    return Host(
        name=name,
        access=access,
        reachable=True,
        hostname=output(software.HOSTNAME).text.strip() or None,
        gpus=gpus.parse_query(output(gpus.QUERY)),
        nics=rdma_ports.merge(ports),
        netdevs=netdevs.parse_addresses(output(netdevs.ADDRESSES), speeds, pinned_speeds_gbps),
        default_route_netdev=netdevs.parse_default_route(output(netdevs.DEFAULT_ROUTE)),
        software=software.parse_software(output(software.software_command(access.python))),
    )


def tool_findings(name: str, outputs: Mapping[str, Output]) -> list[Finding]:
    """What went wrong with the asking itself: tools missing, failed, or cut off."""
    findings = []
    missing = sorted(tool for tool, output in outputs.items() if output.tool_missing)
    if missing:
        findings.append(
            Finding(
                rule="PROBE-TOOL-MISSING",
                severity="I",
                hosts=(name,),
                evidence=f"not found: {', '.join(missing)}",
                effect="facts only these tools show are unknown",
                remedy="install rdma-core, infiniband-diags, iproute2, ethtool or the GPU driver where they apply",
            )
        )
    for tool, output in outputs.items():
        if output.exit_code is None:
            findings.append(_broken(name, tool, "PROBE-TRUNCATED", "its answer was cut off"))
        elif tool == "nvidia-smi" and output.exit_code == 18:
            findings.append(
                _broken(name, tool, "GPU-DRIVER-MISMATCH", _last_line(output), "reload the driver or reboot")
            )
        elif tool in ("ibstat", "nvidia-smi", "ip-addr") and output.exit_code not in (0, 127):
            findings.append(_broken(name, tool, "PROBE-TOOL-FAILED", f"exit {output.exit_code}: {_last_line(output)}"))
    return findings


def _broken(
    host: str,
    tool: str,
    rule: str,
    evidence: str,
    remedy: str = "run the tool on the host by hand and read its message",
) -> Finding:
    return Finding(
        rule=rule,
        severity="F" if rule.startswith("GPU-") else "W",
        hosts=(host,),
        evidence=f"{tool}: {evidence}",
        effect="what was read of it is kept; the rest is unknown",
        remedy=remedy,
    )


def _last_line(output: Output) -> str:
    lines = output.text.strip().splitlines()
    return lines[-1].strip()[:200] if lines else "no output"
