"""Whole runs under torchrun on loopback, compared with the same training in this process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.codec import Codec
from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.config.rank_grid import Axis
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import EmulationSettings, Expectation, Precision
from holmes_runtime.config.schedule import ScheduleName
from holmes_runtime.config.trainable import Lora, adapter_parameters
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.health.examination_times import FIRST_STEPS
from holmes_runtime.train import describe_rank, num_threads
from holmes_runtime.trainer import Trainer

from .forked_ranks import launch_forked
from .launched_runs import LIMIT_S, TINY, FinishedRun, launch, make_config

pytestmark = pytest.mark.timeout(LIMIT_S + 60)

WHOLE_RUNS = pytest.mark.torch
ONE_RANK = RankGroups()
PLANS = {
    "two uneven stages": (((0, 1),), (0, 2, 3)),
    "two replicas": (((0,), (1,)), (0, 3)),
    "two stages of two replicas, ranks out of order": (((0, 2), (3, 1)), (0, 1, 3)),
    "three stages, ranks out of order": (((1, 2, 0),), (0, 1, 2, 3)),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_bytes(bytes(range(32, 127)) * 20)
    return path


def train_here(config: RunConfig) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of a run of one rank, trained in this process."""
    corpus = load_corpus(config.data, "here", config.model.seq_length, config.model.vocab_size)
    trainer = Trainer(config, config.grid.rank(0), corpus, ONE_RANK, torch.device("cpu"))
    results = [trainer.step(step) for step in range(config.steps)]
    return [result.loss for result in results if result.loss is not None], [
        result.grad_norm or 0.0 for result in results
    ]


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[FinishedRun]]]:
    """Every run of this file, two at a time; under torchrun where its ranks are numbered or fail before they meet."""
    configs = {name: make_config(corpus, *plan) for name, plan in PLANS.items()}
    configs["emulated"] = emulated_config(corpus)
    configs["planned packed"] = packed_config(corpus)
    configs["emulated zero-bubble"] = emulated_config(corpus, stages=3, schedule="zero-bubble")
    # The interface is looked for before anybody is waited for, so one rank of the two is enough.
    wrong = make_config(corpus, ((0,), (1,)), (0, 3), interface="ib7")
    stages = configs["two stages of two replicas, ranks out of order"]
    with ThreadPoolExecutor(max_workers=2) as pool:
        folder = tmp_path_factory.mktemp("runs")
        launches = {
            name: pool.submit(launch if config is stages else launch_forked, config, folder / name)
            for name, config in configs.items()
        }
        at_first_word = {"TORCH_GLOO_LAZY_INIT": "1"}
        launches["lazily"] = pool.submit(launch_forked, stages, folder / "lazily", variables=at_first_word)
        yield {**launches, "wrong interface": pool.submit(launch, wrong, folder / "wrong", nproc=1)}


@pytest.fixture(scope="module")
def alone(corpus: Path) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of the run of one process."""
    return train_here(make_config(corpus))


@WHOLE_RUNS
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_trains_like_a_single_process(
    plan: str, runs: dict[str, Future[FinishedRun]], alone: tuple[list[float], list[float]]
) -> None:
    losses, norms = alone

    run = runs[plan].result()

    assert run.exit_code == 0, run.stderr
    assert run.losses() == pytest.approx(losses, abs=1e-6)
    for lines in run.metrics.values():
        assert [line["grad_norm"] for line in lines] == pytest.approx(norms, rel=1e-4)
    assert losses[-1] < losses[0] - 0.5
    assert max(norms) > 1.0  # so that clipping took part


@WHOLE_RUNS
def test_ranks_that_connect_when_they_first_talk_train_alike(
    runs: dict[str, Future[FinishedRun]], alone: tuple[list[float], list[float]]
) -> None:
    """As nodes on GPUs are told to: members must be let in after their group was made."""
    run = runs["lazily"].result()

    assert run.exit_code == 0, run.stderr
    assert run.losses() == pytest.approx(alone[0], abs=1e-6)


def emulated_config(corpus: Path, stages: int = 2, schedule: ScheduleName = "1f1b") -> RunConfig:
    """Three layers that sleep 5 ms forward and 10 ms backward, one on each stage but the last, which has the rest."""
    emulation = EmulationSettings(forward_s_per_layer=0.005, backward_s_per_layer=0.01, slowdown={})
    pipeline, cuts = tuple(range(stages)), (*range(stages), 3)
    return make_config(corpus, (pipeline,), cuts, steps=3, schedule=schedule, emulation=emulation, grad_clip=None)


def packed_config(corpus: Path) -> RunConfig:
    """The same for more steps, planned for a wire so slow that messages are packed, and run on one that is not."""
    codecs: dict[Axis, Codec] = {"pp_forward": "int8", "pp_backward": "int4"}
    planned = make_config(corpus, ((0, 1),), (0, 1, 3), steps=FIRST_STEPS + 2, codecs=codecs)
    emulation = emulated_config(corpus).emulation
    return replace(planned, emulation=emulation, expectation=Expectation((), {}, {}))


@WHOLE_RUNS
def test_all_ranks_change_codecs_between_the_same_two_steps(runs: dict[str, Future[FinishedRun]]) -> None:
    run = runs["planned packed"].result()

    assert run.exit_code == 0, run.stderr
    assert run.losses() == pytest.approx([1.0] * (FIRST_STEPS + 2), abs=1e-3)
    assert run.losses()[:FIRST_STEPS] != [1.0] * FIRST_STEPS
    said = {line["step"]: line["verdicts"] for line in run.metrics[0] if line["verdicts"]}
    assert list(said) == [FIRST_STEPS - 1]
    (verdict,) = said[FIRST_STEPS - 1]
    assert (verdict["kind"], verdict["earlier"], verdict["later"]) == ("EdgeAdapted", ["host0"], ["host1"])
    assert verdict["before"] == {"activations": "int8", "gradients": "int4", "extra_in_flight": 0}
    now = verdict["now"]  # which of the lighter ones hangs on how busy the machine is
    assert now != verdict["before"]
    if not {"int8", "int4"} & set(now.values()):  # values that are not packed by blocks arrive as they are
        assert run.losses()[FIRST_STEPS:] == [1.0, 1.0]
    assert all(line["verdicts"] == [] for line in run.metrics[1])


def test_a_rank_asks_all_for_an_examination_once(corpus: Path) -> None:
    config = make_config(corpus)
    read = load_corpus(config.data, "here", config.model.seq_length, config.model.vocab_size)
    trainer = Trainer(config, config.grid.rank(0), read, ONE_RANK, torch.device("cpu"))
    trainer.ask_to_examine()

    results = [trainer.step(step) for step in range(2)]

    assert [(result.examine, result.stop) for result in results] == [(True, False), (False, False)]


def test_a_checkpoint_keeps_how_many_samples_were_trained_on(corpus: Path) -> None:
    config = make_config(corpus, microbatches=(4,))
    read = load_corpus(config.data, "here", config.model.seq_length, config.model.vocab_size)
    trainer = Trainer(config, config.grid.rank(0), read, ONE_RANK, torch.device("cpu"))
    began = trainer.counters(3)
    following = trainer.training.batch(3, range(4))
    assert began.samples == 12

    trainer.restore(replace(began, steps=2))  # as if it had taken batches of six

    assert torch.equal(trainer.training.batch(2, range(4)), following)
    assert trainer.counters(3).samples == 16


@WHOLE_RUNS
@pytest.mark.parametrize("name", ["emulated", "emulated zero-bubble"])
def test_an_emulated_run_takes_its_time_and_moves_its_activations(
    name: str, runs: dict[str, Future[FinishedRun]], corpus: Path
) -> None:
    config = emulated_config(corpus)
    total = stage_parameters(TINY, 3, True, True)

    run = runs[name].result()

    assert run.exit_code == 0, run.stderr
    assert run.losses() == [1.0] * 3
    # Each averaged gradient is one, so the norm is exact only if every bucket was divided and every stage counted.
    for lines in run.metrics.values():
        assert [line["grad_norm"] for line in lines] == pytest.approx([math.sqrt(total)] * 3)
    busiest = 2 if name == "emulated" else 1
    first_to_last_s = config.total_microbatches * busiest * 0.015 + 0.015
    assert min(line["step_s"] for line in run.metrics[0]) >= first_to_last_s


def test_a_rehearsal_of_adapters_trains_adapters_alone(corpus: Path) -> None:
    lora = Lora(rank=2, targets=("qkv", "projection"), adapters="/no/adapters")
    emulation = EmulationSettings(0.0, 0.0, {})

    losses, norms = train_here(make_config(corpus, lora=lora, emulation=emulation, grad_clip=None))

    assert losses == [1.0] * 5
    assert norms == pytest.approx([math.sqrt(3 * adapter_parameters(TINY, lora))] * 5)


@WHOLE_RUNS
def test_local_rank_0_counts_the_bytes_of_its_host(runs: dict[str, Future[FinishedRun]]) -> None:
    run = runs["two replicas"].result()

    assert all(set(line["interfaces"]["lo"]) == {"sent_bytes", "received_bytes"} for line in run.metrics[0])
    assert all(line["interfaces"] == {} for line in run.metrics[1])
    # Other runs share loopback, so this is a lower bound: each replica sends all its gradients once per step.
    sent = sum(line["interfaces"]["lo"]["sent_bytes"] for line in run.metrics[0])
    assert sent >= 5 * 2 * 4 * stage_parameters(TINY, 3, True, True)


@WHOLE_RUNS
def test_every_rank_says_where_it_is(runs: dict[str, Future[FinishedRun]]) -> None:
    run = runs["two stages of two replicas, ranks out of order"].result()

    assert "rank 3 on host3: stage 0 (layers 0-0), replica 1, dp with 0 over lo" in run.stdout


@WHOLE_RUNS
def test_a_wrong_interface_ends_the_run_with_host_group_and_interface(runs: dict[str, Future[FinishedRun]]) -> None:
    run = runs["wrong interface"].result()

    assert run.exit_code == 1
    assert "group dp-0 needs interface 'ib7', but this host has only:" in run.stderr
    assert run.metrics == {}


def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_and_stage(corpus: Path) -> None:
    config = make_config(corpus, learning_rate=1e30, grad_clip=None)

    with pytest.raises(RuntimeError, match=r"step 2, stage 0 of replica 0 \(rank 0 on host0\): the loss is nan"):
        train_here(config)


class Calls(TorchFunctionMode):
    """The names of the torch functions called, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("value_type", ["fp32", "fp16"])
def test_the_host_reads_nothing_between_the_last_backward_and_the_update(corpus: Path, value_type: Precision) -> None:
    config = make_config(corpus, value_type=value_type, microbatches=[2])
    read = load_corpus(config.data, "here", config.model.seq_length, config.model.vocab_size)
    trainer = Trainer(config, config.grid.rank(0), read, ONE_RANK, torch.device("cpu"))
    with Calls() as calls:
        trainer.step(0)

    last_backward = len(calls.names) - 1 - calls.names[::-1].index("backward")
    update = calls.names.index("_fused_adamw_")
    reads = {"item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "synchronize"}
    assert last_backward < update
    assert reads.isdisjoint(calls.names[last_backward:update])
    assert "tolist" in calls.names[update:]


def test_the_start_line_tells_both_directions_of_each_edge() -> None:
    config = make_config(pipelines=((1, 2, 0),), cuts=(0, 1, 2, 3), interface="ib0")

    assert describe_rank(config, config.grid.rank(2)) == (
        "rank 2 on host2: stage 1 (layers 1-1), replica 0, activations from rank 1 over ib0, "
        "gradients to rank 1 over ib0, activations to rank 0 over ib0, gradients from rank 0 over ib0"
    )


def test_a_rank_with_optimizer_states_in_host_memory_takes_its_share_of_the_cores() -> None:
    on_cpu = make_config(optimizer_offload=True)
    offloaded = replace(on_cpu, device="cuda")
    near = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", "HOLMES_RANK_CPUS": "0-15;0-15;16-31;16-31"}

    assert num_threads(offloaded, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}, cores=32) == 4
    assert num_threads(offloaded, near, cores=16) == 8
    assert num_threads(offloaded, {"LOCAL_WORLD_SIZE": "64"}, cores=32) == 1
    assert num_threads(replace(offloaded, optimizer_offload=False), near, cores=16) == 1
    assert num_threads(on_cpu, near, cores=16) == 1
