"""Inventory: the GPUs and NICs of all hosts, the hosts that share a fabric, and the findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from holmes_core.errors import HolmesError
from holmes_core.records.access import Access, OneLine
from holmes_core.records.devices import Gpu, GpuProcess, Netdev, Nic, PciDevice, Route
from holmes_core.records.link import IN_THE_CLEAR, Link, Security, Spread, Trunk
from holmes_core.records.record import FileRecord, Record
from holmes_runtime.config.rank_grid import NetName

FabricKind = Literal["InfiniBand", "RoCE", "EFA", "Ethernet", "loopback"]
Severity = Literal["F", "W", "I"]
"""F refuses launch, W warns, I informs."""
CAP_IPC_LOCK = 14  # bit of a capability mask. Source: Linux, include/uapi/linux/capability.h


Label = Annotated[str, Field(pattern=r"^[!-~]+$", max_length=253)]


class Hints(Record):
    """Labels that a scheduler gives a host. The probe decides by itself, and reports labels that contradict it."""

    network: Annotated[tuple[Label, ...], Field(max_length=10)] = ()
    """Switches above the host, nearest first. Example: [leaf-3, spine-1]"""
    nvlink: Label | None = None
    """Its NVLink domain. Example: domain-7"""
    fabric: FabricKind | None = None
    """Kind of its cluster's network. Example: RoCE"""


class Finding(Record):
    """A fault or a fact that the user should know."""

    rule: str  # id in the catalogue of rules, `NIC-PORT-DOWN`
    severity: Severity
    hosts: tuple[str, ...]
    evidence: str  # the values that were seen
    effect: str  # its effect on training
    remedy: str


class Software(Record):
    """The versions of software that the run would use on the host."""

    python: str | None
    torch: str | None  # None if it cannot be imported
    cuda: str | None = None  # that torch was built with
    nccl: str | None = None  # the one in torch
    ofed: str | None = None  # `ofed_info -s`


class NcclSetting(Record):
    """A NCCL variable that is already set."""

    where: str  # `environment`, or the conf file that sets it
    name: str
    value: str


class OfiPlugin(Record):
    """A library of aws-ofi-nccl, through which NCCL reaches the networks that libfabric knows."""

    path: str
    version: str | None  # `1.14.0`; None if it shows no number

    @property
    def net_name(self) -> NetName:
        """NCCL's name of its network. Source: aws-ofi-nccl, nccl_ofi_interface_nvidia: renamed after 1.11.0."""
        numbers = re.findall(r"\d+", self.version or "")
        return "AWS Libfabric" if numbers and [int(each) for each in numbers[:2]] <= [1, 11] else "Libfabric"


class LibfabricDomain(Record):
    """A domain that libfabric can open on a host, as `fi_info` lists it."""

    provider: str  # `efa`
    device: str  # `rdmap16s27`, without the endpoint's ending


class Conflict(Record):
    """Two sources that disagree; the value of `source_a` was kept."""

    subject: str  # `mlx5_0:1`, a netdev or `GPU0`
    fact: str
    source_a: str
    value_a: str
    source_b: str
    value_b: str


class ImpossibleValue(Record):
    """An impossible value, which counts as unknown."""

    source: str  # the tool that showed it
    subject: str  # `mlx5_0:1`, a netdev, `GPU0`, or the kind of thing that has the name
    fact: str
    value: str


class Host(Record):
    """One machine. An unreachable one stays in the inventory with a finding and no facts."""

    name: str
    access: Access
    reachable: bool
    hints: Hints = Hints()
    hostname: str | None = None  # its own name
    gpus: tuple[Gpu, ...] = ()
    gpus_stated: tuple[int, ...] | None = None  # the GPUs that `gpus:` of hosts.yaml names
    nics: tuple[Nic, ...] = ()
    netdevs: tuple[Netdev, ...] = ()
    default_route_netdev: str | None = None
    routes: tuple[Route, ...] = ()
    software: Software = Software(python=None, torch=None)
    python_asked: bool = False  # otherwise, `software` is empty
    python_failure: str | None = None  # the last line of output, if it failed
    kernel: str | None = None  # its release
    boot_id: str | None = None  # the running kernel's: hosts with the same one are the same machine
    cpu_count: int | None = None
    memory_bytes: int | None = None
    hugepages: int | None = None
    memory_limit_bytes: int | None = None  # of the probe's control group, or of one above it
    cpu_limit: float | None = None  # CPUs that this group may use at once
    cpu_governor: str | None = None  # `performance`
    cpu_frequency_driver: str | None = None  # `intel_pstate`
    numa_balancing: bool | None = None
    conntrack_share: float | None = None  # of the table of tracked connections, in use
    packet_filter: str | None = None  # the filter that drops unknown connections
    kernel_modules: tuple[str, ...] | None = None  # loaded modules in the outputs
    kernel_modules_complete: bool = False  # if False, a module that is not listed may still be loaded
    peermem: bool | None = None  # GPUDirect RDMA through nvidia_peermem or nv_peer_mem
    open_gpu_driver: bool | None = None  # the open kernel module, which has DMA-BUF
    gpu_driver_version: str | None = None
    other_accelerators: tuple[str, ...] = ()  # from makers that Holmes does not support: "AMD Instinct MI300X"
    gpu_count_lspci: int | None = None  # None if lspci was not read
    nvidia_smi_failure: str | None = None  # its message, if it failed entirely
    gpu_processes: tuple[GpuProcess, ...] | None = None  # None if not queried
    fabric_manager: str | None = None  # state of its service, `active`
    imex: str | None = None  # state of the nvidia-imex service, `active`
    warnings: tuple[str, ...] = ()  # lines of tools that are faults in themselves (infoROM, Xid)
    pci: tuple[PciDevice, ...] = ()
    iommu_groups: int | None = None  # the number of entries of /sys/kernel/iommu_groups
    iommu_group_types: tuple[str, ...] | None = None  # all groups' types, each once: `identity`, `DMA`, `DMA-FQ`
    kernel_command_line: str | None = None
    virtual_machine: bool | None = None
    container: str | None = None  # `kubernetes`, `docker`, ..., `unknown`; `none` if there is no sign of one
    slurm_job_id: str | None = None  # the Slurm job that the probe ran inside
    gpu_device_files: int | None = None  # the number of /dev/nvidia0, 1, ...: a container or job may have fewer
    memlock_bytes: int | None = None  # -1 for unlimited
    nofile: int | None = None  # -1 for unlimited
    shm_bytes: int | None = None  # size of /dev/shm
    clock_skew_s: float | None = None  # the host's clock minus the controller's
    round_trip_s: float | None = None
    counter_interval_s: float | None = None  # between the two readings of NIC counters
    user_is_root: bool | None = None
    capabilities_effective: int | None = None  # bit mask of the probing process; 0 in its own user namespace
    name_resolves_to: tuple[str, ...] = ()  # addresses of `hostname` on the host itself
    uverbs: int | None = None  # the number of /dev/infiniband/uverbs*
    uverbs_openable: int | None = None  # the number of them that this user may open
    nccl_settings: tuple[NcclSetting, ...] = ()
    nccl_net_plugins: tuple[str, ...] | None = None  # libnccl-net*.so files where a loader would look
    ofi_plugins: tuple[OfiPlugin, ...] | None = None  # of aws-ofi-nccl; None if not searched
    libfabric: tuple[LibfabricDomain, ...] | None = None  # None if fi_info was not run
    sources: tuple[str, ...] = ()  # tools with any output
    conflicts: tuple[Conflict, ...] = ()
    impossible: tuple[ImpossibleValue, ...] = ()

    @property
    def may_lock_memory(self) -> bool | None:
        """True if the probing process has no limit on locked memory (CAP_IPC_LOCK). None: not known."""
        return None if self.capabilities_effective is None else bool(self.capabilities_effective >> CAP_IPC_LOCK & 1)

    def for_job(self) -> Host:
        """Return the host with only the GPUs that the job uses, without faults of its other GPUs."""
        used = tuple(gpu for gpu in self.gpus if gpu.left_out is None)
        stated = self.gpus_stated is not None and set(self.gpus_stated) == {gpu.index for gpu in used}
        if len(used) == len(self.gpus) and not stated:
            return self
        out = len(self.gpus) - len(used)
        indices = {None, *(gpu.index for gpu in used)}
        counts = (self.gpu_count_lspci, self.gpu_device_files)
        lspci, files = (len(used) if stated and count else count and max(0, count - out) for count in counts)
        processes = self.gpu_processes
        update = {
            "gpus": used,
            "gpu_count_lspci": lspci,
            "gpu_device_files": files,
            "nvidia_smi_failure": None if stated else self.nvidia_smi_failure,
            "gpu_processes": processes and tuple(process for process in processes if process.gpu in indices),
            "warnings": tuple(line for line in self.warnings if not _is_about_another_gpu(line, used)),
        }
        return self.model_copy(update=update)


def _is_about_another_gpu(line: str, used: Sequence[Gpu]) -> bool:
    """Return True if the driver's line is about a GPU that is not in `used`, by its PCI address."""
    address = r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2})"
    match = re.search(rf"(?:(?<!S)Xid \(PCI:|NVRM: GPU ){address}", line, re.IGNORECASE)  # an SXid is a switch's
    known = [gpu.pci_address.partition(".")[0] for gpu in used if gpu.pci_address is not None]
    if match is None or len(known) < len(used):
        return False
    said = match[1].lower()  # with a domain of 4 or 8 digits, or without one
    return not any(said.endswith(slot) or slot.endswith(said) for slot in known)


class NetworkPort(Record):
    """A host's attachment to a network."""

    host: str
    netdev: str | None  # for TCP
    address: str | None
    bandwidth_bytes_per_s: float | None = Field(ge=0)  # the netdev's
    hcas: tuple[str, ...] = ()  # for RDMA, `mlx5_0:1`, in order of their rail numbers
    rdma_bandwidth_bytes_per_s: float | None = Field(default=None, ge=0)  # all HCAs together
    net_plugin: str | None = None  # the library for these HCAs, if NCCL's own verbs transport cannot use them


class Network(Record):
    """A fabric inside one cluster, or the network all clusters share."""

    name: str
    kind: FabricKind
    subnet: str | None  # its IPv4 prefix
    ports: tuple[NetworkPort, ...]
    rails_apart: bool | None = None  # each rail is a separate subnet, and none is routed to another
    net_name: NetName | None = None  # NCCL's name for it, if a plugin provides it

    def port_of(self, host: str) -> NetworkPort | None:
        """Return the port of `host` on this network; None if it has none."""
        return next((port for port in self.ports if port.host == host), None)


class Cluster(Record):
    """Hosts that share one fabric."""

    name: str
    hosts: tuple[str, ...]
    fabric: Network
    pinned: bool = False  # hosts.yaml named it


class NvlinkDomain(Record):
    """Hosts whose GPUs share one NVLink fabric, such as an NVL72 rack: one cluster UUID and clique."""

    name: str
    hosts: tuple[str, ...] = Field(min_length=2)
    cluster_uuid: str
    clique: int


class Inventory(FileRecord):
    """Everything that `holmes probe` found. Every reachable host is in exactly one cluster."""

    KIND: ClassVar[str] = "inventory"
    RENEW: ClassVar[str] = "holmes probe hosts.yaml -o inventory.json"
    RARE: ClassVar[tuple[str, ...]] = ("sketch",)

    schema_version: Literal[1] = 1
    sketch: OneLine | None = None  # the machines in short, if `holmes sketch` wrote the inventory
    hosts: tuple[Host, ...]
    clusters: tuple[Cluster, ...]
    shared: Network | None
    links: tuple[Link, ...] = ()
    trunks: tuple[Trunk, ...] = ()  # at most one for two clusters, and one for each alone
    nvlink_domains: tuple[NvlinkDomain, ...] = ()
    security: Security = IN_THE_CLEAR  # as hosts.yaml asks
    findings: tuple[Finding, ...]

    @model_validator(mode="after")
    def _every_reachable_host_has_one_cluster(self) -> Inventory:
        twice = [name for name, times in Counter(host.name for host in self.hosts).items() if times > 1]
        if twice:
            raise ValueError(f"hosts must have different names, seen twice: {twice}")
        members = [name for cluster in self.clusters for name in cluster.hosts]
        reachable = [host.name for host in self.hosts if host.reachable]
        if sorted(members) != sorted(reachable):
            raise ValueError(f"clusters hold {sorted(members)}, reachable hosts are {sorted(reachable)}")
        return self

    @model_validator(mode="after")
    def _clusters_have_one_trunk(self) -> Inventory:
        between = [frozenset(trunk.clusters) for trunk in self.trunks]
        for trunk, clusters in zip(self.trunks, between, strict=True):
            if len(clusters) < len(trunk.clusters) or between.count(clusters) > 1:
                raise ValueError(
                    f"trunks must be one between two clusters, or of one, each, seen: {list(trunk.clusters)}"
                )
        return self

    def source_digest(self) -> str:
        """Return the digest without momentary facts, so that another probe with the same result keeps it."""
        refusing = (finding for finding in self.findings if finding.severity == "F")
        update = {
            "hosts": tuple(_lasting(host) for host in self.hosts),
            "findings": tuple(finding.model_copy(update={"evidence": ""}) for finding in refusing),
        }
        return self.model_copy(update=update).digest()

    @property
    def encrypts(self) -> bool:
        """True if traffic over the network that all clusters share goes through a tunnel."""
        return self.security.between_clusters == "wireguard" and len(self.clusters) > 1

    @property
    def refusals(self) -> dict[str, Finding]:
        """The hosts on which nothing can be launched, each with the finding that refuses it alone.

        A finding that refuses several hosts may be fixed on one of them, so the preflight decides.
        """
        alone = (finding for finding in self.findings if finding.severity == "F" and len(finding.hosts) == 1)
        return {finding.hosts[0]: finding for finding in alone}

    def for_job(self) -> Inventory:
        """Return the inventory with only the GPUs that the job uses."""
        return self.model_copy(update={"hosts": tuple(host.for_job() for host in self.hosts)})

    def host(self, name: str) -> Host:
        """Return the host of that name, which must exist."""
        return self._host_by_name[name]

    @cached_property
    def _host_by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}


def stated_link(
    network: str,
    clusters: tuple[str, str],
    ends: tuple[NetworkPort, NetworkPort],
    bandwidth_bytes_per_s: float,
    latency_s: float | None,
) -> Link:
    """Return a link as if a test had measured this payload rate and latency between two ports."""
    return Link(
        kind="between" if clusters[0] != clusters[1] else "inside",
        network=network,
        clusters=clusters,
        hosts=(ends[0].host, ends[1].host),
        devices=(str(ends[0].netdev), str(ends[1].netdev)),
        method="stated",
        streams=1,
        direction="forward",
        latency_s=Spread(min=latency_s, median=latency_s) if latency_s else None,
        bandwidth_bytes_per_s=Spread(min=bandwidth_bytes_per_s, median=bandwidth_bytes_per_s),
        samples=1,
    )


def refuse_sketch(inventory: Inventory, path: Path) -> None:
    """Raise HolmesError if `holmes sketch` wrote the inventory, in a command that needs probed machines."""
    if inventory.sketch is not None:
        raise HolmesError(
            f"{path}: a sketch, not an inventory of probed machines ({inventory.sketch})",
            "name the inventory of a probe; only `holmes plan` accepts a sketch",
        )


def _lasting(host: Host) -> Host:
    """Return the host without facts that no plan uses: clocks, round trip, error counters, GPU processes, throttle."""
    update = dict.fromkeys(
        ("clock_skew_s", "round_trip_s", "counter_interval_s", "gpu_processes", "python_failure", "conntrack_share")
    )
    gpus = tuple(gpu.model_copy(update={"throttle_reasons": ()}) if gpu.throttle_reasons else gpu for gpu in host.gpus)
    uncounted = {"counters": (), "counter_growth": None, "effective_ber": None, "raw_ber": None}
    none = tuple(uncounted.values())
    nics = tuple(
        nic
        if (nic.counters, nic.counter_growth, nic.effective_ber, nic.raw_ber) == none
        else nic.model_copy(update=uncounted)
        for nic in host.nics
    )
    return host.model_copy(update={**update, "gpus": gpus, "nics": nics})
