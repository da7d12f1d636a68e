"""Seconds of one slot's compute: a layer, the head, the optimizer. Pure functions of model, execution and speed.

Matrix products take FLOPs / rate. Everything else takes bytes moved / memory bandwidth, one operation after another.
"""

from __future__ import annotations

from holmes_core.records.job import Job
from holmes_runtime.config.model_shape import (
    ModelShape,
    attention_flops,
    head_flops,
    matrix_flops,
    routed_flops,
)
from holmes_runtime.config.trainable import matrix_size
from planner.cost.collectives import PassTimes, expert_holders
from planner.cost.counts import GRADIENT_BYTES, Execution, keeps_selectively
from planner.cost.eager import eager_bytes
from planner.cost.gpu_speeds import Speed
from planner.cost.trained import head_of, trained_layer

NO_TIME = PassTimes(0.0, 0.0)
# How often a forward moves a value through memory, counted on a layer's kernels. Norms: read and write, twice;
# bias, dropout and residual: two reads and a write, twice. GELU: read and write; SwiGLU: two reads and a write. Scores
# without a fused kernel: written, softmax, dropout, read.
HIDDEN_PASSES = 10
ACTIVATION_PASSES = {"gpt": 2, "llama": 3}
# Rows are sorted by expert before they are sent and after they arrive, and again on the way back. Each time they are
# read and written: Megatron-Core's token_dispatcher.py.
ROUTED_PASSES = 8
# The seconds of a forward in which the host reads the number of rows for each expert and launches the next kernels, and
# the share of a large product's rate that a grouped one reaches. GUESSES, chosen with V17's first four rows in view.
ROUTED_WAIT_S = 8e-4
GROUPED_SHARE = 0.9
# Seconds of a forward, and of half a backward, in which the host launches one expert's operators in the bundled
# runtime's loop (fp32 only). 64 experts of 1,024 on one H200, 2,048 rows each: 0.44 ms, 0.56 with the rest compiled.
EXPERT_LAUNCH_S = 5e-4
NORM_PASSES = 4  # of the passes through hidden states, those that selective recomputation repeats
ACTIVATION_PASSES_AGAIN = {"gpt": 2, "llama": 5}  # one more SiLU for the product's gradients: read and write
SCORE_PASSES = 6
# Passes of an adapter's input and of its result, forward and backward. A reads the input. The result is written by B,
# read with the matrix's, and written as their sum. Its gradient is read for B and for B's input; A reads the input once
# more, and the input's gradient is written, read with the matrix's, and written as their sum.
ADAPTER_PASSES, ADAPTER_PASSES_BACK = (1, 4), (5, 2)
LOGIT_BYTES = 18  # moved per logit in addition to the logits: a third of the traffic of the fp32 loss and its gradient
SUM_BYTES = 8  # a backward reads and writes the fp32 sum of each gradient; it also reads the gradient
UPDATE_BYTES = 28  # AdamW reads and writes master and moments (24), reads the gradient (4); the weight is extra
# A backward in two halves (split_backward.py) over a whole one: 1.1 to 1.5, least for large matrices. Measured on
# 2026-11-21 with torch 2.13 on one CPU thread of a busy machine: CPU seconds of four layers of seven GPTs and Llamas,
# hidden size 256 and 512, each the median of six or ten; this is the median of all. Not measured on GPUs.
SPLIT_FACTOR = 1.2


def layer_s(model: ModelShape, execution: Execution, speed: Speed, collectives: PassTimes = NO_TIME) -> PassTimes:
    """Return the seconds of one layer's compute on a shard and micro-batch, without the tensor parallel `collectives`.

    No forward, collectives included, is shorter than the launch of its kernels. The backward takes twice the forward
    (Narayanan et al., SC 2021) plus recomputation, adding to the gradient sums and the extra bytes of eager operators.
    Under LoRA, matrices need the gradients of their inputs only, which take as long as one forward.
    """
    parts = execution.tp * execution.cp
    flops, routed = (count(model, execution.micro_batch_size) / parts for count in (matrix_flops, routed_flops))
    matrices_s = _matrix_s(flops - routed, model, execution, speed) / speed.layer_speed_up
    if routed:
        matrices_s += _experts_s(routed, model, execution, speed)
    core_s, frozen_s = attention_core_s(model, execution, speed), matrices_s * (execution.lora is not None)
    adapters = _adapters_s(model, execution, speed)
    compute_s = matrices_s + adapters.forward_s + core_s
    compute_s += _memory_s(_moved_values(model, execution) * execution.value_bytes, speed)
    launch_s = speed.launch_s
    if launch_s and execution.splits_experts and execution.value_bytes == GRADIENT_BYTES:
        launch_s += EXPERT_LAUNCH_S * (model.experts or 0) / expert_holders(execution)
    fused_s = max(compute_s, launch_s - collectives.forward_s)
    excess = eager_bytes(model, execution)
    forward_s = fused_s + _memory_s(excess.forward, speed)
    selective_s = _made_again_s(model, execution, speed) if execution.fused_attention else core_s
    again_s = {"none": 0.0, "selective": selective_s, "full": forward_s}[execution.recompute]
    sums_s = _accumulate_s(trained_layer(model, execution.trainable, execution.tp, execution.ep), execution, speed)
    backward_s = 2 * (fused_s - adapters.forward_s) + adapters.backward_s - frozen_s
    return PassTimes(forward_s, backward_s + _memory_s(excess.backward, speed) + again_s + sums_s)


def head_s(model: ModelShape, execution: Execution, speed: Speed) -> PassTimes:
    """Return the seconds of the head and the loss on one shard and micro-batch. The backward takes twice the forward.

    A frozen head has no gradient of its weights.
    """
    flops = head_flops(model, execution.micro_batch_size) / (execution.tp * execution.cp)
    logits = execution.tokens(model) * model.vocab_size / execution.tp
    matrix_s = _matrix_s(flops, model, execution, speed)
    forward_s = matrix_s + _memory_s(logits * (execution.value_bytes + LOGIT_BYTES), speed)
    sums_s = _accumulate_s(head_of(model, execution.trainable, execution.tp).trained, execution, speed)
    return PassTimes(forward_s, 2 * forward_s - matrix_s * (execution.lora is not None) + sums_s)


def split_factor(job: Job) -> float:
    """Return the seconds of a backward in two halves over a whole one: 1 for emulated compute, measured if known."""
    if job.compute.emulate is not None:
        return 1.0
    overheads = job.compute.overheads
    return overheads.split_factor if overheads is not None and overheads.split_factor is not None else SPLIT_FACTOR


def optimizer_s(parameters: int, execution: Execution, speed: Speed) -> float:
    """Return the seconds of one optimizer step of a rank that holds `parameters` and updates 1/dp of them."""
    rate = speed.memory_bytes_per_s or speed.update_bytes_per_s
    return parameters / execution.dp * (UPDATE_BYTES + execution.value_bytes) / rate if rate else 0.0


def offloaded_update_s(
    parameters: int, execution: Execution, copy_bytes_per_s: float, update_bytes_per_s: float
) -> float:
    """Return the seconds of one optimizer step on the CPU for a rank that holds `parameters` and updates 1/dp of them.

    Buckets overlap, so the slowest part counts: gradients to the host, AdamW there, or weights back.
    """
    copies_s = GRADIENT_BYTES / copy_bytes_per_s, execution.value_bytes / copy_bytes_per_s
    return parameters / execution.dp * max(*copies_s, (UPDATE_BYTES + execution.value_bytes) / update_bytes_per_s)


def _memory_s(size_bytes: float, speed: Speed) -> float:
    return size_bytes / speed.memory_bytes_per_s if speed.memory_bytes_per_s else 0.0


def _accumulate_s(parameters: int, execution: Execution, speed: Speed) -> float:
    """Return the seconds of adding the gradients of one micro-batch to their sums."""
    return _memory_s(parameters * (SUM_BYTES + execution.value_bytes), speed)


def _matrix_s(flops: float, model: ModelShape, execution: Execution, speed: Speed) -> float:
    """Return the seconds of matrix products that reach half the best rate at `half_size` tokens x hidden size / tp."""
    size = execution.tokens(model) * model.hidden_size / execution.tp
    return flops / speed.matrix_flops_per_s * (1 + speed.half_size / size)


def _adapters_s(model: ModelShape, execution: Execution, speed: Speed) -> PassTimes:
    """Return the seconds of one layer's adapters: their products, and their sums with the matrices' results."""
    if execution.lora is None:
        return NO_TIME
    sizes = [matrix_size(model, matrix) for matrix in execution.lora.targets]
    inputs, outputs = map(sum, zip(*sizes, strict=True))
    tokens = execution.tokens(model) / execution.tp
    products_s = _matrix_s(2 * tokens * execution.lora.rank * (inputs + outputs), model, execution, speed)
    sums_s = [
        _memory_s(tokens * (of_input * inputs + of_result * outputs) * execution.value_bytes, speed)
        for of_input, of_result in (ADAPTER_PASSES, ADAPTER_PASSES_BACK)
    ]
    return PassTimes(products_s + sums_s[0], 2 * products_s + sums_s[1])


def _experts_s(flops: float, model: ModelShape, execution: Execution, speed: Speed) -> float:
    """Return the seconds of the grouped products of a rank's experts, and the wait for the number of rows of each."""
    rows = execution.tokens(model) / execution.tp * execution.ep * (model.experts_per_token or 0)
    size = rows / (model.experts or 1) * (model.expert_size / execution.width_shards)
    return ROUTED_WAIT_S + flops / (GROUPED_SHARE * speed.matrix_flops_per_s) * (1 + speed.half_size / size)


def routed_row_s(model: ModelShape, execution: Execution, speed: Speed) -> float:
    """Return the seconds that one more row takes a rank's experts, forward and backward."""
    rows = execution.tokens(model) / execution.tp * (model.experts_per_token or 0)
    flops = routed_flops(model, execution.micro_batch_size) / (execution.tp * execution.cp)
    products_s = _experts_s(flops, model, execution, speed)
    values = ACTIVATION_PASSES[model.family] * model.expert_size + ROUTED_PASSES * model.hidden_size
    forward_s = (products_s - ROUTED_WAIT_S) / rows + _memory_s(values * execution.value_bytes, speed)
    return forward_s * (3 - (execution.lora is not None) + (execution.recompute == "full"))


def _moved_values(model: ModelShape, execution: Execution) -> float:
    """Return the number of values that one shard moves in a layer's forward for norms, residuals and activation.

    Rows are sorted before and after shards of an expert gather them.
    """
    hidden = HIDDEN_PASSES * model.hidden_size / (execution.tp if execution.sequence_parallel else 1)
    routed = ROUTED_PASSES * model.hidden_size * (model.experts_per_token or 0) * (1 + execution.etp) / 2
    inside = ACTIVATION_PASSES[model.family] * model.token_ffn_size
    return execution.tokens(model) * (hidden + inside / execution.tp + routed / execution.row_shards)


def _made_again_s(model: ModelShape, execution: Execution, speed: Speed) -> float:
    """Return the seconds of one layer's selective recomputation: both norms and, if it is repeated, the activation.

    Software without a fused kernel repeats its attention core instead.
    """
    norms = NORM_PASSES * model.hidden_size / (execution.tp if execution.sequence_parallel else 1)
    inside = ACTIVATION_PASSES_AGAIN[model.family] * model.token_ffn_size * execution.repeats_activation
    values = execution.tokens(model) * (norms + inside / execution.tp)
    rate = speed.memory_bytes_per_s or speed.update_bytes_per_s
    return values * execution.value_bytes / rate if rate and keeps_selectively(execution) else 0.0


def attention_core_s(model: ModelShape, execution: Execution, speed: Speed) -> float:
    """Return the seconds of one layer's attention core in a forward: queries x keys, softmax and scores x values."""
    rate = speed.attention_flops_per_s or speed.matrix_flops_per_s
    core_s = attention_flops(model, execution.micro_batch_size) / (execution.tp * execution.cp) / rate
    if execution.fused_attention:
        return core_s
    scores = execution.tokens(model) * model.seq_length * model.num_heads / execution.tp
    return core_s + _memory_s(scores * SCORE_PASSES * execution.value_bytes, speed)
