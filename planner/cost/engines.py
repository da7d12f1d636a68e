"""Engines: the bundled runtime, or other software whose step the planner then predicts.

An engine is a set of settings by name, `trainer.engine` of job.yaml, and has speeds of GPUs of its own (gpu_speeds.py).
All formulas are the same: published rows are inventories and jobs with such a name, see benchmarks/published_steps. The
shares and the memory were fitted to every second of those rows, by `python -m benchmarks.published_steps.fit`. A
trainer that is launched is one of these, restricted to what its present version can run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from holmes_core.records.job import EngineName, Job
from holmes_core.records.trainer_settings import TrainerSettings
from holmes_runtime.config.run_settings import Recompute
from holmes_runtime.config.schedule import ScheduleName

EVERY_SCHEDULE: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "eager", "interleaved", "zero-bubble")
MEGATRON_SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "interleaved")
Degree = Literal["tp", "pp"]
Reduces = Literal["inside", "all", "last"]
BOTH: tuple[Degree, ...] = ("tp", "pp")


@dataclass(frozen=True)
class Engine:
    """The way software trains; each default is that of the bundled runtime.

    sequence_parallel: tensor shards split sequences as well, with selective recomputation alone, or never.
    fused_attention: no scores are kept. chunked_loss: no fp32 copy of all logits. shards_states: optimizer states over
    replicas, which each update a part. shards_weights: it has ZeRO-3. keeps_rounded: weights in the job's precision
    stand next to fp32 masters. keeps_reduced: a rank keeps its part of the reduced gradients apart from the
    sums. reduced_bytes, gathered_bytes: a parameter's, as its gradient is summed and reduced, and its weight gathered;
    None: as many as the weight has. gathers_first: under the first forward, else gradients are all-reduced.
    overlaps_exchange: bucket by bucket under the last backward, else after all of it. reduces: under ZeRO-3, gradients
    of every micro-batch inside the groups that share weights and once a step among copies; of every micro-batch among
    all, but in a pipeline once; or once, with whole gradients until then.

    exposed_tp: share of the seconds of tensor parallel collectives that matrix products do not hide. inside_share:
    share of the links inside a host that collectives get. edge_share, exchange_share: shares of a host's NICs that
    messages and exchanges get. growth: seconds of compute that each doubling of the ranks adds, as a part.

    reserve_bytes and memory_margin: kept free on a GPU; None: as memory_margin.py has it. activation_factor: its
    activations over the runtime's.

    schedules, degrees, cuts: the ones it has; dp it always has. free_degrees: what the planner may choose above 1, as
    the engine needs nothing from the model for it; others are as job.yaml fixes them. unequal_replicas: each may run a
    micro-batch more than others. host_states: optimizer states in host memory. two_levels: gradients are added up
    inside clusters first, or weights sharded inside each (HSDP). copies_update: in two levels each cluster keeps states
    for itself (HSDP, or instances of Megatron's distributed optimizer) and updates itself, after clusters all-reduced
    the gradients. overlaps_levels: a bucket is exchanged inside clusters while another one is between them.
    shards_tied: weights are sharded with tied tables as well. has_experts: its layers may have experts, and the other
    keys of `ModelShape.beyond_bundled`. context: it has context parallelism, and keys and values go around a ring under
    the attention, or are gathered before it. repeats_activation: under selective recomputation, too, the one of an MLP;
    of experts every engine may. unsharded: the engine as it is without ZeRO-3, where that is another one.
    """

    sequence_parallel: Literal["always", "selective", "never"] = "always"
    fused_attention: bool = True
    chunked_loss: bool = True
    shards_states: bool = True
    shards_weights: bool = False
    keeps_rounded: bool = True
    keeps_reduced: bool = True
    reduced_bytes: int = 4
    gathered_bytes: int | None = None
    gathers_first: bool = True
    overlaps_exchange: bool = True
    reduces: Reduces = "inside"
    exposed_tp: float = 1.0
    inside_share: float = 0.8  # fitted on the A100 rows, see docs/cost-model.md
    inside_latency_s: float = 3.4e-6  # of one hop, fitted together with it
    edge_share: float = 1.0
    exchange_share: float = 1.0
    growth: float = 0.0
    reserve_bytes: int | None = None
    memory_margin: float | None = None
    activation_factor: float = 1.0
    schedules: tuple[ScheduleName, ...] = EVERY_SCHEDULE
    degrees: tuple[Degree, ...] = BOTH
    free_degrees: tuple[Degree, ...] = BOTH
    cuts: Literal["any", "even"] = "any"
    unequal_replicas: bool = True
    host_states: bool = True
    two_levels: bool = True
    copies_update: bool = False
    overlaps_levels: bool = True
    shards_tied: bool = False
    has_experts: bool = False
    repeats_activation: bool = True
    context: Literal["ring", "gather"] | None = None
    unsharded: Engine | None = None

    def travels_bytes(self, value_bytes: int) -> tuple[int, int]:
        """Return the bytes of a parameter of so many, reduced and gathered."""
        return self.reduced_bytes, value_bytes if self.gathered_bytes is None else self.gathered_bytes

    def across_bytes(self, value_bytes: int, pp: int, num_microbatches: int) -> tuple[int, int]:
        """Return the same between clusters, in two levels: reduced, and gathered as gradients or as updated weights.

        Where that is done in every micro-batch, the bytes of all are added up.
        """
        reduced, gathered = self.travels_bytes(value_bytes)
        times = num_microbatches if self.reduces == "all" and pp == 1 else 1
        return (reduced * times, (reduced if self.copies_update else gathered) * times)

    def whole_bytes(self, value_bytes: int, pp: int, num_microbatches: int) -> int:
        """Return the bytes of a parameter that a rank of ZeRO-3 keeps whole until the last micro-batch.

        A pipeline of torch keeps weights, too, from the first backward on.
        """
        if num_microbatches == 1 or self.reduces == "inside" or (self.reduces == "all" and pp == 1):
            return 0
        return value_bytes + self.reduced_bytes if pp > 1 else value_bytes

    @property
    def has_instances(self) -> bool:
        """True if clusters may keep optimizer states each for itself, while every rank has whole weights."""
        return self.copies_update and not self.shards_weights

    def shards_sequences(self, recompute: Recompute) -> bool:
        """Return True if tensor shards split sequences."""
        return self.sequence_parallel == "always" or self.sequence_parallel == recompute


OTHER = Engine(schedules=MEGATRON_SCHEDULES, unequal_replicas=False, host_states=False, two_levels=False)
# Megatron-LM as it was published in 2021 and 2022: all gradients are all-reduced in fp32 after the last backward.
MEGATRON_2021 = replace(
    OTHER,
    sequence_parallel="selective",
    fused_attention=False,
    chunked_loss=False,
    shards_states=False,
    gathered_bytes=4,
    gathers_first=False,
    overlaps_exchange=False,
    exchange_share=0.959,
    reserve_bytes=0,
    memory_margin=0.0,
)
# Megatron-DeepSpeed with ZeRO-1, as BigScience and vTrain's authors ran it: gradients in 16 bits, and messages far
# below the NICs' rate.
MEGATRON_DEEPSPEED = replace(
    OTHER,
    sequence_parallel="never",
    fused_attention=False,
    chunked_loss=False,
    keeps_reduced=False,
    reduced_bytes=2,
    gathered_bytes=2,
    gathers_first=False,
    overlaps_exchange=False,
    edge_share=0.197,
    exchange_share=0.894,
    reserve_bytes=0,
    memory_margin=0.0,
)
# Megatron-Core of 2024, in NeMo, with distributed optimizer, and all overlaps that it has. Its steps grow by 2.2 % from
# 128 to 2,048 GPUs and by 2.7 % from 16 to 2,048 (V8, V9 of docs/cost-model.md).
MEGATRON_2024 = replace(
    OTHER,
    chunked_loss=False,
    keeps_reduced=False,
    growth=0.0045,
    has_experts=True,
    exposed_tp=0.169,
    inside_share=0.72,
    exchange_share=0.929,
    reserve_bytes=0,
    memory_margin=0.0,
)
# torch's FSDP, as llm-foundry and torchtitan run it: the fp32 weights that are sharded are the masters. It shards
# inside each cluster where replicas are in several (HSDP).
FSDP = replace(OTHER, shards_weights=True, keeps_rounded=False, two_levels=True, copies_update=True)
# torch's DistributedDataParallel: fp32 weights, all-reduced bucket by bucket under the backward, and updated by all.
DDP = replace(
    OTHER,
    chunked_loss=False,
    shards_states=False,
    keeps_rounded=False,
    gathered_bytes=4,
    gathers_first=False,
    schedules=("1f1b",),
    degrees=(),
    free_degrees=(),
)
# A script with FSDP2, its own or that of accelerate: no pipeline. Its tensor parallelism needs a plan of the model's.
# FSDP2 reduces in every backward unless set_requires_gradient_sync(False) is called, as accelerate does.
FSDP_SCRIPT = replace(
    FSDP, reduces="all", schedules=("1f1b",), degrees=("tp",), free_degrees=(), shards_tied=True, unsharded=DDP
)
ENGINES: dict[EngineName, Engine] = {
    "holmes": Engine(shards_weights=True, context="gather"),
    # Megatron-LM of 2026: 1F1B or interleaved, and any cut by its layout. With several instances of its
    # optimizer one stream reduces a bucket inside an instance, then between instances, and then takes the next bucket.
    "megatron": replace(
        MEGATRON_2024,
        schedules=("1f1b", "interleaved"),
        two_levels=True,
        copies_update=True,
        overlaps_levels=False,
        repeats_activation=False,
        context="ring",
    ),
    "torchtitan": replace(FSDP, reduces="all", context="gather"),
    # Its pipeline module cuts by number, type or parameters of layers, and its tensor parallelism is the model's own.
    "deepspeed": replace(MEGATRON_DEEPSPEED, schedules=("1f1b",), free_degrees=("pp",), cuts="even"),
    "accelerate": replace(FSDP_SCRIPT, reduces="last"),
    "torch": FSDP_SCRIPT,
    "fsdp": FSDP,
    # As it was in 2020, with torch's data parallel wrapper: gradients in 16 bits, bucket by bucket under the backward.
    "megatron-2020": replace(MEGATRON_2021, reduced_bytes=2, gathered_bytes=2, overlaps_exchange=True),
    "megatron-2021": MEGATRON_2021,
    "megatron-deepspeed": MEGATRON_DEEPSPEED,
    "megatron-2024": MEGATRON_2024,
    # What Sailor's authors ran on GH200, in fp32.
    "sailor": replace(
        OTHER,
        sequence_parallel="never",
        fused_attention=False,
        chunked_loss=False,
        shards_states=False,
        gathered_bytes=4,
        gathers_first=False,
        overlaps_exchange=False,
        exposed_tp=0.69,
        inside_share=2 / 3,
        inside_latency_s=124e-6,  # with what else a layer of any shape waits for
        edge_share=0.757,
        exchange_share=0.703,
        reserve_bytes=4_900_000_000,
        memory_margin=0.0,
        activation_factor=1.95,
    ),
}


CHOICES = (
    *("schedules", "degrees", "free_degrees", "cuts", "unequal_replicas", "host_states"),
    *("two_levels", "copies_update", "overlaps_levels"),
)


class FreeTrainer(TrainerSettings):
    """A trainer as fast as its engine, with every choice of the bundled runtime: the price of what an engine lacks."""


class LongContextTrainer(TrainerSettings):
    """A trainer as fast as its engine, with context parallelism by a ring."""


def expert_shards(job: Job, tp: int) -> int:
    """Return the ranks that share a layer's experts: a group of `ep`; in the bundled runtime `tp` shards at least."""
    return max(tp, job.ep) if job.is_bundled and job.model.experts is not None else job.ep


def sends_once(job: Job) -> bool:
    """Return True if the command's dispatcher sends a token once to a host: `flex` of Megatron-Core."""
    return job.trainer is not None and (job.trainer.values("--moe-token-dispatcher-type") or ())[-1:] == ("flex",)


def engine_of(job: Job) -> Engine:
    """Return the engine that `job` names, as its stage of ZeRO makes it.

    The bundled runtime's replicas that share experts or sequences run equally many micro-batches, and the former have
    whole weights, as have those that train adapters. In FP8 it has no tensor shards and no zero-bubble.
    """
    engine = ENGINES[job.engine]
    if job.trainer is None and (job.ep > 1 or job.cp > 1):
        engine = replace(engine, unequal_replicas=False, shards_weights=engine.shards_weights and job.ep == 1)
    if job.trainer is None and job.trainable is not None:
        engine = replace(engine, shards_weights=False)
    if job.trainer is None and job.fp8:
        engine = replace(
            engine, free_degrees=("pp",), schedules=tuple(each for each in EVERY_SCHEDULE if each != "zero-bubble")
        )
    if engine.unsharded is not None and job.zero != 3:
        engine = engine.unsharded
    if isinstance(job.trainer, LongContextTrainer):
        engine = replace(engine, context="ring")
    if isinstance(job.trainer, FreeTrainer):
        engine = replace(engine, **{name: getattr(ENGINES["holmes"], name) for name in CHOICES})
    return engine
