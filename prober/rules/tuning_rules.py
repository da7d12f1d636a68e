"""Rules on settings that slow a sound machine: control groups, CPU clocks, packet filters, and NCCL's own."""

from __future__ import annotations

import re

from holmes_core.records.inventory import Host
from holmes_core.units import GIB, format_memory
from prober.rails.choose_rails import rails_of
from prober.rule_text import FIELD, EvidenceLine
from prober.rules.rule import Evidence, Rule

MIN_MEMORY_BYTES = 16 * GIB  # a GPU: pinned buffers, loader workers and the copy of a checkpoint on its way to disk
MIN_CPUS = 4  # a GPU: the rank itself, NCCL's proxy thread and data loaders
FULL_CONNTRACK = 0.8


def _memory_limited(host: Host) -> Evidence:
    """Yield a low memory limit, unless it is as large as the machine's memory."""
    limit, whole = host.memory_limit_bytes, host.memory_bytes
    if limit is None or (whole is not None and limit >= whole) or not host.gpus:
        return
    if limit < MIN_MEMORY_BYTES * len(host.gpus):
        yield f"memory limit {format_memory(limit)} for {len(host.gpus)} GPUs"


def _cpus_limited(host: Host) -> Evidence:
    limit = host.cpu_limit
    if limit is not None and host.gpus and limit < MIN_CPUS * len(host.gpus) and limit < (host.cpu_count or limit + 1):
        yield f"CPU limit {limit:g} for {len(host.gpus)} GPUs"


def _slow_governor(host: Host) -> Evidence:
    """Yield `powersave`, which stays at the lowest clock unless the driver is intel_pstate or amd-pstate-epp."""
    if host.gpus and host.cpu_governor == "powersave" and not _follows_load(host):
        yield f"cpufreq governor {host.cpu_governor}, driver {host.cpu_frequency_driver}"


def _calm_governor(host: Host) -> Evidence:
    calm = host.cpu_governor in ("schedutil", "ondemand", "conservative")
    if host.gpus and (calm or (host.cpu_governor == "powersave" and _follows_load(host))):
        yield f"cpufreq governor {host.cpu_governor}, driver {host.cpu_frequency_driver or 'not known'}"


def _follows_load(host: Host) -> bool:
    return host.cpu_frequency_driver in (None, "intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


def _conntrack_full(host: Host) -> Evidence:
    if host.conntrack_share is not None and host.conntrack_share > FULL_CONNTRACK:
        yield f"{host.conntrack_share:.0%} of nf_conntrack_max is in use"


def _settings(host: Host) -> dict[str, str]:
    """Return the NCCL variables of the host. The first place that sets one wins."""
    return {setting.name: setting.value for setting in reversed(host.nccl_settings)}


def _no_adaptive_routing(host: Host) -> Evidence:
    rails = rails_of(host)
    value = _settings(host).get("NCCL_IB_ADAPTIVE_ROUTING")
    if rails and rails[0].kind == "InfiniBand" and value == "0":
        yield EvidenceLine(
            "NCCL_IB_ADAPTIVE_ROUTING=0, and the rails are InfiniBand",
            "unset NCCL_IB_ADAPTIVE_ROUTING, unless the fabric's owner runs without adaptive routing",
        )
    if rails and rails[0].kind == "RoCE" and value == "1":
        yield EvidenceLine(
            "NCCL_IB_ADAPTIVE_ROUTING=1, and the rails are RoCE",
            "unset it where switches and cards do not have adaptive routing on (`mlxreg -d DEVICE --get --reg_name "
            "ROCE_ACCEL`: adaptive_routing_forced_en)",
        )


def _service_level(host: Host) -> Evidence:
    rails = rails_of(host)
    level = _settings(host).get("NCCL_IB_SL")
    if rails and rails[0].kind == "RoCE" and level not in (None, "0"):
        yield f"NCCL_IB_SL={level}, and the rails are RoCE"


def _sharp_without_plugin(host: Host) -> Evidence:
    asked = _settings(host).get("NCCL_COLLNET_ENABLE") == "1"
    plugins = host.nccl_net_plugins
    if asked and plugins is not None and not any(re.search("sharp|hpcx", path) for path in plugins):
        yield f"NCCL_COLLNET_ENABLE=1; network plugins: {', '.join(plugins) or 'none'}"


_GOVERNOR = "`cpupower frequency-set -g performance`, and at each boot (tuned-adm profile, or the BIOS)"
_NCCL_VARIABLES = "NCCL user guide, environment variables"

HOST_RULES = (
    Rule(
        "HOST-CGROUP-LIMIT",
        "W",
        "the control group of the login or container has less than 16 GiB of memory a GPU",
        "the kernel ends a rank when buffers, loader workers and a checkpoint do not fit (exit 137, OOMKilled)",
        "raise the pod's `resources.limits.memory`, Slurm's `--mem`, or `MemoryMax` of the user's slice",
        "Linux, Documentation/admin-guide/cgroup-v2.rst (memory.max); " + FIELD,
        _memory_limited,
    ),
    Rule(
        "HOST-CGROUP-LIMIT",
        "W",
        "the control group of the login or container has less than 4 CPUs a GPU",
        "ranks, NCCL's proxy threads and data loaders are stopped once a period's quota is used: steps stutter",
        "raise the pod's `resources.limits.cpu` or leave it out, Slurm's `--cpus-per-task`, or the slice's `CPUQuota`",
        "Linux, Documentation/admin-guide/cgroup-v2.rst (cpu.max); " + FIELD,
        _cpus_limited,
    ),
    Rule(
        "HOST-CPU-GOVERNOR",
        "W",
        "the CPUs of a host with GPUs are held at their lowest clock",
        "kernels start late and NCCL's proxy threads are slow, at small messages most",
        _GOVERNOR,
        "Linux, Documentation/admin-guide/pm/cpufreq.rst; scitix/sichek (cpu_performance)",
        _slow_governor,
    ),
    Rule(
        "HOST-CPU-GOVERNOR",
        "I",
        "the CPU clock of a host with GPUs follows the load",
        "a few per cent of latency at small messages",
        _GOVERNOR,
        "Linux, Documentation/admin-guide/pm/intel_pstate.rst; scitix/sichek (cpu_performance)",
        _calm_governor,
    ),
    Rule(
        "HOST-NUMA-BALANCING",
        "I",
        "the kernel moves pages between NUMA nodes on a host with GPUs",
        "page faults in ranks and loaders, and on Grace CPUs in GPU memory, too: slower and uneven steps",
        "`sysctl -w kernel.numa_balancing=0`, and in /etc/sysctl.d; Holmes binds each rank to the CPUs near its GPU",
        "NVIDIA Grace performance tuning guide (NUMA balancing); Linux, Documentation/admin-guide/sysctl/kernel.rst",
        lambda host: ["kernel.numa_balancing is on"] if host.gpus and host.numa_balancing else (),
    ),
    Rule(
        "NET-CONNTRACK-FULL",
        "W",
        "the connection tracking table is more than 80 % full",
        "new connections are dropped once it is full: rendezvous and NCCL's bootstrap time out",
        "`sysctl -w net.netfilter.nf_conntrack_max=1048576`, or leave the job's networks out of tracking (NOTRACK)",
        "Linux, Documentation/networking/nf_conntrack-sysctl.rst",
        _conntrack_full,
    ),
    Rule(
        "NET-FIREWALL",
        "I",
        "a packet filter on the host drops unknown connections",
        "NCCL, Gloo and rendezvous use free ports of the host and time out behind it; RDMA itself is not filtered",
        "let the job's hosts in: `firewall-cmd --permanent --zone=trusted --add-source=NETWORK`, or `iptables -I INPUT "
        "-s NETWORK -j ACCEPT`; `holmes probe --links` tries the ports",
        "NCCL user guide, networking troubleshooting (IP ports); iptables(8), firewalld(1)",
        lambda host: [host.packet_filter] if host.packet_filter else (),
    ),
    Rule(
        "NCCL-ADAPTIVE-ROUTING",
        "I",
        "NCCL_IB_ADAPTIVE_ROUTING is set against NCCL's default for the rails' kind",
        "InfiniBand flows without it keep one path and collide; RoCE with it needs switches and cards that reorder",
        "unset it, unless the fabric's owner says otherwise",
        f"{_NCCL_VARIABLES} (NCCL_IB_ADAPTIVE_ROUTING)",
        _no_adaptive_routing,
    ),
    Rule(
        "NCCL-SERVICE-LEVEL",
        "I",
        "NCCL_IB_SL is set and the rails are RoCE",
        "nothing on RoCE v2 but for VLAN priorities: there the traffic class counts",
        "set NCCL_IB_TC instead: 106 is DSCP 26, which most sites map to priority 3",
        f"{_NCCL_VARIABLES} (NCCL_IB_SL, NCCL_IB_TC)",
        _service_level,
    ),
    Rule(
        "NCCL-SHARP",
        "W",
        "NCCL_COLLNET_ENABLE is 1, but NCCL's loader finds no SHARP plugin",
        "NCCL runs without SHARP, or waits for it when it creates groups",
        "install HPC-X's nccl_rdma_sharp_plugin and name it by NCCL_NET_PLUGIN, or unset NCCL_COLLNET_ENABLE",
        f"{_NCCL_VARIABLES} (NCCL_COLLNET_ENABLE); Mellanox/nccl-rdma-sharp-plugins",
        _sharp_without_plugin,
    ),
)
