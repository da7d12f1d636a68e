"""Options of Megatron-LM's parser that an import understands, as of its commit d98e8a64. All others are listed.

The parser takes no abbreviations, and no value begins with two dashes: the values of an option end at the next one.
"""

from __future__ import annotations

from holmes_core.trainers.imported_job import OptionRule

# The shape, the batch and the length; each also stays in the command.
TAKEN = {
    **dict.fromkeys(("--num-layers", "--encoder-num-layers"), "model.num_layers"),
    "--hidden-size": "model.hidden_size",
    "--ffn-hidden-size": "model.ffn_hidden_size",
    "--num-attention-heads": "model.num_heads",
    **dict.fromkeys(("--group-query-attention", "--num-query-groups"), "model.num_kv_heads"),
    "--kv-channels": "model.head_dim",
    **dict.fromkeys(("--vocab-size", "--padded-vocab-size", "--tokenizer-type", "--merge-file"), "model.vocab_size"),
    **dict.fromkeys(("--make-vocab-size-divisible-by", "--no-pad-vocab-size"), "model.vocab_size"),
    "--disable-pad-vocab-size": "model.vocab_size",
    "--untie-embeddings-and-output-weights": "model.tied_embeddings",
    **dict.fromkeys(("--swiglu", "--normalization", "--position-embedding-type"), "model.family"),
    "--disable-bias-linear": "model.family",
    "--qk-layernorm": "model.qk_norm",
    "--add-qkv-bias": "model.qkv_bias",
    **dict.fromkeys(("--bf16", "--fp16"), "precision"),
    **dict.fromkeys(("--train-iters", "--train-samples"), "steps"),
}
# Taken out of the command, with the most values that each has.
DECIDED = {
    "--tensor-model-parallel-size": OptionRule("decided", "parallel.tp"),
    "--pipeline-model-parallel-size": OptionRule("decided", "parallel.pp"),
    "--context-parallel-size": OptionRule("decided", "parallel.cp"),
    "--pipeline-model-parallel-layout": OptionRule("decided", "parallel.layers"),
    **dict.fromkeys(
        ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"),
        OptionRule("decided", "parallel.layers"),
    ),
    **dict.fromkeys(
        ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"),
        OptionRule("decided", "parallel.layers", 0),
    ),
    **dict.fromkeys(
        ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
        OptionRule("decided", "parallel.chunks"),
    ),
    **dict.fromkeys(("--seq-length", "--encoder-seq-length"), OptionRule("decided", "model.seq_length")),
    "--micro-batch-size": OptionRule("decided", "parallel.micro_batch_size"),
    "--global-batch-size": OptionRule("decided", "global_batch_size"),
    **dict.fromkeys(
        ("--recompute-granularity", "--recompute-method", "--recompute-num-layers"),
        OptionRule("decided", "parallel.recompute"),
    ),
    "--recompute-activations": OptionRule("decided", "parallel.recompute", 0),
    "--recompute-modules": OptionRule(
        "decided", "norms, and experts' activations, under parallel.recompute selective", 20
    ),
    "--distribute-saved-activations": OptionRule("decided", "sequence parallelism leaves nothing to distribute", 0),
    "--use-distributed-optimizer": OptionRule("decided", "always on", 0),
    "--num-distributed-optimizer-instances": OptionRule(
        "decided", "one for each cluster that holds as many replicas, where memory allows that and it is faster, else 1"
    ),
    **dict.fromkeys(("--overlap-grad-reduce", "--overlap-param-gather"), OptionRule("decided", "always on", 0)),
    "--sequence-parallel": OptionRule("decided", "on where tp > 1", 0),
    "--use-tp-pp-dp-mapping": OptionRule("decided", "the plan places each rank, in the order tp-cp-ep-dp-pp", 0),
    "--nccl-communicator-config-path": OptionRule("decided", "each group gets the plan's network"),
    "--pipeline-model-parallel-comm-backend": OptionRule("decided", "each group gets the plan's network"),
    "--local-rank": OptionRule("decided", "the launch sets it"),
}
ADDED = {
    "--use-distributed-optimizer": "always on",
    "--overlap-grad-reduce": "always on",
    "--overlap-param-gather": "always on",
    "--sequence-parallel": "on where tp > 1",
}
"""Options that Holmes adds to every command, also where it had none."""
_EXPERTS = "mixtures of experts are not read from a command: their shape is of other options"
_SHAPE = "layers of another kind or of unequal shape are not planned"
_ELSEWHERE = "other options are in that file or checkpoint, which is not read"
_SHARDED = "sharding by Megatron's FSDP is not planned"
REFUSED = {
    **dict.fromkeys(("--num-experts", "--expert-model-parallel-size"), _EXPERTS),
    **dict.fromkeys(
        ("--hierarchical-context-parallel-sizes", "--hybrid-context-parallel", "--cp-comm-type"),
        "context parallelism is planned as one ring alone",
    ),
    "--multi-latent-attention": "latent attention is not planned: its parameters and FLOPs are others",
    "--mtp-num-layers": "layers that predict several tokens are not planned",
    **dict.fromkeys(("--hybrid-layer-pattern", "--hybrid-override-pattern", "--is-hybrid-model"), _SHAPE),
    **dict.fromkeys(("--heterogeneous-layers-config-path", "--heterogeneous-layers-config-encoded-json"), _SHAPE),
    **dict.fromkeys(("--experimental-attention-variant", "--enable-mhc-connections"), _SHAPE),
    "--tensor-parallel-num-weight-shards": "weight shards inside a tensor group are not planned",
    **dict.fromkeys(("--yaml-cfg", "--use-mp-args-from-checkpoint-args"), _ELSEWHERE),
    **dict.fromkeys(("--use-megatron-fsdp", "--use-torch-fsdp2"), _SHARDED),
    "--perform-rl-step": "reinforcement learning is not planned",
    "--fake-process-group": "no ranks communicate",
    **dict.fromkeys(("--deepspeed", "--deepspeed_config"), "Megatron-DeepSpeed, another software, is not planned"),
}
HARMLESS = {
    "--expert-model-parallel-size": "1",
    "--cp-comm-type": "p2p",
    "--tensor-parallel-num-weight-shards": "1",
}
"""Values at which a refused option changes nothing."""
_LOW_BITS = "counted as 16 bits: faster and smaller in truth"
_SEQUENCE = "counted as attention over the whole sequence"
_OFFLOADED = "counted on the GPU: less memory there in truth"
_TUNING = "its effect on the seconds is not modelled"
NOT_COUNTED = {
    "--attention-backend": "counted as flash attention",
    "--transformer-impl": "counted as transformer_engine",
    "--spec": "counted as plain layers",
    **dict.fromkeys(("--window-size", "--window-attn-skip-freq"), _SEQUENCE),
    "--optimizer": "counted as Adam, with two moments",
    **dict.fromkeys(("--rampup-batch-size", "--step-batch-size-schedule"), "every step is counted at the full batch"),
    "--grad-reduce-in-bf16": "counted as gradients reduced in fp32: less traffic in truth",
    "--use-checkpoint-args": "the checkpoint's shape is not read",
    **dict.fromkeys(("--use-precision-aware-optimizer", "--main-grads-dtype", "--main-params-dtype"), _LOW_BITS),
    **dict.fromkeys(("--exp-avg-dtype", "--exp-avg-sq-dtype"), _LOW_BITS),
    **dict.fromkeys(("--optimizer-cpu-offload", "--cpu-offloading-num-layers"), _OFFLOADED),
    "--fine-grained-activation-offloading": _OFFLOADED,
    **dict.fromkeys(
        (
            *("--tp-comm-overlap", "--no-overlap-p2p-communication", "--overlap-p2p-communication-warmup-flush"),
            *("--microbatch-group-size-per-virtual-pipeline-stage", "--overlap-param-gather-with-optimizer-step"),
            *("--defer-embedding-wgrad-compute", "--delay-wgrad-compute", "--use-nccl-ub", "--use-sharp"),
            *("--ddp-bucket-size", "--ddp-num-buckets", "--cuda-graph-impl", "--enable-cuda-graph"),
            *("--fp32-residual-connection", "--decrease-batch-size-if-needed"),
        ),
        _TUNING,
    ),
}
_LOW_BIT_PREFIXES = ("--fp8-", "--fp4-")
# Data, optimizer's numbers, logs and checkpoints. Of each, all options that begin so.
_KEPT_PREFIXES = (
    *("--adam-", "--lr", "--min-lr", "--weight-decay", "--start-weight-decay", "--end-weight-decay", "--decoupled-"),
    *("--log-", "--no-log-", "--timing-log-", "--wandb-", "--tensorboard-", "--one-logger-", "--no-one-logger"),
    *("--save", "--no-save-", "--load", "--no-load-", "--ckpt-", "--dist-ckpt-", "--non-persistent-", "--async-save"),
    *("--tokenizer-", "--no-tokenizer-", "--tiktoken-", "--vocab-file", "--eval-", "--exit-"),
    *("--data-path", "--data-args-path", "--data-cache-path", "--train-data-path", "--valid-data-path"),
    *("--test-data-path", "--per-split-data-args-path", "--split", "--mock-data", "--dataloader-", "--num-workers"),
    *("--loss-scale", "--initial-loss-scale", "--min-loss-scale", "--hysteresis", "--init-method-", "--clip-grad"),
    *("--rotary-", "--rope-", "--use-rope-scaling", "--no-rope-fusion", "--norm-epsilon", "--max-position-embeddings"),
    *("--attention-dropout", "--hidden-dropout", "--apply-layernorm-1p", "--seed", "--profile", "--manual-gc"),
    *("--no-mmap-bin-files", "--no-create-attention-mask-in-dataloader", "--use-mcore-models", "--use-flash-attn"),
    *("--distributed-timeout-", "--override-opt", "--use-checkpoint-opt", "--finetune", "--accumulate-allreduce-grads"),
    *("--calculate-per-token-loss", "--cross-entropy-", "--no-masked-softmax-fusion", "--empty-unused-memory-level"),
    *("--no-gradient-accumulation-fusion", "--no-bias-", "--distributed-backend", "--use-dist-ckpt"),
)


def megatron_rule(name: str) -> OptionRule:
    """Return the reading of an option by its name."""
    if name in TAKEN:
        return OptionRule("taken", TAKEN[name])
    if name in DECIDED:
        return DECIDED[name]
    if name in HARMLESS:
        return OptionRule("kept")
    if name in NOT_COUNTED or name.startswith(_LOW_BIT_PREFIXES):
        return OptionRule("not counted", NOT_COUNTED.get(name, _LOW_BITS))
    return OptionRule("kept" if name.startswith(_KEPT_PREFIXES) else "not understood")
