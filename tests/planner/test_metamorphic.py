"""What must not change a plan, and which way it may change: on random fleets of two and three clusters."""

from __future__ import annotations

import random

import pytest

from holmes_core.records.inventory import Cluster, Inventory, Network
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from tests.planner.fleets import bed_job, cpu_host, cpu_inventory, faster, plan_anew, plan_for, random_inventory
from tests.planner.measured_links import with_latency
from tests.seeds import seeds

SEEDS = seeds(24, few=range(16, 17), more=1)
NOT_PROVEN = 0.05  # relative: the fastest schedule is simulated for the best placements alone, so not for all
SAME = 2e-6  # relative: what the search counts as equal


def free_job(seed: int, slots_per_host: int | None = None, speed: float = 1.0) -> Job:
    """The bed's job with emulated layers, every degree free, one or two slots a host."""
    draw = random.Random(seed)
    layer_s = draw.choice((0.002, 0.01, 0.05)) / speed
    emulate = {"forward_s_per_layer": layer_s, "backward_s_per_layer": 2 * layer_s}
    slots = slots_per_host or draw.choice((1, 2))
    overheads = {"action_s": 8e-4 / speed, "update_bytes_per_s": 3e9 * speed}
    return bed_job(compute={"emulate": emulate, "overheads": overheads}, parallel={}, slots_per_host=slots)


def free_plan(seed: int) -> Plan:
    """The plan of the fleet and job as they are, which the tests compare with those of others."""
    return plan_for(random_inventory(seed), free_job(seed))


def shape(plan: Plan) -> tuple[object, ...]:
    """All that is decided, without names of hosts."""
    stages = tuple((stage.num_layers, stage.clusters) for stage in plan.stages)
    degrees = (plan.tp, plan.pp, plan.dp, plan.micro_batch_size, plan.microbatches)
    return (*degrees, plan.schedule, plan.chunks, plan.extra_in_flight, plan.recompute, stages)


def shared_bytes(plan: Plan) -> int:
    """The bytes of a step that the shared network carries."""
    return sum(traffic.sent_bytes for traffic in plan.prediction.traffic if traffic.network == "shared")


def renamed(inventory: Inventory) -> Inventory:
    """Clusters called z, y, x for a, b, c, and hosts z1, ... for a1, ..., in the same order."""

    def network(old: Network, name: str) -> Network:
        ports = tuple(each.model_copy(update={"host": new_name(each.host)}) for each in old.ports)
        return old.model_copy(update={"name": name, "ports": ports})

    clusters = tuple(
        Cluster(
            name=new_name(cluster.name),
            hosts=tuple(map(new_name, cluster.hosts)),
            fabric=network(cluster.fabric, new_name(cluster.name)),
        )
        for cluster in inventory.clusters
    )
    assert inventory.shared is not None
    shared = network(inventory.shared, inventory.shared.name)
    hosts = tuple(host.model_copy(update={"name": new_name(host.name)}) for host in inventory.hosts)
    return inventory.model_copy(update={"hosts": hosts, "clusters": clusters, "shared": shared})


def new_name(name: str) -> str:
    """z, y, x for a, b, c, followed by the same number."""
    return "zyx"["abc".index(name[0])] + name[1:]


def with_one_more_host(inventory: Inventory, at: int) -> Inventory:
    """One more host in cluster `at`, like its first."""
    cluster, shared = inventory.clusters[at], inventory.shared
    assert shared is not None
    number = len(cluster.hosts) + 1
    name, first = f"{cluster.name}{number}", cluster.hosts[0]
    fabric_port, shared_port = cluster.fabric.port_of(first), shared.port_of(first)
    assert fabric_port is not None
    assert shared_port is not None
    update = {"host": name, "address": f"10.{at + 1}.0.{number}"}
    fabric = cluster.fabric.model_copy(update={"ports": (*cluster.fabric.ports, fabric_port.model_copy(update=update))})
    grown = cluster.model_copy(update={"hosts": (*cluster.hosts, name), "fabric": fabric})
    common = shared_port.model_copy(update={"host": name, "address": f"10.0.{at}.{number}"})
    return inventory.model_copy(
        update={
            "hosts": (*inventory.hosts, cpu_host(name, at, number, 1.0, 1.0)),
            "clusters": tuple(grown if each is cluster else each for each in inventory.clusters),
            "shared": shared.model_copy(update={"ports": (*shared.ports, common)}),
        }
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_same_input_gives_the_same_file(seed: int) -> None:
    inventory, job = random_inventory(seed), free_job(seed)
    assert plan_anew(inventory, job).to_json() == free_plan(seed).to_json()


@pytest.mark.parametrize("seed", SEEDS)
def test_order_of_hosts_and_clusters_does_not_change_what_a_step_costs(seed: int) -> None:
    """Of equal placements, mirror images often, the order decides which one is taken."""
    inventory, job, draw = random_inventory(seed), free_job(seed), random.Random(seed)
    clusters = [
        cluster.model_copy(update={"hosts": tuple(draw.sample(cluster.hosts, len(cluster.hosts)))})
        for cluster in inventory.clusters
    ]
    update = {
        "hosts": tuple(draw.sample(inventory.hosts, len(inventory.hosts))),
        "clusters": tuple(reversed(clusters)),
    }
    plan, other = free_plan(seed), plan_for(inventory.model_copy(update=update), job)
    assert other.solve.objective_s == pytest.approx(plan.solve.objective_s, rel=SAME)
    assert other.prediction.step_s == pytest.approx(plan.prediction.step_s, rel=NOT_PROVEN)


@pytest.mark.parametrize("seed", SEEDS)
def test_names_do_not_matter(seed: int) -> None:
    inventory, job = random_inventory(seed), free_job(seed)
    plan, other = free_plan(seed), plan_for(renamed(inventory), job)
    assert [rank.host for rank in other.ranks] == [new_name(rank.host) for rank in plan.ranks]
    assert [stage.num_layers for stage in other.stages] == [stage.num_layers for stage in plan.stages]
    assert other.prediction.model_copy(update={"traffic": ()}) == plan.prediction.model_copy(update={"traffic": ()})


@pytest.mark.parametrize("seed", SEEDS)
def test_twice_all_rates_is_half_the_seconds(seed: int) -> None:
    """One slot a host, since the rate between slots of one host is not in the inventory."""
    inventory = random_inventory(seed)
    assert inventory.shared is not None
    clusters = tuple(each.model_copy(update={"fabric": faster(each.fabric, 2)}) for each in inventory.clusters)
    twice = inventory.model_copy(update={"clusters": clusters, "shared": faster(inventory.shared, 2)})
    plan = plan_for(inventory, free_job(seed, slots_per_host=1))
    quick = plan_for(twice, free_job(seed, slots_per_host=1, speed=2))
    assert shape(quick) == shape(plan)
    assert [rank.host for rank in quick.ranks] == [rank.host for rank in plan.ranks]
    assert quick.prediction.step_s == pytest.approx(plan.prediction.step_s / 2, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_one_more_host_never_makes_the_optimum_worse(seed: int) -> None:
    inventory, job = random_inventory(seed), free_job(seed)
    before_s = free_plan(seed).solve.objective_s
    for at in range(len(inventory.clusters)):
        assert plan_for(with_one_more_host(inventory, at), job).solve.objective_s <= before_s * (1 + SAME), at


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_slower_shared_network_never_carries_more(seed: int) -> None:
    inventory, job = random_inventory(seed), free_job(seed)
    assert inventory.shared is not None
    sent = [
        shared_bytes(plan_for(inventory.model_copy(update={"shared": faster(inventory.shared, factor)}), job))
        for factor in (10.0, 1.0, 0.1)
    ]
    assert sent == sorted(sent, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_more_latency_never_shortens_a_step(seed: int) -> None:
    inventory, job = random_inventory(seed), free_job(seed)
    steps_s = [plan_for(with_latency(inventory, late_s), job).prediction.step_s for late_s in (1e-9, 0.01, 0.3)]
    assert steps_s[0] <= steps_s[1] * (1 + NOT_PROVEN)
    assert steps_s[1] <= steps_s[2] * (1 + NOT_PROVEN)


def test_with_enough_in_flight_latency_adds_fill_drain_and_the_norm() -> None:
    """And nothing per micro-batch: 20 ms each way cost 4 x 20 ms, with 20 micro-batches as with 80."""
    fleet, emulate = cpu_inventory([1, 1]), {"forward_s_per_layer": 0.004, "backward_s_per_layer": 0.008}
    for batch in (20, 80):
        job = bed_job(
            compute={"emulate": emulate}, global_batch_size=batch,
            parallel={"pp": 2, "dp": 1, "micro_batch_size": 1, "schedule": "eager"},
        )  # fmt: skip
        near, far = (plan_for(with_latency(fleet, late_s), job) for late_s in (1e-9, 0.02))
        assert far.prediction.step_s - near.prediction.step_s == pytest.approx(4 * 0.02, rel=0.01)
