"""A second check of the plan, in plain Python against the inventory, independent of the solver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import TUNNEL_NETDEV, Plan, tunnel_address
from holmes_runtime.config.rank_grid import EDGE_AXES
from holmes_runtime.config.schedule import make_schedule, most_in_flight
from holmes_runtime.config.trainer_config import SHARED
from planner.cost.engines import engine_of
from planner.cost.fill import fill_of
from planner.cost.packing import allowed_codecs
from planner.cost.rank_memory import memory_bytes
from planner.cost.trained import dense_layers
from planner.layout.engine_mesh import mesh_faults
from planner.problem.candidates import candidate_of
from planner.problem.context_groups import sequence_groups
from planner.problem.fleet import slots_of
from planner.problem.groups import demanded_groups, expert_ranks
from planner.problem.memory_room import host_bytes_by_rank, usable_host_bytes
from planner.problem.near_cores import cpu_ranges, first_shared
from planner.problem.networks import shared_network
from planner.problem.problem import read_problem
from planner.search.closed_form import price_ranks_s
from planner.tolerances import RELATIVE_TOLERANCE


def verify(plan: Plan, inventory: Inventory) -> list[str]:
    """Return the faults of `plan` on `inventory`, a sentence each; empty if there are none.

    Later checks rely on facts that earlier ones ensure, so the first failing check ends the list.
    """
    checks: tuple[Callable[[], list[str]], ...] = (
        partial(check_degrees, plan),
        partial(check_hosts, plan, inventory),
        partial(check_ranks, plan),
        partial(check_slots, plan, inventory),
        partial(check_cores, plan),
        partial(check_stages, plan),
        partial(check_nodes, plan, inventory),
        partial(check_groups, plan),
        partial(check_engine, plan),
        partial(check_interfaces, plan, inventory),
        partial(check_codecs, plan),
        partial(check_memory, plan, inventory),
        partial(check_host_memory, plan, inventory),
        partial(check_objective, plan, inventory),
    )
    return next((faults for check in checks if (faults := check())), [])


def check_degrees(plan: Plan) -> list[str]:
    """Return faults if degrees and micro-batches do not make up the batch, obey the job, and form a schedule."""
    fixed, faults = plan.job.parallel, []
    samples = plan.micro_batch_size * sum(plan.microbatches)
    if samples != plan.job.batch_parts:
        faults.append(f"the replicas' micro-batches have {samples} samples, not {plan.job.batch_parts}")
    if min(plan.microbatches, default=0) < 1:
        faults.append(f"a replica runs no micro-batch: {plan.microbatches}")
    for key in ("tp", "pp", "dp", "micro_batch_size", "recompute", "optimizer_offload", "schedule", "chunks"):
        planned = plan.engine_dp if key == "dp" else getattr(plan, key)
        if getattr(fixed, key) not in (None, planned):
            faults.append(f"{key} is {planned}, but the job fixes {getattr(fixed, key)}")
    if not faults:
        try:
            for number in set(plan.microbatches):
                make_schedule(plan.schedule, plan.pp, number, plan.chunks, plan.extra_in_flight)
        except ValueError as error:
            faults.append(str(error))
    return faults + _zero_faults(plan)


def _zero_faults(plan: Plan) -> list[str]:
    fixed, faults = plan.job.zero, []
    if fixed == 1 < plan.zero or (fixed == 3 > plan.zero and plan.dp > 1):
        faults.append(f"zero is {plan.zero}, but the job fixes {fixed}")
    if plan.zero == 3 and plan.schedule == "zero-bubble":
        faults.append("zero is 3 and the schedule zero-bubble: half a backward would run without the weights")
    if plan.zero == 3 and plan.optimizer_offload:
        faults.append("zero is 3 and optimizer_offload true: the weights are made from masters on the device")
    if plan.zero == 3 and plan.job.model.tied_embeddings and not engine_of(plan.job).shards_tied:
        faults.append("zero is 3 and tied_embeddings true: the table is used twice in a micro-batch")
    return faults


def check_hosts(plan: Plan, inventory: Inventory) -> list[str]:
    """Return faults if a host is not in the inventory, not reachable, or not in the cluster that the plan states."""
    cluster_of = {host: cluster.name for cluster in inventory.clusters for host in cluster.hosts}
    named = [(rank.host, rank.cluster) for rank in plan.ranks] + [(node.host, node.cluster) for node in plan.nodes]
    return [
        f"host {host} is not in cluster {cluster} of the inventory"
        for host, cluster in dict.fromkeys(named)
        if cluster_of.get(host) != cluster
    ]


def check_ranks(plan: Plan) -> list[str]:
    """Return faults unless all coordinates exist once, ranks count up, and local ranks count from 0 on each host.

    For the bundled runtime, the ranks of a host are consecutive; `check_engine` checks the order of other trainers.
    """
    wanted = {(s, r, t) for s in range(plan.pp) for r in range(plan.dp) for t in range(plan.tp)}
    found = Counter((rank.pp_rank, rank.dp_rank, rank.tp_rank) for rank in plan.ranks)
    faults = [
        f"coordinates {key} are held {found[key]} times"
        for key in sorted({*wanted, *found})
        if found[key] != (key in wanted)
    ]
    if [rank.rank for rank in plan.ranks] != list(range(plan.world_size)):
        faults.append(f"ranks are not 0..{plan.world_size - 1} in order")
    counted, expected = Counter[str](), list[tuple[str, int]]()
    hosts = (rank.host for rank in plan.ranks)
    for host in _ranks_by_host(plan).elements() if plan.job.is_bundled else hosts:
        expected.append((host, counted[host]))
        counted[host] += 1
    for rank, (host, local_rank) in zip(plan.ranks, expected, strict=True):
        if (rank.host, rank.local_rank) != (host, local_rank):
            faults.append(f"rank {rank.rank} is ({rank.host}, {rank.local_rank}), not ({host}, {local_rank})")
    return faults


def check_slots(plan: Plan, inventory: Inventory) -> list[str]:
    """Return faults if a slot is used twice or does not exist, or if a tensor group spans hosts."""
    slots = {host.name: slots_of(host, plan.job) for host in inventory.hosts}
    faults = []
    for rank in plan.ranks:
        gpus = slots.get(rank.host, ())
        if rank.local_rank >= len(gpus) or rank.gpu not in gpus:
            faults.append(f"rank {rank.rank}: host {rank.host} has no slot {rank.local_rank} with GPU {rank.gpu}")
    used = Counter((rank.host, rank.gpu) for rank in plan.ranks if rank.gpu is not None)
    faults += [f"GPU {gpu} of host {host} is used {count} times" for (host, gpu), count in used.items() if count > 1]
    hosts = {(rank.pp_rank, rank.dp_rank, rank.host) for rank in plan.ranks}
    if len(hosts) != plan.pp * plan.dp:
        faults.append("a tensor group spans several hosts")
    return faults


def check_cores(plan: Plan) -> list[str]:
    """Return a fault for each host with a CPU that is assigned twice."""
    lists: dict[str, list[tuple[tuple[int, int], ...]]] = {}
    for rank in plan.ranks:
        lists.setdefault(rank.host, []).append(cpu_ranges(rank.cpus) if rank.cpus is not None else ())
    shared = {host: first_shared(held) for host, held in lists.items()}
    return [f"CPU {cpu} of host {host} is assigned twice" for host, cpu in shared.items() if cpu is not None]


def check_stages(plan: Plan) -> list[str]:
    """Return faults unless stages cover the layers in order, each with a layer, and name their ranks' clusters."""
    faults = []
    bounds = [(stage.first_layer, stage.stop_layer) for stage in plan.stages]
    if [stage.index for stage in plan.stages] != list(range(plan.pp * plan.chunks)):
        return [f"stages are not 0..{plan.pp * plan.chunks - 1} in order"]
    gaps = any(before[1] != after[0] for before, after in pairwise(bounds))
    if gaps or bounds[0][0] != 0 or bounds[-1][1] != plan.job.model.num_layers or any(a >= b for a, b in bounds):
        faults.append(f"stages {bounds} do not cover layers 0..{plan.job.model.num_layers} in order without gaps")
    fixed = plan.job.parallel.layers
    if fixed is not None and tuple(stage.num_layers for stage in plan.stages) != fixed:
        faults.append(f"stages {bounds} differ from the cut {fixed} that the job fixes")
    clusters: dict[int, set[str]] = {}
    for rank in plan.ranks:
        clusters.setdefault(rank.pp_rank, set()).add(rank.cluster)
    for stage in plan.stages:
        held = clusters[stage.index % plan.pp]
        if set(stage.clusters) != held:
            faults.append(f"stage {stage.index} names clusters {stage.clusters}, but its ranks are in {sorted(held)}")
    return faults


def check_nodes(plan: Plan, inventory: Inventory) -> list[str]:
    """Return faults unless nodes are the ranks' hosts in order, with their number of ranks and their shared port."""
    ports = {port.host: (port.netdev, port.address) for port in shared_network(inventory).ports}
    counts, faults = _ranks_by_host(plan), []
    if [(node.node_rank, node.host) for node in plan.nodes] != list(enumerate(counts)):
        faults.append(f"nodes are not {list(counts)} in order")
    for node in plan.nodes:
        if node.num_ranks != counts.get(node.host):
            faults.append(f"node {node.host} has {node.num_ranks} ranks, the plan has {counts.get(node.host)} there")
        address = node.tunnel_endpoint if inventory.encrypts else node.shared_address
        if (node.shared_netdev, address) != ports.get(node.host):
            faults.append(f"node {node.host}: {node.shared_netdev} {address} is not its shared port")
        if (node.tunnel_endpoint is not None) != inventory.encrypts:
            faults.append(f"node {node.host}: tunnel endpoint {node.tunnel_endpoint} contradicts hosts.yaml")
        elif inventory.encrypts and node.shared_address != tunnel_address(node.node_rank):
            faults.append(f"node {node.host}: {node.shared_address} is not its address in the tunnel")
    return faults


def _ranks_by_host(plan: Plan) -> Counter[str]:
    """Return the number of ranks of each host, in the order of its first rank."""
    return Counter(rank.host for rank in plan.ranks)


def check_groups(plan: Plan) -> list[str]:
    """Return faults unless the groups are those that the coordinates demand, each once, with members in order."""
    is_tied, shared = plan.job.model.tied_embeddings, (sequence_groups(plan.job), expert_ranks(plan.job))
    shape = plan.ranks, plan.chunks, plan.data_parallel, is_tied, *shared
    wanted = [(group.name, group.axis, group.ranks) for group in demanded_groups(*shape)]
    found = [(group.name, group.axis, group.ranks) for group in plan.groups]
    if wanted == found:
        return []
    missing = [f"group {name} with ranks {ranks} is missing" for name, _, ranks in {*wanted} - {*found}]
    extra = [f"group {name} with ranks {ranks} is not demanded" for name, _, ranks in {*found} - {*wanted}]
    return sorted(missing + extra) or ["the groups are not in plan order"]


def check_engine(plan: Plan) -> list[str]:
    """Return faults if the plan has a feature that its engine lacks, or ranks and groups that are not the engine's."""
    engine, layers, shares = engine_of(plan.job), {stage.num_layers for stage in plan.stages}, set(plan.microbatches)
    lacks = {
        f"schedule {plan.schedule}": plan.schedule not in engine.schedules,
        f"tp {plan.tp}": plan.tp > 1 and "tp" not in engine.degrees,
        f"pp {plan.pp}": plan.pp > 1 and "pp" not in engine.degrees,
        f"stages of {sorted(layers)} layers": engine.cuts == "even" and len(layers) > 1,
        f"replicas of {plan.microbatches} micro-batches": len(shares) > 1 and not engine.unequal_replicas,
        "weights in shards": plan.zero == 3 and not engine.shards_weights,
        "states in host memory": plan.optimizer_offload and not engine.host_states,
        "data parallelism in two levels": plan.data_parallel == "hierarchical" and not engine.two_levels,
    }
    faults = [f"engine {plan.job.engine} has no {what}" for what, is_lacking in lacks.items() if is_lacking]
    return faults if plan.job.is_bundled else [*faults, *mesh_faults(plan)]


def check_interfaces(plan: Plan, inventory: Inventory) -> list[str]:
    """Return faults unless members have the group's interface and a port on its network (across clusters, shared)."""
    kinds = {cluster.name: cluster.fabric for cluster in inventory.clusters} | {SHARED: shared_network(inventory)}
    ports = {name: {port.host: port for port in network.ports} for name, network in kinds.items()}
    made = {TUNNEL_NETDEV} if inventory.encrypts else set()
    netdevs = {host.name: made | {netdev.name for netdev in host.netdevs} for host in inventory.hosts}
    faults = []
    for group in plan.groups:
        members = [plan.ranks[rank] for rank in group.ranks]
        if len(group.interfaces) != len(members):
            faults.append(f"group {group.name} has {len(members)} ranks and {len(group.interfaces)} interfaces")
            continue
        crosses = len({rank.cluster for rank in members}) > 1
        if group.network not in ports or (crosses and group.network != SHARED):
            faults.append(f"group {group.name}: network {group.network} does not join its clusters")
            continue
        for rank, interface in zip(members, group.interfaces, strict=True):
            host, port = rank.host, ports[group.network].get(rank.host)
            if interface not in netdevs[host]:
                faults.append(f"group {group.name}: host {host} has no interface {interface}")
            if port is None or (port.netdev is not None and port.netdev != interface):
                faults.append(f"group {group.name}: {interface} of host {host} is not on network {group.network}")
            if group.net_name not in (None, "Socket") and (port is None or not port.hcas):
                faults.append(f"group {group.name}: host {host} has no RDMA port on network {group.network}")
    return faults


def check_codecs(plan: Plan) -> list[str]:
    """Return faults if messages have a lossier codec than job.yaml allows, or a codec inside a host."""
    faults = []
    for group in plan.groups:
        hosts = {plan.ranks[rank].host for rank in group.ranks}
        if group.codec not in allowed_codecs(plan.job):
            faults.append(f"group {group.name} uses codec {group.codec}, but job.yaml allows {plan.job.wire.edges}")
        elif group.codec != "none" and (len(hosts) == 1 or group.axis not in EDGE_AXES):
            faults.append(f"group {group.name} uses codec {group.codec}, but is not an edge between hosts")
    return faults


def check_memory(plan: Plan, inventory: Inventory) -> list[str]:
    """Return a fault for each rank that exceeds its GPU's known memory, and one if the predicted memory is wrong.

    Micro-batches in flight are counted on the schedule's own actions.
    """
    candidate = candidate_of(plan)
    execution, needed = candidate.execution(plan.job), []
    most, dense = max(plan.microbatches), dense_layers(plan.job.model, [stage.num_layers for stage in plan.stages])
    schedule = make_schedule(plan.schedule, plan.pp, most, plan.chunks, plan.extra_in_flight)
    for rank in range(plan.pp):
        held = most_in_flight(schedule[rank])
        stages = range(rank, plan.pp * plan.chunks, plan.pp)
        layers = [plan.stages[stage].num_layers for stage in stages]
        in_flight = [held.get(stage, 0) for stage in stages]
        ends, without = (rank == 0, rank == plan.pp - 1), [dense[stage] for stage in stages]
        needed.append(memory_bytes(plan.job.model, execution, layers, in_flight, *ends, without))
    faults = []
    if plan.prediction.memory_bytes != tuple(needed):
        faults.append(f"predicted memory is {plan.prediction.memory_bytes}, but the stages need {needed} bytes")
    gpus = {host.name: {gpu.index: gpu.memory_bytes for gpu in host.gpus} for host in inventory.hosts}
    for where in plan.ranks:
        available = gpus[where.host].get(where.gpu) if where.gpu is not None else None
        if available is not None and needed[where.pp_rank] > available:
            faults.append(f"rank {where.rank} needs {needed[where.pp_rank]} bytes, but its GPU has {available}")
    return faults


def check_host_memory(plan: Plan, inventory: Inventory) -> list[str]:
    """Return faults if optimizer states exceed known host memory, or if the predicted host memory is wrong."""
    execution, layers = candidate_of(plan).execution(plan.job), [stage.num_layers for stage in plan.stages]
    needed = host_bytes_by_rank(plan.job, execution, [sum(layers[rank :: plan.pp]) for rank in range(plan.pp)])
    faults = []
    if plan.prediction.host_memory_bytes != needed:
        faults.append(f"predicted host memory is {plan.prediction.host_memory_bytes}, but stages need {needed} bytes")
    held: Counter[str] = Counter()
    for rank in plan.ranks if needed else ():
        held[rank.host] += needed[rank.pp_rank]
    for host, size in held.items():
        available = usable_host_bytes(inventory.host(host))
        if available is not None and size > available:
            faults.append(f"host {host} needs {size} bytes for optimizer states, but {available} are usable")
    return faults


def check_objective(plan: Plan, inventory: Inventory) -> list[str]:
    """Return faults if the closed form of the plan's ranks differs from the plan, or is below the bound."""
    candidate = candidate_of(plan)._replace(fill=fill_of(plan.schedule))
    layers = [sum(stage.num_layers for stage in plan.stages[rank :: plan.pp]) for rank in range(plan.pp)]
    problem = read_problem(inventory, plan.job)
    recomputed_s = price_ranks_s(problem, candidate, layers, plan.ranks, plan.microbatches)
    tolerance_s = RELATIVE_TOLERANCE * recomputed_s
    faults = []
    if abs(recomputed_s - plan.solve.placement_s) > tolerance_s:
        faults.append(f"the closed form is {recomputed_s!r} s, but the plan has {plan.solve.placement_s!r} s")
    if plan.solve.bound_s > recomputed_s + tolerance_s:
        faults.append(f"the closed form is {recomputed_s!r} s, below the bound {plan.solve.bound_s!r} s")
    if plan.solve.objective_s > recomputed_s + tolerance_s:
        faults.append(f"the closed form is {recomputed_s!r} s, below the least one found {plan.solve.objective_s!r} s")
    return faults
