"""Engines: the bundled runtime, or other software whose step the planner predicts.

An engine is a named set of settings (`trainer.engine` in job.yaml) with its own GPU speeds (gpu_speeds.py). All
formulas are the same. Published rows are inventories and jobs with such a name, see benchmarks/published_steps. The
shares and the memory were fitted to every second of those rows by `python -m benchmarks.published_steps.fit`. A
trainer that is launched is one of these, restricted to the features of its present version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from holmes_core.records.job import EngineName, Job
from holmes_core.records.trainer_settings import TrainerSettings
from holmes_runtime.config.schedule import ScheduleName

EVERY_SCHEDULE: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "eager", "interleaved", "zero-bubble")
MEGATRON_SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "interleaved")
Degree = Literal["tp", "pp"]
Reduces = Literal["inside", "all", "last"]
BOTH: tuple[Degree, ...] = ("tp", "pp")


@dataclass(frozen=True)
class Engine:
    """The way software trains. Each default describes the bundled runtime.

    sequence_parallel: tensor shards split sequences as well: always, with selective recomputation only, or never.
    fused_attention: no scores are kept. chunked_loss: no fp32 copy of all logits. shards_states: replicas share the
    optimizer states and each updates a part. shards_weights: it has ZeRO-3. keeps_rounded: weights in the job's
    precision exist next to fp32 masters. keeps_reduced: a rank keeps its part of the reduced gradients apart from the
    sums. reduced_bytes, gathered_bytes: per parameter, when its gradient is summed and reduced and its weight gathered;
    None: the bytes of the weight. gathers_first: during the first forward; otherwise gradients are all-reduced.
    overlaps_exchange: bucket by bucket during the last backward; otherwise after it. reduces: when ZeRO-3 reduces
    gradients. inside: every micro-batch in groups that share weights, and once a step among copies. all: every
    micro-batch among all replicas, but once in a pipeline. last: once, with whole gradients until then.

    exposed_tp: share of tensor parallel collectives' seconds that matrix products do not hide. inside_share: share of
    the links inside a host that collectives get. edge_share, exchange_share: shares of a host's NICs that messages and
    exchanges get. growth: the fraction of compute time that each doubling of the ranks adds.

    reserve_bytes and memory_margin: kept free on a GPU; None: as in memory_margin.py. activation_factor: its
    activations over the runtime's.

    schedules, degrees, cuts: those it has; it always has dp. free_degrees: those that the planner may set above 1,
    since the engine needs nothing from the model for it; job.yaml fixes the others. unequal_replicas: some may run one
    micro-batch more. host_states: optimizer states in host memory. two_levels: gradients are summed inside clusters
    first, or weights are sharded inside each (HSDP). copies_update: in two levels, each cluster keeps states and
    updates itself (HSDP, or instances of Megatron's distributed optimizer) after clusters all-reduced the gradients.
    overlaps_levels: one bucket is exchanged inside clusters while another is exchanged between them. shards_tied:
    weights can be sharded with tied tables too. has_experts: its layers may have experts and the other keys of
    `ModelShape.beyond_bundled`. context: it has context parallelism; keys and values go around a ring during attention,
    or are gathered before it. repeats_activation: selective recomputation also repeats the activation of an MLP; every
    engine may repeat that of experts. unsharded: the engine without ZeRO-3, if it differs.
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
        """Return the bytes per parameter when reduced and when gathered, for weights of `value_bytes`."""
        return self.reduced_bytes, value_bytes if self.gathered_bytes is None else self.gathered_bytes

    def across_bytes(self, value_bytes: int, pp: int, num_microbatches: int) -> tuple[int, int]:
        """Return the same between clusters, in two levels: reduced, and gathered as gradients or as updated weights.

        If every micro-batch exchanges them, the bytes of all micro-batches are added up.
        """
        reduced, gathered = self.travels_bytes(value_bytes)
        times = num_microbatches if self.reduces == "all" and pp == 1 else 1
        return (reduced * times, (reduced if self.copies_update else gathered) * times)

    def whole_bytes(self, value_bytes: int, pp: int, num_microbatches: int) -> int:
        """Return the bytes per parameter that a ZeRO-3 rank keeps whole until the last micro-batch.

        A pipeline of torch also keeps weights from the first backward on.
        """
        if num_microbatches == 1 or self.reduces == "inside" or (self.reduces == "all" and pp == 1):
            return 0
        return value_bytes + self.reduced_bytes if pp > 1 else value_bytes

    @property
    def has_instances(self) -> bool:
        """True if each cluster may keep its own optimizer states while every rank has whole weights."""
        return self.copies_update and not self.shards_weights


OTHER = Engine(schedules=MEGATRON_SCHEDULES, unequal_replicas=False, host_states=False, two_levels=False)
# Software of 2021 and 2022: no fused kernels, and gradients are all-reduced in fp32 after the last backward.
OLDER = replace(
    OTHER,
    sequence_parallel="never",
    fused_attention=False,
    chunked_loss=False,
    shards_states=False,
    gathered_bytes=4,
    gathers_first=False,
    overlaps_exchange=False,
    reserve_bytes=0,
    memory_margin=0.0,
)
MEGATRON_2021 = replace(OLDER, sequence_parallel="selective", exchange_share=0.959)  # Megatron-LM as published
# Megatron-DeepSpeed with ZeRO-1, as run by BigScience and vTrain's authors: gradients in 16 bits, and messages far
# below the NICs' rate.
MEGATRON_DEEPSPEED = replace(
    OLDER,
    shards_states=True,
    keeps_reduced=False,
    reduced_bytes=2,
    gathered_bytes=2,
    edge_share=0.197,
    exchange_share=0.894,
)
# Megatron-Core of 2024 in NeMo, with the distributed optimizer and all of its overlaps. Its steps grow by 2.2 % from
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
# torch's FSDP as llm-foundry and torchtitan run it: the sharded fp32 weights are the masters. With replicas in several
# clusters, it shards inside each cluster (HSDP).
FSDP = replace(OTHER, shards_weights=True, keeps_rounded=False, two_levels=True, copies_update=True)
# torch's DistributedDataParallel: fp32 weights, all-reduced bucket by bucket during the backward, and updated by all.
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
# A script with FSDP2, its own or accelerate's. It has no pipeline, and tensor parallelism needs a plan from the model.
# FSDP2 reduces in every backward unless set_requires_gradient_sync(False) is called, as accelerate does.
FSDP_SCRIPT = replace(
    FSDP, reduces="all", schedules=("1f1b",), degrees=("tp",), free_degrees=(), shards_tied=True, unsharded=DDP
)
ENGINES: dict[EngineName, Engine] = {
    "holmes": Engine(shards_weights=True, context="gather"),
    # Megatron-LM of 2026: 1F1B or interleaved, and any cut by its layout. With several instances of its optimizer, one
    # stream reduces each bucket inside an instance and then between instances before it takes the next bucket.
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
    # The version of 2020 with torch's data parallel wrapper: 16-bit gradients, bucket by bucket during the backward.
    "megatron-2020": replace(MEGATRON_2021, reduced_bytes=2, gathered_bytes=2, overlaps_exchange=True),
    "megatron-2021": MEGATRON_2021,
    "megatron-deepspeed": MEGATRON_DEEPSPEED,
    "megatron-2024": MEGATRON_2024,
    # The software that Sailor's authors ran on GH200, in fp32.
    "sailor": replace(
        OLDER,
        exposed_tp=0.69,
        inside_share=2 / 3,
        inside_latency_s=124e-6,  # includes all other waits of a layer, whatever its shape
        edge_share=0.757,
        exchange_share=0.703,
        reserve_bytes=4_900_000_000,
        activation_factor=1.95,
    ),
}


CHOICES = (
    *("schedules", "degrees", "free_degrees", "cuts", "unequal_replicas", "host_states"),
    *("two_levels", "copies_update", "overlaps_levels"),
)


class FreeTrainer(TrainerSettings):
    """A trainer as fast as its engine but with every choice of the bundled runtime. It prices missing features."""


class LongContextTrainer(TrainerSettings):
    """A trainer as fast as its engine, with context parallelism by a ring."""


def expert_shards(job: Job, tp: int) -> int:
    """Return the number of ranks that share a layer's experts: `ep`, or at least `tp` in the bundled runtime."""
    return max(tp, job.ep) if job.is_bundled and job.model.experts is not None else job.ep


def sends_once(job: Job) -> bool:
    """Return True if the command's dispatcher sends a token once to each host: Megatron-Core's `flex`."""
    return job.trainer is not None and (job.trainer.values("--moe-token-dispatcher-type") or ())[-1:] == ("flex",)


def engine_of(job: Job) -> Engine:
    """Return the engine that `job` names, for its ZeRO stage.

    In the bundled runtime, replicas that share experts or sequences run equally many micro-batches. Replicas that share
    experts or train adapters have whole weights. FP8 excludes tensor shards and zero-bubble.
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
    if job.engine == "torchtitan" and job.model.tied_embeddings:  # it has no pipeline of those
        engine = replace(engine, shards_tied=True, schedules=("1f1b",), degrees=("tp",), free_degrees=("tp",))
    return engine
