"""From classes to slots and rank numbers."""

from __future__ import annotations

from planner.cost.collectives import Path
from planner.cost.gpu_speeds import constant_speed
from planner.cost.slot import Slot
from planner.layout.usual_order import usual_group_slots
from planner.problem.candidates import Candidate, enumerate_candidates
from planner.problem.fleet import Fleet, FleetHost, Hardware, HostClass
from planner.problem.problem import read_problem
from planner.schedule.assign_hosts import assign_hosts, hosts_by_stage, is_aligned, number_ranks
from planner.search.placement import Placement, even_shares
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b


def classes_of_hosts(*classes: tuple[int, int]) -> Fleet:
    """Classes of (hosts, slots a host), each in a cluster of its own: a, b, ..."""
    return Fleet(tuple(_host_class(label, *each) for label, each in zip("abc", classes, strict=False)))


def _host_class(label: str, hosts: int, slots: int) -> HostClass:
    hardware = Hardware(label, slots, None, Slot(constant_speed(1.0), Path(1.0)))
    return HostClass(hardware, tuple(FleetHost(f"{label}{n}", (None,) * slots, hardware) for n in range(1, hosts + 1)))


def placement(tp: int, dp: int, *sites: tuple[int, ...]) -> Placement:
    """One layer a stage."""
    return Placement(Candidate(tp, len(sites), dp, 1), (1,) * len(sites), sites, (1,) * dp)


def hosts_of(placed: Placement, on: Fleet, aligned: bool = True) -> dict[tuple[int, int], str]:
    """The host of each (stage, replica)."""
    return {key: where.host for key, where in assign_hosts(placed, on, aligned).items()}


def test_stages_in_one_class_take_slots_before_those_over_two() -> None:
    found = hosts_of(placement(1, 2, (0, 1), (0, 0)), classes_of_hosts((3, 1), (1, 1)))
    assert found == {(1, 0): "a1", (1, 1): "a2", (0, 0): "a3", (0, 1): "b1"}


def test_aligned_stages_do_not_begin_inside_a_host_they_do_not_end_in() -> None:
    stages = placement(1, 2, (0, 0), (0, 0))
    assert hosts_of(stages, classes_of_hosts((2, 3))) == {(0, 0): "a1", (0, 1): "a1", (1, 0): "a2", (1, 1): "a2"}
    assert hosts_of(stages, classes_of_hosts((2, 3)), aligned=False) == {
        (0, 0): "a1",
        (0, 1): "a1",
        (1, 0): "a1",
        (1, 1): "a2",
    }


def test_stages_that_one_cluster_holds_only_unaligned_share_its_hosts() -> None:
    # Hosts of three slots hold one aligned stage of two replicas each, six in all; a cluster alone may hold four.
    problem = read_problem(cpu_inventory([3, 3]), bed_job(parallel={}, slots_per_host=3))
    three, four = placement(1, 2, *[(0, 0)] * 3, (1, 1)), placement(1, 2, *[(0, 0)] * 4)
    coeffs = problem.coefficients(four.candidate)
    assert coeffs.aligned
    assert (is_aligned(three, coeffs), is_aligned(four, coeffs)) == (True, False)
    assert [hosts_of(four, problem.fleet, False)[stage, 0] for stage in range(4)] == ["a1", "a1", "a2", "a3"]


def test_aligned_stages_larger_than_a_host_begin_at_a_host() -> None:
    found = hosts_of(placement(1, 3, (0,) * 3, (0,) * 3), classes_of_hosts((4, 2)))
    assert [found[stage, 0] for stage in (0, 1)] == ["a1", "a3"]


def test_tensor_groups_skip_slots_that_do_not_make_a_whole_one() -> None:
    assert hosts_of(placement(2, 2, (0, 0)), classes_of_hosts((2, 3))) == {(0, 0): "a1", (0, 1): "a2"}


def test_nodes_are_numbered_as_their_stages_come() -> None:
    group_slots = assign_hosts(placement(1, 1, (1,), (0,)), classes_of_hosts((1, 1), (1, 1)), True)
    assert hosts_by_stage(group_slots) == ("b1", "a1")


def test_ranks_are_contiguous_on_each_node() -> None:
    group_slots = assign_hosts(placement(2, 1, (0,), (0,)), classes_of_hosts((1, 4)), True)
    ranks = number_ranks(gpt_7b(), group_slots, ("a1",), 2)
    assert [(r.rank, r.local_rank, r.pp_rank, r.tp_rank) for r in ranks] == [
        (0, 0, 0, 0),
        (1, 1, 0, 1),
        (2, 2, 1, 0),
        (3, 3, 1, 1),
    ]


def test_usual_order_puts_a_replicas_stages_on_consecutive_slots() -> None:
    inventory, job = cpu_inventory([2, 2]), bed_job()
    group_slots = usual_group_slots(read_problem(inventory, job), Candidate(1, 2, 2, 1))
    assert {key: where.host for key, where in group_slots.items()} == {
        (0, 0): "a1",
        (1, 0): "a2",
        (0, 1): "b1",
        (1, 1): "b2",
    }


def test_even_cut_gives_the_remainder_to_the_first_stages() -> None:
    assert even_shares(10, 4) == (3, 3, 2, 2)


def test_candidates_share_the_batch_out_and_fit_the_slots() -> None:
    job = bed_job(global_batch_size=6, parallel={})
    found = enumerate_candidates(job, read_problem(cpu_inventory([2, 2]), job).fleet)
    assert len(set(found)) == len(found)
    assert {(c.pp, c.dp) for c in found} == {(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (4, 1)}
    assert all(6 % c.micro_batch_size == 0 and c.dp * c.micro_batch_size <= 6 for c in found)
    assert {c.micro_batch_size for c in found if (c.pp, c.dp) == (1, 1)} == {1, 2, 3, 6}


def test_hosts_of_a_cluster_with_equal_hardware_are_one_class() -> None:
    inventory = cpu_inventory([3, 2])
    ports = inventory.clusters[0].fabric.ports
    slow = tuple(
        port.model_copy(update={"bandwidth_bytes_per_s": 1e6}) if port.host == "a2" else port for port in ports
    )
    fabric = inventory.clusters[0].fabric.model_copy(update={"ports": slow})
    cluster = inventory.clusters[0].model_copy(update={"fabric": fabric})
    degraded = inventory.model_copy(update={"clusters": (cluster, inventory.clusters[1])})
    names = [[host.name for host in each.hosts] for each in read_problem(degraded, bed_job()).fleet.classes]
    assert names == [["a1", "a3"], ["a2"], ["b1", "b2"]]
