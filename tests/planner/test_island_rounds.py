"""Islands by hand: who may be one, what they exchange, what a round takes, what it needs of memory, and when not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.link import Security
from holmes_core.records.plan import TUNNEL_NETDEV, IslandsPlan, Plan
from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.config.run_settings import CheckpointSettings, IslandsSettings, OptimizerSettings, ProfileSettings
from planner.cluster_subset import only_clusters
from planner.cost.counts import outer_bytes, state_bytes
from planner.islands.faster_islands import longer_round
from planner.islands.island_plans import groupings, island_batch, plan_islands
from planner.islands.island_rounds import IslandRound, make_round
from planner.islands.outer_sync_cost import BOTH_WAYS, QUESTION_S, price_exchange
from planner.islands.uniform_links import with_uniform_links
from planner.layout.verify import verify
from planner.problem.memory_room import host_state_bytes
from planner.problem.networks import Networks
from tests.planner.fleets import GBPS, GIB, bed_job, cpu_inventory, plan_for
from tests.planner.islands_jobs import SOURCES, planned_mode
from tests.planner.measured_links import with_trunk
from tests.planner.test_counts import execution_of
from tests.seeds import few_of

PARAMETERS = stage_parameters(bed_job().model, 10, True, True, 1)
SLOW = with_uniform_links(cpu_inventory([1, 1]), 1e5, 0.02)


def islands_job(section: dict[str, Any], **changes: Any) -> Job:
    fixed: dict[str, Any] = {"inner_steps": 50, "codec": "int4", "fragments": 4, "delay_steps": 2} | section
    return bed_job(parallel={}, steps=200, islands=IslandsSettings(**fixed), **changes)


def island_plans(inventory: Inventory, job: Job) -> list[Plan]:
    """A plan of each cluster alone."""
    own = job.model_copy(update={"global_batch_size": island_batch(job, len(inventory.clusters))})
    return [plan_for(only_clusters(inventory, [cluster.name]), own) for cluster in inventory.clusters]


def round_of(inventory: Inventory, job: Job, steps_s: list[float]) -> IslandRound | str:
    assert job.islands is not None
    settings, plans = job.islands.chosen(), island_plans(inventory, job)
    exchange = price_exchange(Networks(inventory, job), job, settings.codec, plans)
    return make_round(settings, job, plans, steps_s, exchange)


def test_each_cluster_is_an_island_first_then_some_are_joined_or_left_out() -> None:
    ways = list(groupings(["a", "b", "c"]))
    assert ways[0] == (("a",), ("b",), ("c",))
    assert (("a", "b"), ("c",)) in ways
    assert (("a",), ("c",)) in ways
    assert len(ways) == len(set(ways)) == 7
    assert list(groupings(["a"])) == []
    assert len(list(groupings("abcdefgh"))) == 9


def test_batch_is_shared_out_in_whole_micro_batches() -> None:
    assert island_batch(bed_job(global_batch_size=32), 3) == 10
    assert island_batch(bed_job(global_batch_size=32, parallel={"micro_batch_size": 4}), 3) == 8


def test_island_sends_its_packed_change_to_each_other_one() -> None:
    job = islands_job({"codec": "none", "fragments": 1, "delay_steps": 0})
    exchange = price_exchange(Networks(SLOW, job), job, "none", island_plans(SLOW, job))
    assert exchange.sent_bytes == (4 * PARAMETERS, 4 * PARAMETERS)
    assert exchange.fragment_s(1) == pytest.approx(4 * PARAMETERS / 1e5 / BOTH_WAYS + 0.02 + 11 * (QUESTION_S + 0.04))
    packed = islands_job({"codec": "int4", "fragments": 4})
    assert price_exchange(Networks(SLOW, packed), packed, "int4", island_plans(SLOW, packed)).sent_bytes[
        0
    ] == pytest.approx(PARAMETERS * 66 / 128, rel=1e-4)


def test_trunk_is_shared_by_all_hosts_of_a_cluster() -> None:
    job = islands_job({"codec": "none", "fragments": 1, "delay_steps": 0})
    fast = with_uniform_links(cpu_inventory([2, 1]), 1e6, 0.02)
    inventory = with_trunk(fast, ("a", "b"), 1e5)
    exchange = price_exchange(Networks(inventory, job), job, "none", island_plans(inventory, job))
    assert exchange.fragment_s(1) == pytest.approx(4 * PARAMETERS / 1e5 / BOTH_WAYS + 0.02 + 11 * (QUESTION_S + 0.04))


def test_each_further_island_is_asked_for_at_the_meeting() -> None:
    job = islands_job({"codec": "none", "fragments": 1, "delay_steps": 0})
    inventory = with_uniform_links(cpu_inventory([1, 1, 1]), 1e6, 0.05)
    exchange = price_exchange(Networks(inventory, job), job, "none", island_plans(inventory, job))
    assert exchange.fragment_s(1) == pytest.approx(
        2 * 4 * PARAMETERS / 1e6 / BOTH_WAYS + 0.05 + 13 * (QUESTION_S + 0.1)
    )


def test_five_islands_send_as_much_as_around_a_ring_in_two_messages() -> None:
    job = islands_job({"codec": "none", "fragments": 1, "delay_steps": 0})
    inventory = with_uniform_links(cpu_inventory([1] * 5), 1e6, 0.05)
    exchange = price_exchange(Networks(inventory, job), job, "none", island_plans(inventory, job))
    ring_bytes = 2 * 4 / 5 * 4 * PARAMETERS
    assert list(exchange.sent_bytes) == pytest.approx([ring_bytes] * 5, rel=1e-5)
    assert exchange.fragment_s(1) == pytest.approx(
        ring_bytes / 1e6 / BOTH_WAYS + 2 * 0.05 + 17 * (QUESTION_S + 0.1), rel=1e-5
    )


def test_islands_that_take_all_steps_read_as_many_samples_in_one_round_as_the_job() -> None:
    every = islands_job({"inner_steps": "all", "fragments": 1, "delay_steps": 0})
    settings = IslandsSettings(inner_steps=200, codec="int4", fragments=1, delay_steps=0).chosen()
    exchange = price_exchange(Networks(SLOW, every), every, "int4", island_plans(SLOW, every))
    made = make_round(settings, every, island_plans(SLOW, every), [1.0, 3.0], exchange)
    assert isinstance(made, IslandRound)
    assert made.inner_steps == (300, 100)  # 200 steps of 32, in batches of 16
    assert made.loss is None
    assert made.cost.round_s == pytest.approx(300 + exchange.fragment_s(1))


def test_slower_island_takes_as_many_steps_as_fit_in_the_time() -> None:
    job = islands_job({"inner_steps": 20, "fragments": 2, "delay_steps": 1})
    made = round_of(SLOW, job, [1.0, 1.5])
    assert isinstance(made, IslandRound)
    assert made.inner_steps == (20, 13)
    samples = 16 * (20 + 13)
    assert made.cost.tokens_per_s == pytest.approx(samples * 128 / made.cost.round_s)


def test_exchange_is_hidden_by_the_steps_until_it_is_applied() -> None:
    waits = round_of(SLOW, islands_job({"inner_steps": 20, "fragments": 2, "delay_steps": 0}), [1.0, 1.0])
    late = round_of(SLOW, islands_job({"inner_steps": 20, "fragments": 2, "delay_steps": 10}), [1.0, 1.0])
    assert isinstance(waits, IslandRound)
    assert isinstance(late, IslandRound)
    assert waits.cost.exposed_s == waits.cost.exchange_s == waits.cost.round_s - 20.0
    assert late.cost.exposed_s == pytest.approx(waits.cost.exchange_s - 20.0)
    assert waits.cost.end_s == 0.0


def test_nothing_hides_the_last_exchange_of_a_run() -> None:
    partly, wholly = (
        round_of(SLOW, islands_job({"inner_steps": 20, "fragments": 2, "delay_steps": 10}), [step_s, step_s])
        for step_s in (1.0, 1000.0)
    )
    assert isinstance(partly, IslandRound)
    assert isinstance(wholly, IslandRound)
    assert wholly.cost.exposed_s == 0.0
    assert wholly.cost.end_s == wholly.cost.exchange_s / 2
    assert partly.cost.end_s == 10.0


def test_island_too_slow_for_its_fragments_is_refused_in_words() -> None:
    said = round_of(SLOW, islands_job({"inner_steps": 8, "fragments": 4, "delay_steps": 1}), [1.0, 3.0])
    assert said == "cluster b is too slow: it takes 2 steps a round, islands.fragments is 4"
    said = round_of(SLOW, islands_job({"inner_steps": 8, "fragments": 4, "delay_steps": 2}), [1.0, 2.0])
    assert said == "cluster b is too slow: it takes 1 steps between two fragments, islands.delay_steps is 2"


def test_what_an_island_keeps_is_in_host_memory() -> None:
    # anchor, momentum, error and change in fp32, and of a fourth of the parameters change and mean.
    assert outer_bytes(IslandsSettings(codec="int4", delay_steps=2, fragments=4)) == 16 + 2
    assert outer_bytes(IslandsSettings(codec="none", delay_steps=0, fragments=1)) == 8 + 8
    alone = execution_of(dp=4)
    assert host_state_bytes(100, alone._replace(outer_bytes=18), checkpoints=True) == 450
    assert state_bytes(100, alone._replace(outer_bytes=18)) == state_bytes(100, alone)


@pytest.mark.slow
def test_islands_without_host_memory_for_it_are_refused_and_hosts_train_as_one() -> None:
    # The bed's 15 M parameters of 18 bytes, on hosts of which four fifths of 200 MB are to be used.
    small = tuple(host.model_copy(update={"memory_bytes": 200_000_000}) for host in SLOW.hosts)
    plan = planned_mode(SLOW.model_copy(update={"hosts": small}), islands_job({}))
    assert isinstance(plan, Plan)
    assert plan.modes is not None
    islands = next(price for price in plan.modes.prices if price.mode == "islands")
    assert "anchor and momentum take" in islands.why
    assert islands.seconds is None
    enough = tuple(host.model_copy(update={"memory_bytes": GIB}) for host in SLOW.hosts)
    assert isinstance(planned_mode(SLOW.model_copy(update={"hosts": enough}), islands_job({})), IslandsPlan)


@pytest.mark.parametrize(
    ("inventory", "section", "said"),
    few_of(
        1,
        [
            (cpu_inventory([2]), {}, "the inventory has one cluster"),
            (SLOW, {"quorum": 3}, "islands.quorum is 3, there are 2 clusters"),
        ],
    ),
)
def test_where_there_cannot_be_islands_the_table_says_why(
    inventory: Inventory, section: dict[str, Any], said: str
) -> None:
    plan = planned_mode(inventory, islands_job(section))
    assert isinstance(plan, Plan)
    assert plan.modes is not None
    assert plan.job.islands is None
    assert said in next(price.why for price in plan.modes.prices if price.mode == "islands")


def test_encrypted_islands_share_one_tunnel_and_pay_for_it() -> None:
    """By hand: at an MTU of 1500 a tunnel leaves 1368 / 1518 of a wire, TCP in the clear 1448 / 1538."""
    inventory, job = with_uniform_links(cpu_inventory([2, 1]), 1e5, 0.02), islands_job({})
    clear = planned_mode(inventory, job)
    plan = planned_mode(inventory.model_copy(update={"security": Security(between_clusters="wireguard")}), job)
    assert isinstance(plan, IslandsPlan)
    assert isinstance(clear, IslandsPlan)
    assert (plan.encrypts, clear.encrypts) == (True, False)
    nodes = [node for island in plan.islands for node in island.nodes]
    assert [node.shared_address for node in nodes] == ["198.18.0.1", "198.18.0.2", "198.18.0.3"]
    assert {node.shared_netdev for node in nodes} == {TUNNEL_NETDEV}
    plain = [node for island in clear.islands for node in island.nodes]
    assert [node.tunnel_endpoint for node in nodes] == [node.shared_address for node in plain]
    share = (1368 / 1518) / (1448 / 1538)
    assert clear.prediction.exchange_s / plan.prediction.exchange_s == pytest.approx(share, rel=0.01)
    alone = plan.islands[1].model_copy(update={"nodes": plan.islands[0].nodes[:1]})
    fields = {name: getattr(plan, name) for name in IslandsPlan.model_fields}
    with pytest.raises(ValidationError, match="not those of one tunnel"):
        IslandsPlan(**{**fields, "islands": (plan.islands[1], alone)})


def test_no_mode_at_all_is_an_error_that_says_both_whys() -> None:
    job = islands_job({}, global_batch_size=1)
    job = job.model_copy(update={"parallel": job.parallel.model_copy(update={"tp": 3})})
    with pytest.raises(HolmesError, match="; and as islands: "):
        planned_mode(SLOW, job)


def test_plan_of_islands_has_the_job_of_each() -> None:
    job = islands_job(
        {"inner_steps": 20},
        checkpoint=CheckpointSettings(path="/data/ckpt", every_steps=10),
        optimizer=OptimizerSettings(warmup_steps=50),
        profile=ProfileSettings(steps=5, after=190),
        compute={"emulate": {"forward_s_per_layer": 0.02, "backward_s_per_layer": 0.04, "slowdown": {"b": 2.0}}},
    )
    plan = planned_mode(SLOW, job)
    assert isinstance(plan, IslandsPlan)
    assert plan.inner_steps[0] == 20
    assert 8 <= plan.inner_steps[1] <= 10
    assert plan.round_samples == (20 * 16, plan.inner_steps[1] * 16)
    assert (plan.rounds - 1) * sum(plan.round_samples) < 200 * 32 <= plan.rounds * sum(plan.round_samples)
    jobs = [island.job for island in plan.islands]
    assert [each.steps for each in jobs] == [plan.rounds * steps for steps in plan.inner_steps]
    assert [each.checkpoint and each.checkpoint.path for each in jobs] == ["/data/ckpt/island-0", "/data/ckpt/island-1"]
    assert [each.optimizer.warmup_steps for each in jobs] == [round(50 * each.steps / 200) for each in jobs]
    assert [each.profile is None for each in jobs] == [each.steps < 195 for each in jobs]
    for number, island in enumerate(plan.islands):
        assert verify(island, only_clusters(SLOW, ["ab"[number]])) == []


@pytest.mark.slow
def test_modes_are_ranked_and_told_for_every_network() -> None:
    plan = planned_mode(cpu_inventory([1, 1], shared_gbps=2.0), islands_job({"inner_steps": 4, "delay_steps": 0}))
    assert plan.modes is not None
    speeds = [price.tokens_per_s or 0.0 for price in plan.modes.prices]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] == pytest.approx(plan.prediction.tokens_per_s, rel=1e-6)
    by_network = {(cell.bandwidth_bytes_per_s, cell.latency_s): cell for cell in plan.modes.by_network}
    assert len(by_network) == 24
    assert by_network[GBPS / 1000, 1e-4].mode == "one cluster"
    assert by_network[GBPS * 10, 1e-4].mode in ("data", "pipeline")
    for latency_s in {each for _, each in by_network}:  # a faster wire is no slower
        row = [cell.tokens_per_s for (_, each), cell in sorted(by_network.items()) if each == latency_s]
        assert all(b >= a * (1 - 1e-6) for a, b in pairwise(row))


def test_a_longer_round_is_named_where_it_is_much_faster_and_has_at_most_half_of_the_steps() -> None:
    job = islands_job({"inner_steps": 4, "fragments": 1, "delay_steps": 0})
    islands = plan_islands(SLOW, job, SOURCES, 60.0, lambda _: None)
    now = islands.best_round()
    assert isinstance(now, IslandRound)

    said = longer_round(islands, now.cost.tokens_per_s)
    assert said is not None
    assert 90 < said.inner_steps <= 100  # half of 200, or about as fast
    tokens = now.cost.tokens_per_s * now.cost.round_s * said.inner_steps / 4
    longer_s = now.cost.round_s + (said.inner_steps - 4) / 4 * (now.cost.round_s - now.cost.exposed_s)
    assert said.tokens_per_s == pytest.approx(tokens / longer_s)

    assert longer_round(islands, said.tokens_per_s / 1.06) is not None
    assert longer_round(islands, said.tokens_per_s) is None
