"""From counts to slots and rank numbers."""

from __future__ import annotations

from planner.candidates import Candidate, enumerate_candidates
from planner.fleet import Fleet, FleetCluster, FleetHost, read_fleet
from planner.place import hosts_by_stage, number_ranks, place
from planner.search import Placement, even_layers
from planner.usual_order import usual_places
from tests.planner.fleets import bed_job, cpu_inventory


def fleet(*clusters: tuple[int, ...]) -> Fleet:
    """Clusters a, b, ... of hosts with that many CPU slots."""
    return Fleet(
        tuple(
            FleetCluster(label, tuple(FleetHost(f"{label}{n}", (None,) * s, None, 1.0) for n, s in enumerate(slots, 1)))
            for label, slots in zip("abc", clusters, strict=False)
        )
    )


def hosts_of(placement: Placement) -> dict[tuple[int, int], str]:
    """The host of each (stage, replica)."""
    return {key: where.host for key, where in place(placement).items()}


def test_stages_in_one_cluster_take_slots_before_those_that_span_two() -> None:
    placement = Placement(Candidate(1, 2, 2, 1), fleet((1, 2), (1,)), (1, 1), ((0, 1), (0, 0)))
    assert hosts_of(placement) == {(1, 0): "a1", (1, 1): "a2", (0, 0): "a2", (0, 1): "b1"}


def test_tensor_groups_skip_slots_that_do_not_make_a_whole_one() -> None:
    placement = Placement(Candidate(2, 1, 2, 1), fleet((3, 2)), (1,), ((0, 0),))
    assert hosts_of(placement) == {(0, 0): "a1", (0, 1): "a2"}


def test_nodes_are_numbered_as_their_stages_come() -> None:
    places = place(Placement(Candidate(1, 2, 1, 1), fleet((1,), (1,)), (1, 1), ((1,), (0,))))
    assert hosts_by_stage(places) == ("b1", "a1")


def test_ranks_are_contiguous_on_each_node() -> None:
    places = place(Placement(Candidate(2, 2, 1, 1), fleet((4,)), (1, 1), ((0,), (0,))))
    ranks = number_ranks(places, ("a1",), 2)
    assert [(r.rank, r.local_rank, r.pp_rank, r.tp_rank) for r in ranks] == [
        (0, 0, 0, 0),
        (1, 1, 0, 1),
        (2, 2, 1, 0),
        (3, 3, 1, 1),
    ]


def test_usual_order_puts_a_replicas_stages_on_consecutive_slots() -> None:
    inventory, job = cpu_inventory([2, 2]), bed_job()
    places = usual_places(inventory, read_fleet(inventory, job), Candidate(1, 2, 2, 1))
    assert {key: where.host for key, where in places.items()} == {
        (0, 0): "a1",
        (1, 0): "a2",
        (0, 1): "b1",
        (1, 1): "b2",
    }


def test_even_cut_gives_the_remainder_to_the_first_stages() -> None:
    assert even_layers(10, 4) == (3, 3, 2, 2)


def test_candidates_divide_the_batch_and_fit_the_slots() -> None:
    job = bed_job(global_batch_size=6, parallel={})
    found = enumerate_candidates(job, read_fleet(cpu_inventory([2, 2]), job))
    assert len(set(found)) == len(found)
    assert {(c.pp, c.dp) for c in found} == {(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (4, 1)}
    assert all(6 % (c.dp * c.micro_batch_size) == 0 for c in found)
    assert {c.micro_batch_size for c in found if (c.pp, c.dp) == (1, 1)} == {1, 2, 3, 6}
