"""Settings of the machine that slow a job: control groups, CPU clocks, NUMA balancing and packet filters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from prober.asking.commands import Command
from prober.asking.numbers import whole_number
from prober.asking.recording import Recorded
from prober.asking.sysfs_tree import Tree

_CPUFREQ = "/sys/devices/system/cpu/cpu0/cpufreq"
_V1_MEMORY = "/sys/fs/cgroup/memory/memory.limit_in_bytes"
_V1_CPU = "/sys/fs/cgroup/cpu/cpu.cfs_{}_us"
_CONNTRACK = "/proc/sys/net/netfilter/nf_conntrack"
# The group of a login and its slice, or in a container the root, which is its own group there.
FILES = Command(
    "p=$(sed -n 's/^0:://p' /proc/self/cgroup); set --; "
    'while [ -n "$p" ] && [ "$p" != / ]; do set -- "$@" "/sys/fs/cgroup$p/memory.max" "/sys/fs/cgroup$p/cpu.max"; '
    'p=${p%/*}; done; grep -Hs . "$@" /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max '
    f"{_V1_MEMORY} {_V1_CPU.format('quota')} {_V1_CPU.format('period')} {_CPUFREQ}/scaling_governor "
    f"{_CPUFREQ}/scaling_driver /proc/sys/kernel/numa_balancing {_CONNTRACK}_count {_CONNTRACK}_max",
    shown="grep -Hs . /sys/fs/cgroup/[own group]/*.max /proc/sys/kernel/numa_balancing",
)
FILTERS = Command("iptables -S INPUT", limited=True, when='[ "$uid" = 0 ] && command -v iptables >/dev/null 2>&1')
FIREWALLD = Command("systemctl is-active firewalld", limited=True, when="command -v firewall-cmd >/dev/null 2>&1")
_NO_LIMIT = 2**60  # version 1 of control groups writes a number near 2**63 for none


@dataclass(frozen=True)
class Tuning:
    """The settings, with the field names of `Host`. None is not known."""

    memory_limit_bytes: int | None
    cpu_limit: float | None
    cpu_governor: str | None
    cpu_frequency_driver: str | None
    numa_balancing: bool | None
    conntrack_share: float | None
    packet_filter: str | None


def read_tuning(outputs: Sequence[Recorded], tree: Tree) -> Tuning:
    """Return the settings from files of /sys and /proc, `iptables -S` and the service of firewalld."""
    count, most = (whole_number(tree.value(f"{_CONNTRACK}_{name}")) for name in ("count", "max"))
    balancing = tree.value("/proc/sys/kernel/numa_balancing")
    return Tuning(
        memory_limit_bytes=min(_memory_limits(tree), default=None),
        cpu_limit=min(_cpu_limits(tree), default=None),
        cpu_governor=tree.value(f"{_CPUFREQ}/scaling_governor"),
        cpu_frequency_driver=tree.value(f"{_CPUFREQ}/scaling_driver"),
        numa_balancing=None if balancing not in ("0", "1", "2") else balancing != "0",
        conntrack_share=count / most if count is not None and most else None,
        packet_filter=_packet_filter(outputs),
    )


def _memory_limits(tree: Tree) -> list[int]:
    """Return the limits of the own group and of the groups above it. `max` is no limit."""
    texts = [text for _, text in tree.matching(r"/sys/fs/cgroup/(?:.*/)?memory\.max")]
    sizes = [size for text in (*texts, tree.value(_V1_MEMORY)) if (size := whole_number(text))]
    return [size for size in sizes if size < _NO_LIMIT]


def _cpu_limits(tree: Tree) -> list[float]:
    """Return numbers of CPUs, which are quota by period: `800000 100000` is 8."""
    texts = [text.split() for _, text in tree.matching(r"/sys/fs/cgroup/(?:.*/)?cpu\.max")]
    texts.append([tree.value(_V1_CPU.format(name)) or "" for name in ("quota", "period")])
    pairs = [(whole_number(text[0]), whole_number(text[1])) for text in texts if len(text) == 2]
    return [quota / period for quota, period in pairs if quota and period and quota > 0]


def _packet_filter(outputs: Sequence[Recorded]) -> str | None:
    """Return the filter that drops unsolicited connections, or None if none is known."""
    for output in outputs:
        if output.tool == "iptables" and re.search(r"^-P INPUT (?:DROP|REJECT)$", output.plain, flags=re.MULTILINE):
            return "iptables: -P INPUT DROP"
        last = re.findall(r"^-A INPUT (?:-j|.*icmp.*-j) (?:DROP|REJECT).*$", output.plain, flags=re.MULTILINE)
        if output.tool == "iptables" and last:
            return f"iptables: {last[-1][:80]}"
        if output.tool == "systemctl" and "firewalld" in output.call and output.plain.strip() == "active":
            return "firewalld is active"
    return None
