"""What must hold before any rank starts. Pure: the plan and what the nodes say of themselves, to named faults.

A fault refuses the launch unless its check is forced by name, save for those without which nothing can start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holmes_core.errors import ANSWER_IS_NO, HolmesError, HostError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Node, Plan
from holmes_core.units import format_memory

MIN_FREE_BYTES = 1 << 30
SHM_BYTES_PER_RANK = (
    128 << 20
)  # NCCL's shared-memory buffers of a rank stay well below; Docker's default of 64 MiB is short

Answers = Mapping[int, Mapping[str, Any]]
PROBE_AGAIN = "`holmes probe` and `holmes plan` again, or bring the host back to what it was"


@dataclass(frozen=True)
class Check:
    """A named check: what it makes sure of, what to do when it fails, and whether a launch can go on in spite of it."""

    name: str
    makes_sure: str
    remedy: str
    can_be_forced: bool = True


@dataclass(frozen=True)
class Fault:
    """A check that failed on a host: `evidence` has the value seen. `remedy` where it is not the check's own."""

    check: str
    host: str
    evidence: str
    remedy: str | None = None


@dataclass(frozen=True)
class Seen:
    """A node of the plan beside what it says of itself; the inventory where it is at hand."""

    plan: Plan
    node: Node
    facts: Mapping[str, Any]
    inventory: Inventory | None


CHECKS = (
    Check("reachable", "every host can be logged in to", "start the host and its sshd", False),
    Check("host-keys", "every host's key is known", "`holmes trust HOST` shows and adds keys", False),
    Check("files", "the run's files can be written", "make room in the home folder; see that it is writable", False),
    Check(
        "agent",
        "Python starts the node agent",
        "install Python >= 3.10 there, or name it: `python: /path/to/python` in hosts.yaml, and probe again",
        False,
    ),
    Check(
        "torch",
        "torch is there",
        "`PYTHON -m pip install torch`, or name a Python that has it: `python:` in hosts.yaml",
        False,
    ),
    Check("versions", "Python, torch and NCCL are the same on all hosts", "install the same versions everywhere"),
    Check("gpus", "the GPUs are those of the inventory", PROBE_AGAIN),
    Check("gpus-free", "no process uses the planned GPUs", "end it, or wait for it"),
    Check("rdma-ports", "the planned RDMA ports are active", "look at cable, switch and subnet manager with `ibstat`"),
    Check("interfaces", "the planned interfaces are up and have their addresses", PROBE_AGAIN),
    Check("disk", "there is room for logs and checkpoints", "make room, or name another folder"),
    Check(
        "shared-memory",
        "/dev/shm has room for NCCL",
        "raise it: `mount -o remount,size=8G /dev/shm`; in Docker `--shm-size`",
    ),
    Check("memlock", "RDMA may pin memory", "`ulimit -l unlimited` for the SSH user: /etc/security/limits.d"),
    Check("nccl-settings", "no NCCL setting of the host fights the plan", "remove that line"),
    Check(
        "rendezvous",
        "a port is free for the rendezvous",
        "end what uses the ports (`ss -ltnp` shows it), or set another `master_port:` in job.yaml and plan again",
        False,
    ),
    Check("network", "the nodes reach each other where the plan says", "look at firewall and routes between them"),
)
_BY_NAME = {check.name: check for check in CHECKS}
_CHECK_OF_KIND = {"key unknown": "host-keys", "key changed": "host-keys", "files": "files"}


@dataclass(frozen=True)
class Preflight:
    """The outcome: faults, and the names of checks that were forced. `master_port` is the rendezvous'."""

    faults: tuple[Fault, ...]
    forced: frozenset[str]
    master_port: int | None

    @property
    def refusing(self) -> tuple[Fault, ...]:
        """The faults that keep the ranks from starting."""
        return tuple(
            fault for fault in self.faults if not (fault.check in self.forced and _BY_NAME[fault.check].can_be_forced)
        )

    @property
    def passed(self) -> bool:
        return not self.refusing


class PreflightFailed(HolmesError):
    """The checks refuse the launch; no rank was started and nothing is left behind."""

    def __init__(self, preflight: Preflight) -> None:
        first = preflight.refusing[0]
        count = len({fault.check for fault in preflight.refusing})
        super().__init__(
            f"host {first.host}: preflight check {first.check} failed: {first.evidence}",
            f"{count} checks failed in all; correct them, or go on in spite of one with `--force NAME`",
            ANSWER_IS_NO,
        )
        self.preflight = preflight


def remedy_of(fault: Fault) -> str:
    """What to do about it."""
    return fault.remedy or _BY_NAME[fault.check].remedy


def host_fault(error: HostError) -> Fault:
    """A host that could not be made ready, as a fault."""
    return Fault(_CHECK_OF_KIND.get(error.kind, "reachable"), error.host, error.evidence, error.hint)


def check_facts(plan: Plan, inventory: Inventory | None, answers: Answers) -> Iterator[Fault]:
    """Every fault in what the nodes say. `answers` are their `ready` events by node rank."""
    yield from _versions(plan, answers)
    for node in plan.nodes:
        facts = answers[node.node_rank]["facts"]
        for name, check in _NODE_CHECKS.items():
            for evidence in check(Seen(plan, node, facts, inventory)):
                yield Fault(name, node.host, evidence)
    if answers[0]["master_port"] is None:
        first, port = plan.nodes[0], plan.job.master_port
        evidence = f"no port from {port} to {port + 99} is free at {first.shared_address}"
        yield Fault("rendezvous", first.host, evidence)


def _versions(plan: Plan, answers: Answers) -> Iterator[Fault]:
    """Hosts that differ from the most common value."""
    for what in ("python", "torch", "nccl"):
        seen = {node.host: answers[node.node_rank]["facts"][what] for node in plan.nodes}
        if what == "python":
            seen = {host: ".".join(version.split(".")[:2]) for host, version in seen.items()}
        common = Counter(seen.values()).most_common(1)[0][0]
        for host, value in seen.items():
            if value != common:
                yield Fault("versions", host, f"{what} {value}, where most have {common}")


def _torch(at: Seen) -> Iterator[str]:
    if at.facts["torch"] is None:
        yield f"{at.facts['executable']} has no torch"


def _gpus(at: Seen) -> Iterator[str]:
    planned = [rank.gpu for rank in at.plan.ranks if rank.host == at.node.host and rank.gpu is not None]
    if not planned:
        return
    if at.facts["gpus"] is None:
        yield "nvidia-smi does not answer"
        return
    present = {int(row[0]): row[1] for row in at.facts["gpus"]}
    known = {gpu.index: gpu.uuid for gpu in at.inventory.host(at.node.host).gpus} if at.inventory else {}
    for gpu in planned:
        if gpu not in present:
            yield f"no GPU {gpu}; there are {', '.join(map(str, present)) or 'none'}"
        elif known.get(gpu) not in (None, present[gpu]):
            yield f"GPU {gpu} is {present[gpu]}, it was {known[gpu]} when probed"


def _gpus_free(at: Seen) -> Iterator[str]:
    planned = {rank.gpu for rank in at.plan.ranks if rank.host == at.node.host and rank.gpu is not None}
    index = {row[1]: int(row[0]) for row in at.facts["gpus"] or []}
    for uuid, pid, *name in at.facts["gpu_processes"] or []:
        if index.get(uuid) in planned:
            yield f"process {pid} ({', '.join(name)}) is on GPU {index[uuid]}"


def _rdma_ports(at: Seen) -> Iterator[str]:
    if at.plan.job.device == "cpu":
        return
    for port in _planned_ports(at.node):
        state = at.facts["rdma_ports"].get(port)
        if state != "ACTIVE":
            yield f"port {port} is {state or 'not there'}"


def _planned_ports(node: Node) -> tuple[str, ...]:
    """`mlx5_0:1`, ... of NCCL_IB_HCA."""
    value = next((variable.value for variable in node.environment if variable.name == "NCCL_IB_HCA"), "")
    ports = (entry for entry in value.lstrip("^=").split(",") if entry)
    return tuple(port if ":" in port else f"{port}:1" for port in ports)


def _interfaces(at: Seen) -> Iterator[str]:
    hosts = {rank.rank: rank.host for rank in at.plan.ranks}
    used = {
        interface
        for group in at.plan.groups
        for rank, interface in zip(group.ranks, group.interfaces, strict=True)
        if hosts[rank] == at.node.host
    }
    for name in sorted(used | {at.node.shared_netdev}):
        found = at.facts["interfaces"].get(name)
        if found is None:
            yield f"no interface {name}; there are {', '.join(at.facts['interfaces'])}"
        elif not found["up"]:
            yield f"interface {name} is down"
    if at.node.shared_address not in at.facts["local_addresses"]:
        yield f"{at.node.shared_address}, planned on {at.node.shared_netdev}, is no address of this host"


def _disk(at: Seen) -> Iterator[str]:
    if at.facts["free_bytes"] < MIN_FREE_BYTES:
        yield f"{format_memory(at.facts['free_bytes'])} free for the run's logs in the home folder"
    checkpoint = at.facts["checkpoint"]
    if checkpoint is not None and not checkpoint["writable"]:
        yield f"{checkpoint['folder']}, where checkpoints go, is not writable"
    elif checkpoint is not None and (checkpoint["free_bytes"] or 0) < MIN_FREE_BYTES:
        yield f"{format_memory(checkpoint['free_bytes'])} free for checkpoints in {checkpoint['folder']}"


def _shared_memory(at: Seen) -> Iterator[str]:
    count, free_bytes = at.node.num_ranks, at.facts["shm_free_bytes"] or 0
    needed = count * SHM_BYTES_PER_RANK
    if at.plan.job.device == "cuda" and count > 1 and free_bytes < needed:
        yield f"{format_memory(free_bytes)} free in /dev/shm, {count} ranks want {format_memory(needed)}"


def _memlock(at: Seen) -> Iterator[str]:
    limit = at.facts["memlock_bytes"]
    if at.plan.job.device == "cuda" and _planned_ports(at.node) and 0 <= limit < 1 << 40:
        yield f"memlock is {format_memory(limit)}"


def _nccl_settings(at: Seen) -> Iterator[str]:
    """A setting fights the plan when the plan sets the variable otherwise, or when it is NCCL_NET.

    What the ranks' environment has comes first for NCCL, but a setting elsewhere says that someone wants it otherwise.
    """
    planned = {variable.name: variable.value for variable in at.node.environment}
    for where, name, value in at.facts["nccl_settings"]:
        if name == "NCCL_NET":
            yield f"{where} sets NCCL_NET={value}, which would override the network of every group"
        elif name in planned and planned[name] != value and at.plan.job.device == "cuda":
            yield f"{where} sets {name}={value}, the plan {planned[name]}"


_NODE_CHECKS: dict[str, Callable[[Seen], Iterator[str]]] = {
    "torch": _torch,
    "gpus": _gpus,
    "gpus-free": _gpus_free,
    "rdma-ports": _rdma_ports,
    "interfaces": _interfaces,
    "disk": _disk,
    "shared-memory": _shared_memory,
    "memlock": _memlock,
    "nccl-settings": _nccl_settings,
}
