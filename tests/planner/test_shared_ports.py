"""A NIC that two edges of a stage use has one budget: by hand, and against a fluid simulation of the whole wire."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from planner.schedule.shared_ports import SharedPorts, fair_rates
from planner.schedule.simulate import PipelineTimes, ScheduleOrder, run_pipeline
from tests.planner.fleets import bed_job, cpu_inventory, plan_for
from tests.planner.fluid_wire import FluidRun
from tests.planner.test_step_lower_bound import SCHEDULES, drawn_times
from tests.seeds import few_of, seeds

LINKS = Path(__file__).parents[3] / "shared" / "links"
EMULATE = {"emulate": {"forward_s_per_layer": 0.02, "backward_s_per_layer": 0.04}}
FREE = {"action_s": 0.0, "update_bytes_per_s": 1e15, "split_factor": 3.0}
RATES_GBPS = (0.1, 0.15, 0.3, 1.0)


def test_two_messages_share_a_port_until_one_has_left() -> None:
    # Edges 1 (forward of stage 1) and 2 (backward of stage 1) leave one NIC, where each takes 4 s alone.
    both = SharedPorts((((1, 4.0), (2, 4.0)),), (1.0,) * 4)
    assert fair_rates(
        (
            1,
            2,
        ),
        (4.0,) * 5,
        both,
    ) == ((1, 0.125), (2, 0.125))
    assert fair_rates((1,), (4.0,) * 5, both) == ((1, 0.25),)


def test_a_slower_path_leaves_its_part_of_the_port_to_the_other() -> None:
    # Alone, edge 1 takes 20 s by its path and edge 2 takes 4 s by the port: a fifth of the port, and the rest.
    port = SharedPorts((((1, 4.0), (2, 4.0)),), (1.0,) * 4)
    assert dict(
        fair_rates(
            (
                1,
                2,
            ),
            (4.0, 20.0, 4.0, 4.0, 0.0),
            port,
        )
    ) == pytest.approx({1: 0.05, 2: 0.2})


def test_shares_are_of_bytes() -> None:
    # Packed messages of 1 byte and plain ones of 4 share 8 bytes/s: 4 bytes/s each.
    port = SharedPorts((((0, 0.125), (3, 0.5)),), (1.0, 4.0, 1.0, 4.0))
    assert dict(
        fair_rates(
            (
                0,
                3,
            ),
            (0.125, 0.5, 0.125, 0.5, 0.0),
            port,
        )
    ) == pytest.approx({0: 4.0, 3: 1.0})


def test_a_port_paces_the_middle_of_three_stages() -> None:
    # Computing takes nothing; 1000 micro-batches each take 2 s of the middle NIC out, 1 s a message.
    shared = SharedPorts((((1, 1.0), (2, 1.0)),), (1.0,) * 4)
    times = PipelineTimes((0.0,) * 3, (0.0,) * 3, (1.0, 1.0), (1.0, 1.0), shared=shared)
    deep = ScheduleOrder("eager", 3, 1000, 1, (8, 8)).precedence
    assert run_pipeline(deep, replace(times, shared=None)).rank_ends_s()[0] == pytest.approx(1000, rel=0.02)
    assert run_pipeline(deep, times).rank_ends_s()[0] == pytest.approx(2 * 1000, rel=0.02)


@pytest.mark.parametrize("name", few_of(2, SCHEDULES))
def test_ports_with_room_for_all_change_nothing(name: Any) -> None:
    draw = random.Random(name)
    for _ in range(30):
        pp, chunks = draw.randint(2, 5), 2 if name == "interleaved" else 1
        extra = tuple(draw.randint(0, 3) for _ in range(pp - 1)) if name == "eager" else ()
        precedence = ScheduleOrder(name, pp, pp * draw.randint(1, 4), chunks, extra).precedence
        times = replace(drawn_times(draw, pp * chunks), shared=None)
        num_edges = 2 * pp * chunks - 2
        ample = SharedPorts((tuple((edge, 1e-9) for edge in range(num_edges)),), (1.0,) * num_edges)
        alone, shared = run_pipeline(precedence, times), run_pipeline(precedence, replace(times, shared=ample))
        assert shared.ends_s == pytest.approx(alone.ends_s, rel=1e-6)
        assert shared.left_s == pytest.approx(alone.left_s, rel=1e-6)


def on_the_wire(inventory: Inventory, plan: Plan) -> tuple[float, float]:
    """The plan's step without gradients and update, as promised and as the fluid simulation has it, in seconds."""
    promised = plan.prediction
    return promised.step_s - promised.exposed_dp_s - promised.optimizer_s, FluidRun(inventory, plan).step_s()


@pytest.mark.parametrize("seed", seeds(24, few=range(2, 4), more=1))
def test_a_chain_over_slow_nics_takes_what_a_fluid_simulation_says(seed: int) -> None:
    draw = random.Random(seed)
    pp, name = draw.randint(3, 5), draw.choice(["1f1b", "gpipe", "eager"])
    sizes = [1] * pp if draw.random() < 0.5 else [pp]
    inventory = cpu_inventory(sizes, draw.choice(RATES_GBPS), draw.choice(RATES_GBPS))
    job = bed_job(
        model={"num_layers": draw.choice((12, 13)), "hidden_size": 1024, "num_heads": 8, "seq_length": 512},
        compute=EMULATE | {"overheads": FREE},
        global_batch_size=draw.choice((16, 48)),
        parallel={"pp": pp, "dp": 1, "schedule": name, "micro_batch_size": draw.choice((1, 2))},
    )
    promised_s, fluid_s = on_the_wire(inventory, plan_for(inventory, job))
    assert promised_s == pytest.approx(fluid_s, rel=0.005)


@pytest.mark.skipif(not LINKS.is_dir(), reason="no shared inventories of measured wires here")
@pytest.mark.parametrize("name", few_of(1, sorted(path.name.split(".")[0] for path in LINKS.glob("*.inventory.json"))))
def test_measured_wires(name: str) -> None:
    """The promise is within 10 % of the fluid simulation, and the chosen step within 5 % of the best there is."""
    inventory = read_file(Inventory, LINKS / f"{name}.inventory.json")
    job = Job.model_validate(yaml.safe_load((LINKS / f"{name}.job.yaml").read_text(encoding="utf-8")))
    promised_s, fluid_s = on_the_wire(inventory, plan_for(inventory, job))
    assert promised_s == pytest.approx(fluid_s, rel=0.1)
    expected = yaml.safe_load((LINKS / "expected.json").read_text(encoding="utf-8"))
    best = expected.get(name) or expected["L13-chain-in-cluster"][name.rsplit("-", 1)[1]]
    assert fluid_s <= 1.05 * best["best_s"]
