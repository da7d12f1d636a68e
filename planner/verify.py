"""The plan, checked again in plain Python: nothing of the solver is believed, the inventory is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from holmes_core.inventory import Inventory
from holmes_core.plan import Plan
from planner.candidates import Candidate
from planner.fleet import read_fleet
from planner.networks import SHARED, demanded_groups, shared_network
from planner.price import price_s
from planner.terms import stage_memory_bytes

OBJECTIVE_TOLERANCE = 1e-6  # relative


def verify(plan: Plan, inventory: Inventory) -> list[str]:
    """What is wrong with `plan` on `inventory`, a sentence each; empty when nothing is.

    Later checks need what earlier ones ensure, so the first kind of fault found ends the list.
    """
    checks: tuple[Callable[[Plan, Inventory], list[str]], ...] = (
        check_degrees,
        check_hosts,
        check_ranks,
        check_slots,
        check_stages,
        check_nodes,
        check_groups,
        check_interfaces,
        check_memory,
        check_objective,
    )
    for check in checks:
        faults = check(plan, inventory)
        if faults:
            return faults
    return []


def check_degrees(plan: Plan, inventory: Inventory) -> list[str]:
    """Degrees and micro-batches make up the global batch, and are what the job fixes."""
    del inventory
    fixed, faults = plan.job.parallel, []
    samples = plan.micro_batch_size * sum(plan.microbatches)
    if samples != plan.job.global_batch_size:
        faults.append(f"dp x micro-batch size x micro-batches is {samples}, not {plan.job.global_batch_size}")
    for key in ("tp", "pp", "dp", "micro_batch_size"):
        if getattr(fixed, key) not in (None, getattr(plan, key)):
            faults.append(f"{key} is {getattr(plan, key)}, the job fixes {getattr(fixed, key)}")
    return faults


def check_hosts(plan: Plan, inventory: Inventory) -> list[str]:
    """Every host of the plan is in the inventory, reachable, and in the cluster the plan says."""
    cluster_of = {host: cluster.name for cluster in inventory.clusters for host in cluster.hosts}
    named = [(rank.host, rank.cluster) for rank in plan.ranks] + [(node.host, node.cluster) for node in plan.nodes]
    return [
        f"host {host} is not in cluster {cluster} of the inventory"
        for host, cluster in dict.fromkeys(named)
        if cluster_of.get(host) != cluster
    ]


def check_ranks(plan: Plan, inventory: Inventory) -> list[str]:
    """All coordinates exist once, ranks count up, and the ranks of a host are one run with local ranks from 0."""
    del inventory
    wanted = {(s, r, t) for s in range(plan.pp) for r in range(plan.dp) for t in range(plan.tp)}
    found = Counter((rank.pp_rank, rank.dp_rank, rank.tp_rank) for rank in plan.ranks)
    faults = [
        f"coordinates {key} are held {found[key]} times"
        for key in sorted({*wanted, *found})
        if found[key] != (key in wanted)
    ]
    if [rank.rank for rank in plan.ranks] != list(range(plan.world_size)):
        faults.append(f"ranks are not 0..{plan.world_size - 1} in order")
    hosts = list(dict.fromkeys(rank.host for rank in plan.ranks))
    expected = [(host, local) for host in hosts for local in range(sum(rank.host == host for rank in plan.ranks))]
    for rank, (host, local_rank) in zip(plan.ranks, expected, strict=True):
        if (rank.host, rank.local_rank) != (host, local_rank):
            faults.append(f"rank {rank.rank} is ({rank.host}, {rank.local_rank}), not ({host}, {local_rank})")
    return faults


def check_slots(plan: Plan, inventory: Inventory) -> list[str]:
    """No slot is used twice, none is used that does not exist, and a tensor group stays on one host."""
    slots = {host.name: host.gpus for cluster in read_fleet(inventory, plan.job).clusters for host in cluster.hosts}
    faults = []
    for rank in plan.ranks:
        gpus = slots.get(rank.host, ())
        if rank.local_rank >= len(gpus) or gpus[rank.local_rank] != rank.gpu:
            faults.append(f"rank {rank.rank}: host {rank.host} has no slot {rank.local_rank} with GPU {rank.gpu}")
    used = Counter((rank.host, rank.local_rank) for rank in plan.ranks)
    faults += [
        f"slot {local} of host {host} is used {count} times" for (host, local), count in used.items() if count > 1
    ]
    hosts = {(rank.pp_rank, rank.dp_rank, rank.host) for rank in plan.ranks}
    if len(hosts) != plan.pp * plan.dp:
        faults.append("a tensor group spans several hosts")
    return faults


def check_stages(plan: Plan, inventory: Inventory) -> list[str]:
    """Stages cover the layers in order without gap, each with a layer, and name the clusters their ranks are in."""
    del inventory
    faults = []
    bounds = [(stage.first_layer, stage.stop_layer) for stage in plan.stages]
    if [stage.index for stage in plan.stages] != list(range(plan.pp)):
        return [f"stages are not 0..{plan.pp - 1} in order"]
    gaps = any(before[1] != after[0] for before, after in pairwise(bounds))
    if gaps or bounds[0][0] != 0 or bounds[-1][1] != plan.job.model.num_layers or any(a >= b for a, b in bounds):
        faults.append(f"stages {bounds} do not cover layers 0..{plan.job.model.num_layers} one after another")
    fixed = plan.job.parallel.layers
    if fixed is not None and tuple(stage.num_layers for stage in plan.stages) != fixed:
        faults.append(f"stages {bounds} are not the cut {fixed} the job fixes")
    for stage in plan.stages:
        clusters = {rank.cluster for rank in plan.ranks if rank.pp_rank == stage.index}
        if set(stage.clusters) != clusters:
            faults.append(f"stage {stage.index} names clusters {stage.clusters}, its ranks are in {sorted(clusters)}")
    return faults


def check_nodes(plan: Plan, inventory: Inventory) -> list[str]:
    """Nodes are the ranks' hosts in order, with their number of ranks and their port on the shared network."""
    ports = {port.host: (port.netdev, port.address) for port in shared_network(inventory).ports}
    hosts = list(dict.fromkeys(rank.host for rank in plan.ranks))
    faults = []
    if [(node.node_rank, node.host) for node in plan.nodes] != list(enumerate(hosts)):
        faults.append(f"nodes are not {hosts} in order")
    for node in plan.nodes:
        count = sum(rank.host == node.host for rank in plan.ranks)
        if node.num_ranks != count:
            faults.append(f"node {node.host} has {node.num_ranks} ranks, the plan puts {count} there")
        if (node.shared_netdev, node.shared_address) != ports.get(node.host):
            faults.append(f"node {node.host}: {node.shared_netdev} {node.shared_address} is not its shared port")
    return faults


def check_groups(plan: Plan, inventory: Inventory) -> list[str]:
    """The groups are those the coordinates demand, each once, with its members in order."""
    del inventory
    wanted = [(group.name, group.axis, tuple(r.rank for r in group.ranks)) for group in demanded_groups(plan.ranks)]
    found = [(group.name, group.axis, group.ranks) for group in plan.groups]
    missing = [f"group {name} with ranks {ranks} is missing" for name, _, ranks in set(wanted) - set(found)]
    extra = [f"group {name} with ranks {ranks} is not demanded" for name, _, ranks in set(found) - set(wanted)]
    if not missing and not extra and wanted != found:
        return ["the groups are not in plan order"]
    return sorted(missing + extra)


def check_interfaces(plan: Plan, inventory: Inventory) -> list[str]:
    """Every member has the group's interface, and a port on its network; where they differ in cluster, the shared."""
    host_of = {rank.rank: rank.host for rank in plan.ranks}
    cluster_of = {rank.rank: rank.cluster for rank in plan.ranks}
    networks = {cluster.name: cluster.fabric for cluster in inventory.clusters}
    networks[SHARED] = shared_network(inventory)
    netdevs = {host.name: {netdev.name for netdev in host.netdevs} for host in inventory.hosts}
    faults = []
    for group in plan.groups:
        if len(group.interfaces) != len(group.ranks):
            faults.append(f"group {group.name} has {len(group.ranks)} ranks and {len(group.interfaces)} interfaces")
            continue
        network = networks.get(group.network)
        crosses = len({cluster_of[rank] for rank in group.ranks}) > 1
        if network is None or (crosses and group.network != SHARED):
            faults.append(f"group {group.name}: network {group.network} does not join its clusters")
            continue
        for rank, interface in zip(group.ranks, group.interfaces, strict=True):
            host, port = host_of[rank], network.port_of(host_of[rank])
            if interface not in netdevs[host]:
                faults.append(f"group {group.name}: host {host} has no interface {interface}")
            if port is None or (port.netdev is not None and port.netdev != interface):
                faults.append(f"group {group.name}: {interface} of host {host} is not on network {group.network}")
            if group.net_name == "IB" and (port is None or not port.hcas):
                faults.append(f"group {group.name}: host {host} has no RDMA port on network {group.network}")
    return faults


def check_memory(plan: Plan, inventory: Inventory) -> list[str]:
    """Every rank's stage fits into its GPU's memory where that is known, and the prediction says how much it is."""
    candidate = Candidate(plan.tp, plan.pp, plan.dp, plan.micro_batch_size)
    needed = [stage_memory_bytes(plan.job, candidate, stage.index, stage.num_layers) for stage in plan.stages]
    faults = []
    if plan.prediction.memory_bytes != tuple(needed):
        faults.append(f"predicted memory is {plan.prediction.memory_bytes}, the stages need {needed} bytes")
    for rank in plan.ranks:
        gpus = {gpu.index: gpu.memory_bytes for gpu in inventory.host(rank.host).gpus}
        available = gpus.get(rank.gpu) if rank.gpu is not None else None
        if available is not None and needed[rank.pp_rank] > available:
            faults.append(f"rank {rank.rank} needs {needed[rank.pp_rank]} bytes, its GPU has {available}")
    return faults


def check_objective(plan: Plan, inventory: Inventory) -> list[str]:
    """The closed form of the ranks as they stand is what the plan says, and not below the bound."""
    candidate = Candidate(plan.tp, plan.pp, plan.dp, plan.micro_batch_size)
    layers = [stage.num_layers for stage in plan.stages]
    fleet = read_fleet(inventory, plan.job)
    recomputed_s = price_s(inventory, plan.job, fleet, candidate, layers, plan.ranks)
    tolerance_s = OBJECTIVE_TOLERANCE * recomputed_s
    faults = []
    if abs(recomputed_s - plan.solve.objective_s) > tolerance_s:
        faults.append(f"the closed form is {recomputed_s!r} s, the plan says {plan.solve.objective_s!r} s")
    if plan.solve.bound_s > recomputed_s + tolerance_s:
        faults.append(f"the closed form is {recomputed_s!r} s, below the bound {plan.solve.bound_s!r} s")
    return faults
