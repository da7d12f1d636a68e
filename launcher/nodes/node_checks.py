"""Check the nodes against the plan. Pure: from the plan and the nodes' facts to faults."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from holmes_core.node_settings import is_fixed
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Node, Plan
from holmes_core.units import format_memory
from holmes_runtime.config.messages import NodeFacts, Ready
from holmes_runtime.config.node_config import SHM_BYTES_PER_RANK, TunnelEnd, TunnelFault
from launcher.nodes.preflight import Fault
from launcher.prepare.prepare import Attempt, planned_interfaces, planned_rdma_ports

MIN_FREE_BYTES = 1 << 30
NOTHING_TO_RESUME = (
    "correct `checkpoint: {path: ...}` in job.yaml, or mount the folder that it names; to begin at step 1 where there "
    "is no checkpoint, add `--from-scratch`"
)
TORCH_FROM, TORCH_BELOW = (2, 11), (2, 16)
# The first driver that runs programs of a CUDA major version. Source: NVIDIA, CUDA Compatibility, table "CUDA Toolkit
# Driver Version Ranges" (docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
MIN_DRIVER = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True)
class CheckedNode:
    """A node of the plan with its reported facts, its own end of a tunnel, and the inventory if it is at hand."""

    plan: Plan
    node: Node
    facts: NodeFacts
    tunnel: TunnelEnd | TunnelFault | None
    inventory: Inventory | None


def check_facts(
    plan: Plan, attempt: Attempt, inventory: Inventory | None, answers: Mapping[int, Ready]
) -> Iterator[Fault]:
    """Yield every fault in the nodes' facts. `answers` are by node rank."""
    yield from _versions(plan, answers)
    for node in plan.nodes:
        facts, tunnel = answers[node.node_rank].facts, answers[node.node_rank].tunnel
        checked = CheckedNode(plan, node, facts, tunnel, inventory)
        for name, check in _NODE_CHECKS.items():
            for evidence in check(checked):
                yield Fault(name, node.host, evidence)
        yield from _missing_inputs(plan, attempt, node, facts)
        if isinstance(tunnel, TunnelFault):
            yield Fault("encryption", node.host, tunnel.evidence, tunnel.remedy)
        elif node.tunnel_endpoint is not None and not _has_tunnel_end(node, facts):
            evidence = f"the plan encrypts, and the node has no {node.shared_netdev} with {node.shared_address}"
            yield Fault("encryption", node.host, evidence)
    yield from _checkpoints(plan, attempt, answers)
    if answers[0].master_port is None and not isinstance(answers[0].tunnel, TunnelFault):
        first, port = plan.nodes[0], plan.job.master_port
        evidence = f"no port from {port} to {port + 99} is free at {first.shared_address}"
        yield Fault("rendezvous", first.host, evidence)


def _has_tunnel_end(node: Node, facts: NodeFacts) -> bool:
    found = facts.interfaces.get(node.shared_netdev)
    return found is not None and found.up and found.address == node.shared_address


def _versions(plan: Plan, answers: Mapping[int, Ready]) -> Iterator[Fault]:
    """Yield hosts that differ from the most common version."""
    facts = {node.host: answers[node.node_rank].facts for node in plan.nodes}
    versions: dict[str, dict[str, str | None]] = {
        "python": {host: ".".join(each.python.split(".")[:2]) for host, each in facts.items()},  # major and minor
        "torch": {host: each.torch for host, each in facts.items()},
        "nccl": {host: each.nccl for host, each in facts.items()},
    }
    for what, seen in versions.items():
        common = Counter(seen.values()).most_common(1)[0][0]
        for host, value in seen.items():
            if value != common:
                yield Fault("versions", host, f"{what} {value}, where most have {common}")


def _checkpoints(plan: Plan, attempt: Attempt, answers: Mapping[int, Ready]) -> Iterator[Fault]:
    """Yield the checkpoint faults that ranks would raise later, each for one host only: a folder may be shared."""
    yield from _lost_with_the_run(plan, answers)
    folders = {node.host: answers[node.node_rank].facts.checkpoint for node in plan.nodes}
    newest = {(found.folder, found.newest): host for host, found in reversed(folders.items()) if found and found.newest}
    if not attempt.resume:
        for (folder, name), host in newest.items():
            yield Fault("checkpoints", host, f"{folder} holds a checkpoint, {name}, and this run does not resume it")
    elif not newest and not attempt.from_scratch and plan.job.checkpoint is not None:
        evidence = f"{plan.job.checkpoint.path} holds no checkpoint on {', '.join(folders)}, and this run resumes one"
        yield Fault("checkpoints", plan.nodes[0].host, evidence, NOTHING_TO_RESUME)


def _lost_with_the_run(plan: Plan, answers: Mapping[int, Ready]) -> Iterator[Fault]:
    """Yield checkpoint folders that are removed with all their content when the run ends."""
    for node in plan.nodes:
        found = answers[node.node_rank].facts.checkpoint
        if found is not None and found.in_cache:
            evidence = f"{found.folder} leads into Holmes's own cache, which is removed when the run ends"
            yield Fault("checkpoints", node.host, evidence, "name another `checkpoint: {path: ...}` in job.yaml")
        elif found is not None and node.access.container is not None and found.mount_point == "/":
            evidence = f"{found.folder} is inside the container, which is removed when the run ends"
            remedy = "mount the host's folder there: `container: {options: [--volume, /data:/data]}` in hosts.yaml"
            yield Fault("checkpoints", node.host, evidence, remedy)


def _torch(at: CheckedNode) -> Iterator[str]:
    if at.facts.torch is None:
        yield f"{at.facts.executable} has no torch"


def _torch_build(at: CheckedNode) -> Iterator[str]:
    """Check torch's version against the range of Holmes' own requirements, and its CUDA against the driver."""
    found = _numbers(at.facts.torch or "")
    if found and not TORCH_FROM <= found[:2] < TORCH_BELOW:
        needed = f"{_dotted(TORCH_FROM)} or later, and earlier than {_dotted(TORCH_BELOW)}"
        yield f"torch {at.facts.torch}, the runtime needs {needed}"
    if at.plan.job.device == "cpu" or at.facts.torch is None:
        return
    if at.facts.torch_cuda is None:
        yield f"torch {at.facts.torch} is built without CUDA, and the plan trains on GPUs"
        return
    major, driver = _numbers(at.facts.torch_cuda)[:1], _numbers(at.facts.driver or "")
    least = MIN_DRIVER.get(major[0]) if major else None
    if least is not None and driver and driver[0] < least:
        needed = f"CUDA {at.facts.torch_cuda}, which needs driver {least} or later"
        yield f"torch is built for {needed}; it is {at.facts.driver}"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, () if it has none: (2, 13, 0) of `2.13.0+cu130`."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _gpus(at: CheckedNode) -> Iterator[str]:
    planned = [rank.gpu for rank in at.plan.ranks if rank.host == at.node.host and rank.gpu is not None]
    if not planned:
        return
    if at.facts.gpus_failure is not None:
        yield f"nvidia-smi: {at.facts.gpus_failure}"
    if at.facts.gpus is None:
        return
    present = {gpu.gpu_index: gpu.uuid for gpu in at.facts.gpus}
    known = {gpu.index: gpu.uuid for gpu in at.inventory.host(at.node.host).gpus} if at.inventory else {}
    for gpu in planned:
        if gpu not in present:
            yield f"no GPU {gpu}; there are {', '.join(map(str, present)) or 'none'}"
        elif known.get(gpu) not in (None, present[gpu]):
            yield f"GPU {gpu} is {present[gpu]}, it was {known[gpu]} when probed"


def _gpus_taken(at: CheckedNode) -> Iterator[str]:
    for claim in at.facts.gpus_taken:
        since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(claim.since_s))
        yield f"GPU {claim.gpu_index} is taken by run {claim.run_id} of {claim.user}, since {since}"


def _gpus_free(at: CheckedNode) -> Iterator[str]:
    planned = {rank.gpu for rank in at.plan.ranks if rank.host == at.node.host and rank.gpu is not None}
    index = {gpu.uuid: gpu.gpu_index for gpu in at.facts.gpus or ()}
    for process in at.facts.gpu_processes or ():
        if index.get(process.gpu_uuid) in planned:
            yield f"process {process.pid} ({process.name}) is on GPU {index[process.gpu_uuid]}"


def _rdma_ports(at: CheckedNode) -> Iterator[str]:
    if at.plan.job.device == "cpu":
        return
    for port in planned_rdma_ports(at.node):
        state = at.facts.rdma_ports.get(port)
        if state != "ACTIVE":
            yield f"port {port} is {state or 'not there'}"


def _net_plugin(at: CheckedNode) -> Iterator[str]:
    if at.facts.net_plugin_there is False:
        library = at.plan.job.launch.environment.get("NCCL_NET_PLUGIN") or _planned(at.node, "NCCL_NET_PLUGIN")
        yield f"{library} is not a file here; NCCL reaches the cluster's fabric only through it"


def _planned(node: Node, name: str) -> str | None:
    return next((variable.value for variable in node.environment if variable.name == name), None)


def _interfaces(at: CheckedNode) -> Iterator[str]:
    tunnel = {at.node.shared_netdev} if at.node.tunnel_endpoint is not None else set()  # has a check of its own
    for name in sorted(set(planned_interfaces(at.plan, at.node)) - tunnel):
        found = at.facts.interfaces.get(name)
        if found is None:
            yield f"no interface {name}; there are {', '.join(at.facts.interfaces)}"
        elif not found.up:
            yield f"interface {name} is down"
    if at.node.tunnel_endpoint is None or at.tunnel is not None:  # else another agent has the tunnel, and was asked
        yield from foreign_address(at.node.tunnel_endpoint or at.node.shared_address, at.facts)


def foreign_address(address: str, facts: NodeFacts) -> Iterator[str]:
    """Yield the evidence if the address by which others are to reach a node is not its own."""
    if address not in facts.local_addresses:
        yield f"{address}, at which the other nodes reach it, is not an address of this host"


def _disk(at: CheckedNode) -> Iterator[str]:
    if at.facts.free_bytes < MIN_FREE_BYTES:
        yield f"{format_memory(at.facts.free_bytes)} free for the run's logs in the home folder"
    checkpoint = at.facts.checkpoint
    if checkpoint is not None and not checkpoint.writable:
        yield f"{checkpoint.folder}, where checkpoints go, is not writable"
    elif checkpoint is not None and (free_bytes := checkpoint.free_bytes or 0) < MIN_FREE_BYTES:
        yield f"{format_memory(free_bytes)} free for checkpoints in {checkpoint.folder}"


def _missing_inputs(plan: Plan, attempt: Attempt, node: Node, facts: NodeFacts) -> Iterator[Fault]:
    """Yield absent inputs. Data of an island's own cluster belong on the hosts of that island alone."""
    island, data = attempt.outer_sync, plan.job.data
    own = data.sources if attempt.own_data is not None and data is not None else ()
    for path in facts.missing_inputs:  # a host names the whole path of a home folder
        remedy = None
        if island is not None and any(path.endswith(source.path.removeprefix("~")) for source in own):
            hosts = ", ".join(each.host for each in plan.nodes)
            remedy = (
                f"copy or mount {path} on each host of island {island.island} ({hosts}), in the container if there is "
                f"one; or correct `islands.data.{attempt.own_data}` in job.yaml and plan again"
            )
        evidence = f"{path}, which job.yaml names, is not there or cannot be read"
        yield Fault("inputs", node.host, evidence, remedy)


def _compiler(at: CheckedNode) -> Iterator[str]:
    """Check the compiler. The user's own model compiles itself, if at all."""
    job = at.plan.job
    if job.compiles and job.model.factory is None and at.facts.compile_lacks is not None:
        yield f"compiled layers need {at.facts.compile_lacks}"


def _fp8(at: CheckedNode) -> Iterator[str]:
    job = at.plan.job
    if job.fp8 and job.compute.emulate is None and at.facts.fp8_lacks is not None:
        yield f"layers in FP8 need {at.facts.fp8_lacks}"


def _shared_memory(at: CheckedNode) -> Iterator[str]:
    count, free_bytes = at.node.num_ranks, at.facts.shm_free_bytes or 0
    needed = count * SHM_BYTES_PER_RANK
    if at.plan.job.device == "cuda" and count > 1 and free_bytes < needed:
        yield f"{format_memory(free_bytes)} free in /dev/shm, {count} ranks want {format_memory(needed)}"


def _host_memory(at: CheckedNode) -> Iterator[str]:
    by_rank, free_bytes = at.plan.prediction.host_memory_bytes, at.facts.memory_bytes
    needed = sum(by_rank[rank.pp_rank] for rank in at.plan.ranks if rank.host == at.node.host) if by_rank else 0
    if free_bytes is not None and free_bytes < needed:
        yield f"{format_memory(free_bytes)} of memory are free, optimizer states take {format_memory(needed)}"


def _memlock(at: CheckedNode) -> Iterator[str]:
    limit, on_rdma = at.facts.memlock_bytes, planned_rdma_ports(at.node) or _planned(at.node, "NCCL_NET_PLUGIN")
    if at.plan.job.device == "cuda" and on_rdma and 0 <= limit < 1 << 40:
        yield f"memlock is {format_memory(limit)}"


def _nccl_settings(at: CheckedNode) -> Iterator[str]:
    """Yield settings that conflict with the plan: another value of a variable it relies on, or any NCCL_NET.

    NCCL prefers the ranks' environment, but a setting elsewhere shows that someone wants it otherwise.
    """
    planned = {variable.name: variable.value for variable in at.node.environment}
    for where, name, value in at.facts.nccl_settings:
        if name == "NCCL_NET":
            yield f"{where} sets NCCL_NET={value}, which would override the network of every group"
        elif is_fixed(name) and planned.get(name, value) != value and at.plan.job.device == "cuda":
            yield f"{where} sets {name}={value}, the plan {planned[name]}"


_NODE_CHECKS: dict[str, Callable[[CheckedNode], Iterator[str]]] = {
    "torch": _torch,
    "torch-build": _torch_build,
    "gpus": _gpus,
    "gpus-taken": _gpus_taken,
    "gpus-free": _gpus_free,
    "rdma-ports": _rdma_ports,
    "net-plugin": _net_plugin,
    "interfaces": _interfaces,
    "contents": lambda at: iter(at.facts.wrong_inputs),
    "compiler": _compiler,
    "fp8": _fp8,
    "disk": _disk,
    "shared-memory": _shared_memory,
    "host-memory": _host_memory,
    "memlock": _memlock,
    "nccl-settings": _nccl_settings,
}
