"""Train one rank of a run: `python -m holmes_runtime.train CONFIG.json`, started by torchrun."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler

from holmes_runtime import metrics
from holmes_runtime.comm import process_groups
from holmes_runtime.comm.keyed_exchange import take_key
from holmes_runtime.config.rank_grid import EDGE_AXES, Group, Rank
from holmes_runtime.config.rank_metrics import PRINTS_STEPS
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.data.same_on_hosts import HostCorpus, check_same_corpus, common_frozen_weights
from holmes_runtime.health.position_report import PositionReport, position_report_of
from holmes_runtime.memory_report import named_when_full, record_places
from holmes_runtime.node.checkpoint_files.description import Counters
from holmes_runtime.node.data_files.home_folder import read_run_config
from holmes_runtime.node.lean_start import run_and_leave
from holmes_runtime.node.near_cpus import RANK_CPUS
from holmes_runtime.node.process_tree import die_with_parent
from holmes_runtime.outer.island_weights import BundledWeights
from holmes_runtime.outer.outer_loop import OuterLoop
from holmes_runtime.rank_notices import RankNotices
from holmes_runtime.run_steps import run_steps
from holmes_runtime.trace import StepProfiler
from holmes_runtime.trainer import Trainer

if TYPE_CHECKING:
    from holmes_runtime.checkpoint.checkpoints import Checkpoints


ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # torch's variable


@dataclass(frozen=True)
class Launched:
    """The settings that torchrun and the launcher pass to a rank in environment variables."""

    rank: int
    local_rank: int
    world_size: int
    metrics_dir: Path
    prints_steps: bool = False


def read_environment(environ: Mapping[str, str]) -> Launched:
    """Return this rank's settings.

    Raises:
        RuntimeError: One of torchrun's variables is missing.
    """
    missing = [name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if name not in environ]
    if missing:
        raise RuntimeError(f"{', '.join(missing)} not set: start this module with torchrun")
    return Launched(
        rank=int(environ["RANK"]),
        local_rank=int(environ["LOCAL_RANK"]),
        world_size=int(environ["WORLD_SIZE"]),
        metrics_dir=Path(environ.get("HOLMES_METRICS_DIR", ".")),
        prints_steps=PRINTS_STEPS in environ,
    )


def describe_rank(config: RunConfig, me: Rank) -> str:
    """Return a line to print, with the rank's host, its stages, and the interface that each of its groups uses."""
    stages = [
        f"stage {stage.index} (layers {stage.first_layer}-{stage.stop_layer - 1})"
        for stage in config.stages_of(me.pp_rank)
    ]
    parts = [f"rank {me.rank} on {me.host}: {', '.join(stages)}, replica {me.dp_rank}"]
    if config.tp > 1:
        parts.append(f"shard {me.tp_rank}")
    for group in config.groups:
        if me.rank in group.ranks:
            parts.append(f"{_describe_group(group, me)} over {group.interface_of(me.rank)}")
    return ", ".join(parts)


def _describe_group(group: Group, me: Rank) -> str:
    """Return what rank `me` exchanges in `group`, such as "activations to rank 3"."""
    others = " ".join(str(rank) for rank in group.ranks if rank != me.rank)
    if group.axis not in EDGE_AXES:
        return f"{group.axis.replace('_', ' ')} with {others}"
    sends = (group.axis == "pp_forward") == (group.ranks[0] == me.rank)
    payload = "activations" if group.axis == "pp_forward" else "gradients"
    return f"{payload} {'to' if sends else 'from'} rank {others}"


def num_threads(config: RunConfig, environ: Mapping[str, str], cores: int) -> int:
    """Return the number of CPU threads for a rank that may use `cores` cores.

    A GPU rank with optimizer states in host memory takes its share of these cores. It shares them with the ranks that
    the plan binds to the same CPUs or, if the plan binds none, with all ranks of the host.
    """
    if config.device == "cpu" or not config.optimizer_offload:
        return config.threads_per_rank
    cpu_lists, local_rank = environ.get(RANK_CPUS, "").split(";"), int(environ.get("LOCAL_RANK", "0"))
    own_cpus = cpu_lists[local_rank] if local_rank < len(cpu_lists) else ""
    sharing_ranks = cpu_lists.count(own_cpus) if own_cpus else int(environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(config.threads_per_rank, cores // sharing_ranks)


def train(config: RunConfig, launched: Launched) -> None:
    """Run all of this rank's steps, writing one line of metrics per step."""
    take_key(os.environ, [config.grid.rank(rank).host for rank in range(config.world_size)])
    me = config.grid.rank(launched.rank)
    position = position_report_of(config, me.rank)
    position.answer(launched.metrics_dir)
    torch.set_num_threads(num_threads(config, os.environ, len(os.sched_getaffinity(0))))
    device = process_groups.select_device(config.device, launched.local_rank, os.environ)
    record_places(device, on=True)
    with named_when_full(launched.rank, launched.metrics_dir):
        _train_on(device, config, launched, me, position)


def _train_on(device: torch.device, config: RunConfig, launched: Launched, me: Rank, position: PositionReport) -> None:
    process_groups.check_interfaces(config, me.rank)
    position.now("reading the data", alone=True)
    shape = config.model
    corpus = load_corpus(config.data, me.host, shape.seq_length, shape.vocab_size, config.expected_tokenizer)

    position.now("meeting the other ranks")
    process_groups.connect(config, me.rank, launched.world_size)
    groups = process_groups.open_groups(config, me.rank, device, position.now)
    position.now("comparing its data with other hosts")
    check_same_corpus(HostCorpus(me.host, corpus.num_tokens, corpus.digest))
    has_frozen = config.lora is not None and config.emulation is None
    frozen_weights = common_frozen_weights(config, me.host) if has_frozen else None
    notices = RankNotices(launched.metrics_dir, me.rank)
    if corpus.bad_lines.count:
        notices.say("data", corpus.bad_lines.sentence, bad_lines_skipped=corpus.bad_lines.count)
    checkpoints = None
    if config.checkpoint:
        from holmes_runtime.checkpoint.checkpoints import Checkpoints  # imports torch's DTensor, which takes 0.5 s

        checkpoints = Checkpoints(config, me, corpus.digest, notices, frozen_weights)
    is_new = checkpoints is None or checkpoints.is_empty
    position.now("building the model", alone=True)
    before_update = checkpoints.await_copy if checkpoints else lambda: None
    trainer = Trainer(config, me, corpus, groups, device, draws=is_new, before_update=before_update)
    print(describe_rank(config, me), flush=True)

    position.now("loading a checkpoint, or meeting the others for the first step")
    outer = None
    if config.island:
        weights = BundledWeights(trainer.zero1, groups, me.tp_rank)
        outer = OuterLoop(config.island, me.rank, weights, trainer.ask_for_exchange, frozen_weights)
    counters = resume(trainer, checkpoints, outer) if checkpoints else None
    first_step = counters.steps if counters else 0
    if config.weights is not None and config.reads_weights and (is_new or config.lora is not None):
        trainer.begin_from(Path(config.weights))
    if is_new and config.first_adapters is not None:
        trainer.begin_from_adapters(Path(config.first_adapters))
    if is_new:
        notices.say("start", first_weights(config))
    if outer is not None:
        position.now("meeting the other islands")
        first_step = outer.begin(first_step, counters.outer if counters else None)
    if groups.digests is not None and groups.digests.are_compared:
        notices.say(
            "compared",
            "in every step both ends compare digests of all traffic between hosts: weights, gradients, activations",
        )
    profiler = StepProfiler(config.profile, first_step, me.rank, launched.metrics_dir, device)
    # Only the last stage has the loss, and the first replica prints it for all.
    prints = launched.prints_steps and me == config.grid.at(config.pp - 1, 0, 0)
    with metrics.MetricsFile(launched.metrics_dir, me.rank, prints_of=config.steps if prints else None) as lines:
        run_steps(
            *(trainer, outer, checkpoints, first_step, lines, position, profiler, notices),
            counts_bytes=launched.local_rank == 0,
        )
        trainer.zero1.wait()
        dist.destroy_process_group()
        lines.end(first_step)


def resume(trainer: Trainer, checkpoints: Checkpoints, outer: OuterLoop | None) -> Counters | None:
    """Load the newest checkpoint and return its counters, or None if the run has no checkpoint.

    From then on, SIGTERM makes the run save a checkpoint and stop.
    """
    counters = checkpoints.load(trainer.zero1.shards(), outer.saved() if outer else {})
    signal.signal(signal.SIGTERM, lambda *_: _stop_in_order(trainer))
    if counters is None:
        return None
    trainer.restore(counters)
    return counters


def first_weights(config: RunConfig) -> str:
    """Return a sentence that names a new run's initial weights and the folder for its checkpoints."""
    weights = "random weights" if config.weights is None else f"the weights of {config.weights}"
    weights += f" and the adapters of {config.first_adapters}" if config.first_adapters is not None else ""
    if config.checkpoint is None:
        return f"starting at step 1 with {weights}; the job saves no checkpoints"
    path = config.checkpoint.path
    if config.resume:
        return f"no checkpoint in {path}: starting at step 1 with {weights}"
    return f"starting at step 1 with {weights}; checkpoints go to {path}"


def _stop_in_order(trainer: Trainer) -> None:
    """Ask the trainer to finish and save the current step, then stop. A second SIGTERM ends the process at once."""
    trainer.ask_to_stop()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class WholeErrorFile(ErrorHandler):
    """An error handler that never leaves a partial file, on which torchrun would fail without naming a rank."""

    def record_exception(self, e: BaseException) -> None:
        """Write the error to a temporary file, then rename it."""
        path = os.environ.get(ERROR_FILE)
        if path is None:
            super().record_exception(e)
            return
        os.environ[ERROR_FILE] = f"{path}.partial"
        super().record_exception(e)
        os.environ[ERROR_FILE] = path
        Path(f"{path}.partial").replace(path)


@partial(record, error_handler=WholeErrorFile())
def main() -> None:
    """Read the command line and the environment, then train."""
    parser = argparse.ArgumentParser(prog="python -m holmes_runtime.train", description="Train one rank of a run.")
    parser.add_argument("config", type=Path, help="the run configuration, JSON")
    arguments = parser.parse_args()
    die_with_parent()
    launched = read_environment(os.environ)
    config = read_run_config(arguments.config.read_text(encoding="utf-8"))
    train(config, launched)


if __name__ == "__main__":
    run_and_leave(main)
