"""What measured links and trunks make of the networks a plan is priced on."""

from __future__ import annotations

import pytest

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Link
from holmes_core.records.plan import Plan
from holmes_runtime.config.model_shape import stage_parameters
from planner.cost.collectives import tcp_payload_share
from planner.problem.networks import Networks
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.planner.measured_links import measured, with_links, with_trunk
from tests.seeds import few_of

PAYLOAD = tcp_payload_share(1500)
NICS = cpu_inventory([2, 2], fabric_gbps=10.0, shared_gbps=10.0)
HOSTS = cpu_inventory([4, 4], fabric_gbps=10.0, shared_gbps=10.0)
ACROSS = bed_job(parallel={"pp": 2, "dp": 2, "schedule": "eager"})


def rates(inventory: Inventory) -> set[float | None]:
    """What each host of both clusters gets over the shared network."""
    return set(Networks(inventory, bed_job()).route(["a1", "b1"]).bandwidths)


def test_clusters_have_the_rate_that_was_measured_between_them() -> None:
    assert rates(with_links(NICS, measured(("a1", "b1"), GBPS))) == {GBPS}


def test_ports_count_where_they_are_the_limit() -> None:
    assert rates(with_links(NICS, measured(("a1", "b1"), 9.3 * GBPS))) == {10 * GBPS * PAYLOAD}


def test_a_tool_at_its_ceiling_measured_itself() -> None:
    fast = cpu_inventory([2, 2], shared_gbps=100.0)
    assert rates(with_links(fast, measured(("a1", "b1"), 19 * GBPS))) == {100 * GBPS * PAYLOAD}


def test_a_rate_above_the_ports_shows_that_the_ports_are_wrong() -> None:
    assert rates(with_links(NICS, measured(("a1", "b1"), 19 * GBPS))) == {19 * GBPS}


def test_a_port_of_unknown_rate_has_the_measured_one() -> None:
    unknown = cpu_inventory([2, 2], shared_gbps=None)
    assert rates(unknown) == {None}
    assert rates(with_links(unknown, measured(("a1", "b1"), 3 * GBPS))) == {3 * GBPS}


def test_the_best_number_of_streams_counts_and_the_fewest_that_get_it() -> None:
    found = [measured(("a1", "b1"), rate * GBPS, streams=n) for n, rate in ((1, 2.0), (4, 5.9), (8, 6.0))]
    connection = Networks(with_links(NICS, *found), bed_job()).connection("b", "a")
    assert (connection.median.bytes_per_s, connection.streams) == (6 * GBPS, 4)


def by_host(inventory: Inventory) -> dict[str, float | None]:
    """Rates of the hosts of two clusters over the shared network, in Gbit/s."""
    networks, found = Networks(inventory, bed_job()), dict[str, float | None]()
    for one, other in zip(*(cluster.hosts for cluster in inventory.clusters), strict=True):
        found |= dict(zip((one, other), networks.route([one, other]).bandwidths, strict=True))
    return {host: rate and round(rate / GBPS, 6) for host, rate in found.items()}


def pairs_of(*rates_gbps: float) -> list[Link]:
    """a1 - b1, a2 - b2 and so on at these rates."""
    return [measured((f"a{n}", f"b{n}"), rate * GBPS) for n, rate in enumerate(rates_gbps, 1)]


def test_of_directions_the_slower_counts_and_of_a_host_s_pairs_the_best() -> None:
    back = measured(("a1", "b1"), 1 * GBPS).model_copy(update={"direction": "backward"})
    found = by_host(with_links(NICS, *pairs_of(2, 3), measured(("a1", "b2"), 5 * GBPS), back))
    assert found == {"a1": 5, "b1": 1, "a2": 3, "b2": 5}


def test_one_slow_host_is_slow_alone_and_noise_is_not() -> None:
    assert by_host(with_links(HOSTS, *pairs_of(0.90, 0.93, 0.95, 0.02))) == {
        **dict.fromkeys(("a1", "b1", "a2", "b2", "a3", "b3"), 0.93),
        **{"a4": 0.02, "b4": 0.02},
    }


def test_a_host_in_no_pair_counts_as_the_slowest_that_was_measured() -> None:
    assert by_host(with_links(HOSTS, *pairs_of(0.9, 0.1))) == {
        **{"a1": 0.9, "b1": 0.9, "a2": 0.1, "b2": 0.1},
        **dict.fromkeys(("a3", "b3", "a4", "b4"), 0.1),
    }


def test_a_link_of_a_host_that_is_gone_is_read() -> None:
    assert rates(with_links(NICS, measured(("a9", "b1"), GBPS))) == {GBPS}


def _rail(device: str) -> Nic:
    return Nic(
        device=device, port=1, kind="InfiniBand", rate_gbps=200.0, state="Active", phys_state="LinkUp", netdev=None,
        subnet_prefix=None, sm_lid=None, usable_by_nccl_ib=True, why="",
    )  # fmt: skip


def test_slow_rails_slow_rdma_down_inside_their_cluster_alone() -> None:
    fleet = gpu_inventory([2, 2])
    nics = tuple(_rail(f"mlx5_{i}") for i in range(8))
    slow = measured(("a1", "a2"), 50 * GBPS, method="ib_write_bw", devices=("mlx5_0:1", "mlx5_0:1"))
    hosts = tuple(host.model_copy(update={"nics": nics}) for host in fleet.hosts)
    networks = Networks(with_links(fleet.model_copy(update={"hosts": hosts}), slow), gpt_7b())
    assert networks.route(["a1", "a2"]).bandwidths == (400 * GBPS, 400 * GBPS)
    assert networks.route(["b1", "b2"]).bandwidths == (1600 * GBPS, 1600 * GBPS)


def step_of(plan: Plan) -> tuple[object, ...]:
    """All that a wire decides."""
    shape = (plan.pp, plan.dp, plan.micro_batch_size, plan.schedule, plan.extra_in_flight)
    return (*shape, tuple(stage.num_layers for stage in plan.stages), pytest.approx(plan.prediction.step_s))


@pytest.mark.parametrize("mbps", few_of(1, [2000, 500, 100, 30, 10]))
def test_plan_on_measured_links_is_the_plan_on_nics_of_that_rate(mbps: float) -> None:
    job = bed_job(parallel={}, compute={"emulate": {"forward_s_per_layer": 0.002, "backward_s_per_layer": 0.004}})
    nics = plan_for(cpu_inventory([2, 2], shared_gbps=mbps / 1e3), job)
    fast = cpu_inventory([2, 2], shared_gbps=10.0)
    wire = plan_for(with_links(fast, measured(("a1", "b1"), PAYLOAD * mbps / 1e3 * GBPS)), job)
    assert step_of(wire) == step_of(nics)


def edge_rates(inventory: Inventory, dp: int) -> set[float | None]:
    """What the edges between the clusters get, with `dp` replicas that cross."""
    plan = plan_for(inventory, bed_job(slots_per_host=dp // 2, parallel={"pp": 2, "dp": dp, "schedule": "eager"}))
    return {group.rate_bytes_per_s for group in plan.groups if group.axis in ("pp_forward", "pp_backward")}


def test_twice_the_sharers_of_a_trunk_get_half_each() -> None:
    trunk = with_trunk(NICS, "ab", 0.4 * GBPS)
    assert edge_rates(trunk, 2) == {0.2 * GBPS}
    assert edge_rates(trunk, 4) == {0.1 * GBPS}


def test_of_stages_that_exchange_over_a_trunk_the_larger_has_it_alone_in_the_end() -> None:
    """Half each would be 0.1 GB/s; what the smaller stage leaves goes to the larger."""
    fleet = with_trunk(NICS, "ab", 0.2 * GBPS)
    emulate = {"forward_s_per_layer": 1e-6, "backward_s_per_layer": 2e-6}
    job = bed_job(parallel={"pp": 2, "dp": 2, "layers": [7, 3]}, compute={"emulate": emulate})
    plan = plan_for(fleet, job, order="usual")
    larger, smaller = (group.trunk_bytes_per_s for group in plan.groups if group.axis == "dp")
    sizes = [stage_parameters(job.model, 7, True, False), stage_parameters(job.model, 3, False, True)]
    assert smaller == 0.1 * GBPS
    assert larger == pytest.approx(0.2 * GBPS * sizes[0] / sum(sizes))
    # Nothing else takes long: both directions of all bytes over the trunk, which is what the objective says too.
    crossing_s = (4 + 4) / 2 * sum(sizes) / (0.2 * GBPS)
    assert plan.prediction.exposed_dp_s == pytest.approx(crossing_s, rel=0.1)
    assert plan.solve.placement_s == pytest.approx(crossing_s, rel=0.1)


def test_a_trunk_wider_than_all_nics_changes_nothing() -> None:
    plain, trunk = (plan_for(fleet, ACROSS) for fleet in (NICS, with_trunk(NICS, "ab", 100 * GBPS)))
    assert step_of(trunk) == step_of(plain)


def test_rings_of_replicas_share_a_trunk() -> None:
    job = bed_job(parallel={"pp": 1, "dp": 3, "micro_batch_size": 1}, global_batch_size=24)
    trunk, plain = plan_for(with_trunk(NICS, "ab", 0.1 * GBPS), job), plan_for(NICS, job)
    group = next(group for group in trunk.groups if group.axis == "dp")
    # Two in one cluster, one in the other: the ring crosses once each way.
    assert group.trunk_bytes_per_s == 0.1 * GBPS
    # Gloo's exchange of all with all sends 2 x 1 thirds of 4 bytes across, the gathering ring 2 thirds of 4 bytes.
    parameters = sum(traffic.sent_bytes for traffic in plain.prediction.traffic) / (3 * (2 / 3) * 4 * 2)
    crossing_s = 2 * (2 / 3) * 4 * parameters / (0.1 * GBPS)
    assert trunk.prediction.step_s == pytest.approx(plain.prediction.compute_s + crossing_s, rel=0.15)


def test_groups_say_their_latency_and_streams() -> None:
    links = [measured(("a1", "b1"), 5 * GBPS, 0.01, streams=8), measured(("a1", "a2"), 9.4 * GBPS, 1e-4)]
    plan = plan_for(with_links(NICS, *links), ACROSS)
    found = {(group.axis, group.network): (group.latency_s, group.streams) for group in plan.groups}
    assert found["pp_forward", "shared"] == (0.01, 8)
    assert (found["dp", "a"], found["dp", "b"]) == ((1e-4, 1), (0.0, 1))


@pytest.mark.slow
def test_nccl_opens_the_streams_that_the_measured_rate_took() -> None:
    fleet = with_links(gpu_inventory([2, 2]), *(measured(("a1", "b1"), n * GBPS, streams=n) for n in (1, 8)))
    plan = plan_for(fleet, gpt_7b(parallel={"pp": 2, "dp": 16}))
    found = {variable.name: variable.value for variable in plan.nodes[0].environment}
    assert (found["NCCL_SOCKET_NTHREADS"], found["NCCL_NSOCKS_PERTHREAD"]) == ("4", "2")
    plain = plan_for(gpu_inventory([2, 2]), gpt_7b(parallel={"pp": 2, "dp": 16}))
    assert not {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"} & {v.name for v in plain.nodes[0].environment}


def test_two_trunks_between_the_same_clusters_are_refused() -> None:
    trunks = [*with_trunk(NICS, "ab", 1.0).trunks, *with_trunk(NICS, "ba", 2.0).trunks]
    with pytest.raises(ValueError, match=r"one between two clusters, or of one, each, seen: \['a', 'b'\]"):
        Inventory.model_validate(NICS.model_dump() | {"trunks": trunks})
