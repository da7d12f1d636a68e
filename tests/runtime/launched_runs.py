"""Small run configurations and real torchrun launches of them on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from holmes_runtime.config.codec import Codec
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.rank_grid import Axis, Group, Rank
from holmes_runtime.config.run_config import RunConfig, Stage
from holmes_runtime.config.run_settings import (
    CheckpointSettings,
    DataSettings,
    Documents,
    EmulationSettings,
    EvaluationSettings,
    Expectation,
    OptimizerSettings,
    OuterSync,
    Precision,
    ProfileSettings,
    Recompute,
    TeacherSettings,
    Zero,
)
from holmes_runtime.config.schedule import ScheduleName
from holmes_runtime.config.trainable import Lora

REPOSITORY = Path(__file__).parents[2]
TINY = ModelShape(
    num_layers=3, hidden_size=32, num_heads=4, num_kv_heads=4, ffn_hidden_size=128, vocab_size=256,
    seq_length=32,
)  # fmt: skip
TINY_LLAMA = replace(TINY, family="llama", num_kv_heads=2, ffn_hidden_size=64)
TINY_MIXTRAL = replace(TINY_LLAMA, experts=6, experts_per_token=2, expert_ffn=24)

ONE_ISLAND = OuterSync(
    island=0, num_islands=1, inner_steps=4, samples_before=0, round_samples=32, codec="none", fragments=1,
    delay_steps=0, outer_rate=1.0, momentum=0.0, grace_s=5.0, quorum=1, interfaces=("lo",), streams=1,
)  # fmt: skip

NO_CODECS: Mapping[Axis, Codec] = {}
LIMIT_S = 600  # of a launch, however busy the machine

Pipelines = Sequence[Sequence[int]]


def layout(tp: int, pp: int, dp: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Ranks by tensor shard, replica and pipeline rank, numbered as torch launchers do: tensor first, stages last."""
    return tuple(
        tuple(tuple((stage * dp + replica) * tp + shard for stage in range(pp)) for replica in range(dp))
        for shard in range(tp)
    )


def make_groups(
    shards: Sequence[Pipelines],
    interface: str,
    chunks: int = 1,
    codecs: Mapping[Axis, Codec] = NO_CODECS,
    clusters: Sequence[str] = (),
    tied: Sequence[tuple[int, int]] = (),
    cp: int = 1,
    sharing: int = 1,
) -> tuple[Group, ...]:
    """Every group of a run whose replica d of tensor shard t is the pipeline `shards[t][d]`, all on one interface.

    `codecs` are those of the edges' axes. With `clusters`, one a rank, data parallelism is hierarchical. `tied` are the
    ranks that hold copies of one piece of a table. `cp` neighbouring replicas share each sequence, and `sharing` of
    them the experts.
    """

    def group(name: str, axis: Axis, ranks: Sequence[int]) -> Group:
        codec: Codec = codecs.get(axis, "none")
        return Group(name, axis, tuple(ranks), (interface,) * len(ranks), None, 1, codec)

    groups = []
    for shard, pipelines in enumerate(shards):
        mark = f"/{shard}" if len(shards) > 1 else ""
        if len(pipelines) > 1:
            for stage, ranks in enumerate(zip(*pipelines, strict=True)):
                found = exchanges(ranks, clusters)
                found |= expert_groups(ranks, clusters, sharing) if sharing > 1 else {}
                groups += [group(f"{name}-{stage}{mark}", axis, members) for name, (axis, members) in found.items()]
                sequences = [ranks[first : first + cp] for first in range(0, len(ranks), cp)] if cp > 1 else []
                groups += [group(f"cp-{at}-{stage}{mark}", "cp", members) for at, members in enumerate(sequences)]
        for replica, pipeline in enumerate(pipelines):
            ring = [*pipeline, pipeline[0]] if chunks > 1 and len(pipeline) > 1 else pipeline
            for stage, edge in enumerate(pairwise(ring)):
                groups.append(group(f"forward-{replica}-{stage}{mark}", "pp_forward", edge))
                groups.append(group(f"backward-{replica}-{stage}{mark}", "pp_backward", edge))
    groups += [group(f"tied-{pair[0]}", "tied", pair) for pair in tied]
    if len(shards) > 1:
        for replica in range(len(shards[0])):
            for stage, ranks in enumerate(zip(*(pipelines[replica] for pipelines in shards), strict=True)):
                groups.append(group(f"tp-{replica}-{stage}", "tp", ranks))
    return tuple(groups)


def write_corpus(folder: Path) -> Path:
    """A text in `folder` for runs that compare losses."""
    corpus = folder / "text.txt"
    corpus.write_bytes(bytes(range(32, 127)) * 40)
    return corpus


def exchanges(ranks: Sequence[int], clusters: Sequence[str]) -> dict[str, tuple[Axis, Sequence[int]]]:
    """The groups of the replicas `ranks` of one stage, by name; all in one without `clusters`."""
    if not clusters:
        return {"dp": ("dp", ranks)} if len(ranks) > 1 else {}
    names = dict.fromkeys(clusters[rank] for rank in ranks)
    inside = {name: [rank for rank in sorted(ranks) if clusters[rank] == name] for name in names}
    found: dict[str, tuple[Axis, Sequence[int]]] = {f"dp-{name}": ("dp", members) for name, members in inside.items()}
    for position, members in enumerate(zip(*inside.values(), strict=True)):
        found[f"dp-across-{position}"] = ("dp_across", members)
    return {name: (axis, members) for name, (axis, members) in found.items() if len(members) > 1}


def expert_groups(ranks: Sequence[int], clusters: Sequence[str], sharing: int) -> dict[str, tuple[Axis, Sequence[int]]]:
    """The groups of the replicas `ranks` of one stage by name; `sharing` neighbours share experts."""
    found: dict[str, tuple[Axis, Sequence[int]]] = {
        f"ep-{first}": ("ep", ranks[first : first + sharing]) for first in range(0, len(ranks), sharing)
    }
    for part in range(sharing):
        for name, (axis, members) in exchanges(ranks[part::sharing], clusters).items():
            found[f"experts-{part}-{name}"] = "expert_dp" if axis == "dp" else "expert_dp_across", members
    return found


def make_config(
    corpus: Path | str = "/no/corpus",
    pipelines: Pipelines = ((0,),),
    cuts: Sequence[int] = (0, 3),
    *,
    shards: Sequence[Pipelines] | None = None,
    model: ModelShape = TINY,
    steps: int = 5,
    micro_batch_size: int = 1,
    microbatches: Sequence[int] | None = None,
    schedule: ScheduleName = "1f1b",
    chunks: int = 1,
    extra_in_flight: Sequence[int] = (),
    recompute: Recompute = "none",
    optimizer_offload: bool = False,
    value_type: Precision = "fp32",
    fp8: bool = False,
    compile_blocks: bool = False,
    emulation: EmulationSettings | None = None,
    grad_clip: float | None = 1.0,
    learning_rate: float = 1e-2,
    router_balance: float = 0.0,
    interface: str = "lo",
    documents: Documents = "joined",
    validation_fraction: float = 0.0,
    evaluation: EvaluationSettings | None = None,
    checkpoint: CheckpointSettings | None = None,
    profile: ProfileSettings | None = None,
    resume: bool = False,
    from_scratch: bool = False,
    expectation: Expectation | None = None,
    codecs: Mapping[Axis, Codec] = NO_CODECS,
    lossiest_codec: Codec = "int4",
    room_in_flight: Sequence[int] = (),
    clusters: Sequence[str] = (),
    zero: Zero = 1,
    tied: Sequence[tuple[int, int]] | None = None,
    weights: str | None = None,
    expected_tokenizer: str | None = None,
    outer_sync: OuterSync | None = None,
    cp: int = 1,
    ep: int = 1,
    lora: Lora | None = None,
    teacher: TeacherSettings | None = None,
) -> RunConfig:
    """A run of a tiny model; `pipelines[d][s]` is the rank of stage s of replica d, `cuts` are the stage bounds.

    `shards` are the pipelines of every tensor shard, instead of `pipelines`. Eight samples a step unless
    `microbatches` says otherwise. With `clusters`, one a rank, data parallelism is hierarchical. `tied` are the pairs
    of ranks that hold copies of one piece of a tied table: those of one replica and shard unless given. `cp`
    neighbouring replicas share each sequence.
    """
    shards = shards or (pipelines,)
    dp = len(shards[0])
    if tied is None:
        is_tied = model.tied_embeddings and len(shards[0][0]) > 1
        tied = [(line[0], line[-1]) for of_shard in shards for line in of_shard] if is_tied else ()
    microbatches = tuple(microbatches or [8 * cp // micro_batch_size // dp] * dp)
    ranks = [
        Rank(rank, f"host{rank}", clusters[rank] if clusters else "one", stage, replica, shard)
        for shard, of_shard in enumerate(shards)
        for replica, pipeline in enumerate(of_shard)
        for stage, rank in enumerate(pipeline)
    ]
    return RunConfig(
        run_id="test",
        device="cpu",
        seed=7,
        steps=steps,
        global_batch_size=micro_batch_size * sum(microbatches) // cp,
        micro_batch_size=micro_batch_size,
        microbatches=microbatches,
        pp=len(shards[0][0]),
        dp=dp,
        tp=len(shards),
        ep=ep,
        cp=cp,
        data_parallel="hierarchical" if clusters else "flat",
        zero=zero,
        schedule=schedule,
        chunks=chunks,
        extra_in_flight=tuple(extra_in_flight),
        room_in_flight=tuple(room_in_flight),
        lossiest_codec=lossiest_codec,
        recompute=recompute,
        optimizer_offload=optimizer_offload,
        lora=lora,
        value_type=value_type,
        fp8=fp8,
        compile=compile_blocks,
        model=model,
        weights=weights,
        emulation=emulation,
        data=DataSettings(
            str(corpus), "*.txt", documents=documents, validation_fraction=validation_fraction, teacher=teacher
        ),
        expected_tokenizer=expected_tokenizer,
        evaluation=evaluation,
        checkpoint=checkpoint,
        profile=profile,
        resume=resume,
        from_scratch=from_scratch,
        optimizer=OptimizerSettings(learning_rate, 0.0, 0, "constant", 0.1, 0.9, 0.95, grad_clip, router_balance),
        outer_sync=outer_sync,
        stages=tuple(Stage(index, first, stop) for index, (first, stop) in enumerate(pairwise(cuts))),
        ranks=tuple(ranks),
        groups=make_groups(shards, interface, chunks, codecs, clusters, tied, cp, max(1, ep // len(shards))),
        expectation=expectation,
        timeout_s=60.0,
        threads_per_rank=1,
    )


@dataclass(frozen=True)
class FinishedRun:
    """What a launch left behind; `metrics[rank]` are its lines in order."""

    exit_code: int
    stdout: str
    stderr: str
    metrics: dict[int, list[dict[str, Any]]]

    def losses(self) -> list[float]:
        """The loss curve as the last stages wrote it; all replicas must agree."""
        curves = [[line["loss"] for line in lines] for lines in self.metrics.values() if lines[0]["loss"] is not None]
        assert all(curve == curves[0] for curve in curves)
        return curves[0]


def launch(
    config: RunConfig,
    folder: Path,
    nproc: int | None = None,
    module: str = "holmes_runtime.train",
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> FinishedRun:
    """Trains `config` under torchrun on this machine, by `module` and with `variables`, and waits for the end."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.json"
    path.write_text(config.to_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(nproc or config.world_size)]
    command += ["--standalone", "--local-addr", "127.0.0.1"]  # torchrun binds a free port itself, so that none takes it
    command += ["--log-dir", str(folder / "torchrun"), "-m", "holmes_runtime.node.lean_start", module]
    command += [str(path), *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "GLOO_SOCKET_IFNAME": "lo",
        "HOLMES_METRICS_DIR": str(folder / "metrics"),
        **(variables or {}),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return FinishedRun(done.returncode, done.stdout, done.stderr, read_metrics(folder / "metrics"))


def read_metrics(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """The whole lines of every `metrics-rank<k>.jsonl` in `folder`; a rank may be writing one more."""
    files = {int(path.stem.removeprefix("metrics-rank")): path for path in folder.glob("metrics-rank*.jsonl")}
    return {rank: [json.loads(line) for line in path.read_text().split("\n")[:-1]] for rank, path in files.items()}
