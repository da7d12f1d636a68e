"""Count the bytes that the parts of one training step need, with the source of each count.

Letters are as in holmes_runtime/config/model_shape.py, which counts parameters and FLOPs; t is the tensor
degree, v the bytes of a value. The counts hold for the bundled runtime: attention keeps no scores, and tensor
parallelism shards sequences too. Seconds are in compute_time.py and collectives.py.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

from holmes_core.records.job import Job
from holmes_runtime.config.codec import Codec, packed_bytes
from holmes_runtime.config.model_shape import (
    LOSS_CHUNK_BYTES,
    ModelShape,
    expert_parameters,
    table_parameters,
)
from holmes_runtime.config.run_settings import IslandsSettings, Recompute
from holmes_runtime.config.trainable import QKV, Lora, Trainable
from planner.cost.engines import engine_of, expert_shards, sends_once
from planner.cost.memory_margin import reserve_bytes, training_margin
from planner.cost.trained import embedding_of, head_of, layers_of

GRADIENT_BYTES = 4  # gradients are summed in fp32 at any precision
MOMENT_BYTES = 8  # AdamW's two moments, fp32
MASTER_BYTES = 4  # fp32 weights next to 16-bit ones
# Expert rows on the rank with the most of them, over the mean, with padding. GUESS, for routing balanced by a loss.
ROUTED_SKEW = 1.1


class Execution(NamedTuple):
    """The settings of every tasklet. `reserve_bytes` and `memory_margin` stay free on a GPU (memory_margin.py).

    Engines other than the bundled one may not shard sequences together with tensors. They may keep attention scores and
    an fp32 copy of all logits, need `activation_factor` times the activations, sum gradients in `sum_bytes`, and
    compute `slowdown` times as long (engines.py). `dp`: ranks that share a parameter's update. `masked`: a mask shows
    attention where documents end. `fused_operators`: operators between matrix products run in fused kernels, not one by
    one (eager). `ep`: ranks that share a layer's experts: ep / tp neighbouring replicas with all tensor shards. `etp`
    of them share each expert's width and gather their rows. If it `splits_experts`, as the bundled runtime does, each
    shard has a part of every expert's width and all rows. If it `sends_once`, each host gets a token's row once. `cp`:
    neighbouring replicas that share each sequence; if the engine `gathers_keys`, each of them holds all keys and values
    at once. `trainable` is None if all parameters are trained.
    """

    tp: int
    dp: int
    micro_batch_size: int
    value_bytes: int
    recompute: Recompute
    reserve_bytes: int = 0
    memory_margin: float = 0.0
    weight_shards: int = 1  # ranks that share a layer's weights and gradients under ZeRO-3
    optimizer_offload: bool = False
    outer_bytes: int = 0  # host memory per parameter of a rank's 1/dp, in an island
    sequence_parallel: bool = True
    fused_attention: bool = True
    masked: bool = False
    chunked_loss: bool = True
    fused_operators: bool = True
    activation_factor: float = 1.0
    sum_bytes: int = GRADIENT_BYTES
    keeps_rounded: bool = True
    keeps_reduced: bool = True
    whole_bytes: int = 0
    slowdown: float = 1.0
    ep: int = 1
    etp: int = 1
    splits_experts: bool = False
    sends_once: bool = False
    repeats_activation: bool = True
    cp: int = 1
    gathers_keys: bool = False
    trainable: Trainable | None = None

    def tokens(self, model: ModelShape) -> int:
        """Return the number of tokens of a micro-batch on one replica, all tensor shards together: b s / cp."""
        return self.micro_batch_size * model.seq_length // self.cp

    @property
    def row_shards(self) -> int:
        """The number of parts into which tensor shards divide the rows for experts."""
        return 1 if self.splits_experts else self.tp

    @property
    def width_shards(self) -> int:
        """The number of parts into which ranks divide an expert's width."""
        return self.tp if self.splits_experts else self.etp

    @property
    def lora(self) -> Lora | None:
        """The adapters that are trained in place of matrices."""
        return self.trainable.lora if self.trainable is not None else None

    @property
    def dense(self) -> Execution:
        """The execution of layers without experts. Megatron-Core does not repeat their activation under `moe_act`."""
        return self._replace(ep=1, repeats_activation=False)

    @property
    def expert_dp(self) -> int:
        """The number of ranks that hold the same experts and share their update."""
        return max(1, self.dp * self.tp // self.ep)


def make_execution(
    job: Job,
    tp: int,
    pp: int,
    dp: int,
    micro_batch_size: int,
    recompute: Recompute,
    weight_shards: int = 1,
    optimizer_offload: bool = False,
    instances: int = 1,
) -> Execution:
    """Return the execution of `job` with these degrees, in its precision and on its device."""
    engine = engine_of(job)
    updated_by = weight_shards if engine.copies_update and weight_shards > 1 else dp // instances
    return Execution(
        *(tp, updated_by if engine.shards_states else 1, micro_batch_size, job.value_bytes, recompute),
        *(reserve_bytes(job, tp, pp, dp), training_margin(job), weight_shards, optimizer_offload),
        sequence_parallel=engine.sequence_parallel in ("always", recompute),
        fused_attention=engine.fused_attention,
        masked=job.data is not None and job.data.is_masked(job.device, job.value_type, job.cp, job.model),
        chunked_loss=engine.chunked_loss,
        fused_operators=job.compiles,
        outer_bytes=outer_bytes(job.islands) if job.islands is not None else 0,
        activation_factor=engine.activation_factor,
        sum_bytes=engine.reduced_bytes,
        keeps_rounded=engine.keeps_rounded,
        keeps_reduced=engine.keeps_reduced,
        whole_bytes=engine.whole_bytes(job.value_bytes, pp, -(-job.batch_parts // (dp * micro_batch_size))),
        slowdown=1 + engine.growth * log2(tp * pp * dp),
        ep=expert_shards(job, tp),
        etp=job.etp,
        splits_experts=job.is_bundled,
        sends_once=sends_once(job),
        repeats_activation=engine.repeats_activation or job.model.experts is not None,
        cp=job.cp,
        gathers_keys=engine.context == "gather",
        trainable=job.trainable,
    )


def outer_bytes(islands: IslandsSettings) -> int:
    """Return the bytes of host memory, in fp32, per parameter of a rank's 1/dp. An island keeps its anchor and
    momentum, a codec's error, the correction of a delayed outer step, and one fragment's change and mean
    (holmes_runtime.outer). A setting that is left to the planner counts as its most expensive choice.
    """
    kept = 2 + (islands.codec != "none") + (islands.delay_steps != 0)
    return GRADIENT_BYTES * kept + ceil(2 * GRADIENT_BYTES / (islands.fragments or 1))


def edge_bytes(model: ModelShape, execution: Execution, codec: Codec = "none") -> int:
    """Return a shard's bytes per micro-batch and pass on a pipeline edge: v b s h / (t cp), or packed by `codec`."""
    return packed_bytes(codec, edge_values(model, execution), execution.value_bytes)


def edge_values(model: ModelShape, execution: Execution) -> int:
    """Return the number of values that cross an edge: b s h / (t cp)."""
    return execution.tokens(model) * model.hidden_size // execution.tp


def layer_activation_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes one shard keeps of one layer and micro-batch until its backward.

    These are values per token, counted as the storages that a forward of the runtime's model leaves, all sharded: the
    inputs of both norms, of q, k and v and of the MLP (4 h); attention's result (q); q, k and v (q + 2 k; a Llama's
    after rotation; with `qk_norm` also queries and keys before it, q + k); and the inside of the MLP (2 f; SwiGLU 4 f).
    Selective recomputation keeps the results of matrices and attention, but not the results of norms (2 h less) nor,
    if it `repeats_activation`, half of the MLP's inside. f is the width of all experts of a token. Rows that arrived
    for experts are kept too (h each); shards that split experts keep all of these rows, and the gathered tokens (h).
    Full recomputation keeps only the layer's input (h). A compiled SwiGLU keeps f less: five compiled Llamas matched
    this to the byte (H200, torch 2.11). Without sequence parallelism, the inputs of norms and matrices are whole on
    every shard. With a mask, k and v are kept once for every query head (2 q - 2 k more). A frozen matrix's input is
    kept only for its adapter, which has no dropout, or if a backward needs it anyway, as it needs attention's result.
    Adapters keep the values between their two matrices (r each) on every shard. Keys and values gathered from other
    replicas are kept too, unless anything is recomputed.
    """
    h, f, q, k = model.hidden_size, model.token_ffn_size, model.query_size, model.kv_size
    if model.experts is not None:
        f += round((ROUTED_SKEW - 1) * model.routed_size)
    selective = keeps_selectively(execution)
    inputs, inside = (2 if selective else 4) * h, 4 * f if model.family == "llama" else 2 * f
    if selective and execution.repeats_activation:
        inside //= 2
    elif execution.fused_operators and execution.tp == 1 and model.family == "llama":
        inside -= f
    gathered = execution.cp if execution.gathers_keys else 1
    attended = k if gathered > 1 and execution.recompute != "none" else (q if execution.masked else k) * gathered
    inside += q + model.attended_size + 2 * attended + (q + k) * model.qk_norm
    between = 0
    if execution.lora is not None:
        between = execution.lora.rank * len(execution.lora.targets)
        if not selective:
            inputs -= h * (not execution.lora.has(*QKV)) + h * (not execution.lora.has("gate", "up"))
            inside -= f * (not execution.lora.has("down"))
    whole, sharded = (between, inputs + inside) if execution.sequence_parallel else (inputs + between, inside)
    if model.experts is not None:
        rows = round(ROUTED_SKEW * h * (model.experts_per_token or 0)) * execution.etp
        is_whole = execution.splits_experts and execution.tp > 1
        whole, sharded = (whole + rows + h, sharded) if is_whole else (whole, sharded + rows)
    if execution.recompute == "full":
        whole, sharded = (0, h) if execution.sequence_parallel else (h, 0)
    return execution.value_bytes * execution.tokens(model) * (whole * execution.tp + sharded) // execution.tp


def recomputed_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes rebuilt at once: a layer without its input under full recomputation, else the MLP's inside."""
    if keeps_selectively(execution):
        width = model.token_ffn_size * (2 if model.family == "llama" else 1)
        width = width if execution.repeats_activation else model.hidden_size
        return execution.value_bytes * execution.tokens(model) * width // execution.tp
    if execution.recompute != "full":
        return 0
    whole = layer_activation_bytes(model, execution._replace(recompute="none"))
    return whole - layer_activation_bytes(model, execution)


def gathered_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes of gathered hidden states and their gradient: 2 v b s h / cp; 0 without sequence shards."""
    parts = 2 * (execution.tp > 1 and execution.sequence_parallel)
    return parts * execution.value_bytes * execution.tokens(model) * model.hidden_size


def expert_gradient_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes of one layer's expert gradients and rows that the bundled runtime holds at once.

    Matrices are split by expert before the loop. All gradients stay until the last is done, and one of three is joined:
    4 / 3 v of the parameters (on CPU to 0.2 %). Rows sent between replicas exist twice more, unsorted.
    """
    routed = (model.experts_per_token or 0) * model.hidden_size * (execution.ep > execution.tp)
    numbers = expert_parameters(model, execution.ep) * 4 // 3 + 2 * execution.tokens(model) * routed
    return execution.splits_experts * execution.value_bytes * numbers


def key_value_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes of keys and values per layer for a shard's own tokens: 2 v k b s / (t cp)."""
    return 2 * execution.value_bytes * model.kv_size * execution.tokens(model) // execution.tp


def passing_key_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes of other replicas' keys and values, with their gradients, that a shard holds at once.

    A ring holds one replica's while the next one's arrive; gathering holds all of them. 0 without shared sequences.
    """
    held = 2 * (execution.cp if execution.gathers_keys else 2) * key_value_bytes(model, execution) * (execution.cp > 1)
    return held * model.query_size // model.kv_size if execution.masked else held  # repeated for each query head


def keeps_selectively(execution: Execution) -> bool:
    """Return True if only cheap values are recomputed.

    They are not if a compiler meets collectives in a layer. Without a fused kernel, attention's core is repeated.
    """
    is_cheap = execution.tp * execution.cp == 1 or not execution.fused_operators
    return execution.recompute == "selective" and execution.fused_attention and is_cheap


def state_bytes(parameters: int, execution: Execution, frozen: int = 0) -> int:
    """Return the bytes of weights (v), gradient sums (4), and this rank's 1/dp of masters (4 with 16-bit weights),
    moments (8) and, with several replicas, reduced gradients (4 as they arrive, 4 as they are kept). Another engine
    may not keep reduced gradients.

    Under ZeRO-3, weights and gradient sums are divided into `weight_shards` parts. If all replicas share them, the sums
    are the reduced gradients. Another engine may also keep `whole_bytes` of each parameter. Masters and moments may be
    in host memory instead. `frozen` parameters have weights only. Source: Rajbhandari et al., ZeRO, 2020, stages 1 and
    3; holmes_runtime.parallel.zero1 and zero3.
    """
    has_masters = execution.value_bytes < MASTER_BYTES
    sharded = MOMENT_BYTES + MASTER_BYTES * has_masters
    if execution.optimizer_offload:
        sharded = 0
    if execution.keeps_reduced and execution.dp > execution.weight_shards:
        sharded += 2 * GRADIENT_BYTES
    weight_bytes = execution.value_bytes if execution.keeps_rounded or not has_masters else 0
    kept = -(-parameters * (weight_bytes + execution.sum_bytes) // execution.weight_shards)
    kept += parameters * execution.whole_bytes if execution.weight_shards > 1 else 0
    return kept + -(-parameters * sharded // execution.dp) + _frozen_bytes(frozen, execution)


def _frozen_bytes(parameters: int, execution: Execution) -> int:
    """Return the bytes of frozen weights, which a ZeRO-3 pipeline may also keep whole."""
    keeps_weights = execution.whole_bytes > execution.value_bytes and execution.weight_shards > 1
    kept = -(-parameters * execution.value_bytes // execution.weight_shards)
    return kept + parameters * execution.value_bytes * keeps_weights


def whole_layers_bytes(model: ModelShape, execution: Execution, is_first: bool, is_last: bool) -> int:
    """Return the bytes of a rank's two largest layers, weights (v) and gradients (4): ZeRO-3 has two whole at once.

    The embedding (`is_first`) and the head (`is_last`) are layers of their own.
    """
    if execution.weight_shards == 1:
        return 0
    trainable, tp = execution.trainable, execution.tp
    parts = [layers_of(model, trainable, 1, tp, execution.ep)] * 2
    parts += [embedding_of(model, trainable, tp)] * is_first
    parts += [head_of(model, trainable, tp, is_first)] * is_last
    sizes = [execution.value_bytes * part.whole + GRADIENT_BYTES * part.trained for part in parts]
    return sum(sorted(sizes)[-2:])


def tied_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes per step that each of two ranks with a copy of a tied table sends: its piece's gradients."""
    is_trained = execution.trainable is None
    return GRADIENT_BYTES * table_parameters(model, execution.tp) // execution.dp * is_trained


def logit_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes of a shard's logits on the last stage (v) and of their two fp32 chunks in the loss.

    Their gradient takes their place, except in a user's own model. Without a chunked loss, the gradient is fp32 too.
    """
    logits = execution.tokens(model) * model.vocab_size // execution.tp
    if not execution.chunked_loss:
        return (execution.value_bytes + 2 * GRADIENT_BYTES) * logits
    copies = 1 if model.factory is None else 2
    return copies * execution.value_bytes * logits + 2 * min(GRADIENT_BYTES * logits, LOSS_CHUNK_BYTES)


def mask_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes of the mask that a stage's layers share: v b s^2; with cp > 1, (2 cp + 1) / 4 cp^2 of that."""
    whole, cp = execution.masked * execution.value_bytes * execution.tokens(model) * model.seq_length, execution.cp
    return whole * (2 * cp + 1) // (4 * cp) if cp > 1 else whole
