"""The command of Megatron-LM's pretrain_gpt.py as keys of job.yaml."""

from __future__ import annotations

import re

from holmes_core.errors import HolmesError
from holmes_core.trainers.command_line import TrainerCommand, shown
from holmes_core.trainers.imported_job import ImportedJob, OptionReader, OptionRow, job_sections, known, outer_rows
from holmes_core.trainers.megatron_options import ADDED, HARMLESS, REFUSED, megatron_rule

# Of tokenizers whose vocabulary has one size; of all others the command or the user gives it.
VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
MAX_LAYERS = 10_000
_UNREAL = "give the command of a dense GPT or Llama, with one shape of layers; `holmes plan` takes such a job.yaml"
_LAYOUT = re.compile(r"[EtL|(),*0-9]{1,2000}")


def import_megatron(command: TrainerCommand) -> ImportedJob:
    """Return the job that the command fixes.

    Raises:
        HolmesError: The model or the degrees cannot be planned.
    """
    options = OptionReader(command.options)
    options.refuse(REFUSED, HARMLESS, _UNREAL)
    tp = options.whole("--tensor-model-parallel-size") or 1
    pp = options.whole("--pipeline-model-parallel-size") or 1
    model, differs = _model(options, tp)
    cp = options.whole("--context-parallel-size") or 1
    ranks_a_replica = tp * pp * cp
    _check_degrees(options, tp, command.num_ranks, ranks_a_replica)
    words, rows = options.sorted_by(megatron_rule)
    rows += [OptionRow(f"(no {name})", "decided", note) for name, note in ADDED.items() if not options.has(name)]
    if differs:
        rows.append(OptionRow(", ".join(differs), "not counted", f"counted as a {model['family']} of docs/models.md"))
    batch, micro = options.whole("--global-batch-size"), options.whole("--micro-batch-size")
    dp = None if command.num_ranks is None else command.num_ranks // ranks_a_replica
    if batch is None and micro is not None and dp is not None:
        batch = micro * dp
    parallel = known(tp=tp, pp=pp, dp=dp, cp=cp, micro_batch_size=micro, recompute=_recompute(options))
    data = {
        "model": model,
        **known(global_batch_size=batch, steps=_steps(options, batch)),
        "precision": "bf16" if options.has("--bf16") else "fp16" if options.has("--fp16") else "fp32",
        "parallel": parallel | _stages(options, pp),
    }
    return ImportedJob(data | job_sections(command, "megatron", words), (*outer_rows(command), *rows))


def _model(options: OptionReader, tp: int) -> tuple[dict[str, object], list[str]]:
    """Return the section `model`, and the options that the family does not have."""
    hidden, heads = options.whole("--hidden-size"), options.whole("--num-attention-heads")
    is_llama = options.has("--swiglu")
    groups = (options.whole("--num-query-groups") or 1) if options.has("--group-query-attention") else None
    ffn, head_size = options.whole("--ffn-hidden-size"), options.whole("--kv-channels")
    if ffn is None and is_llama and hidden is not None:
        ffn = int(8 * hidden / 3 / 64) * 64  # Megatron's own default, megatron/training/arguments.py
    if hidden and heads and head_size == hidden // heads and hidden % heads == 0:
        head_size = None
    usual = {
        "--normalization": "RMSNorm" if is_llama else "LayerNorm",
        "--position-embedding-type": "rope" if is_llama else "learned_absolute",
    }
    default = {"--normalization": "LayerNorm", "--position-embedding-type": "learned_absolute"}
    differs = [f"{name} {seen}" for name, own in usual.items() if (seen := options.text(name) or default[name]) != own]
    if options.has("--disable-bias-linear") != is_llama:
        differs.append("--disable-bias-linear" if not is_llama else "biases")
    flags = {"--qk-layernorm": "qk_norm", "--add-qkv-bias": "qkv_bias"}
    if not is_llama:
        differs += [name for name in flags if options.has(name)]
        differs += ["--group-query-attention"] if groups not in (None, heads) else []
        groups = None
    model = known(
        family="llama" if is_llama else "gpt",
        num_layers=options.whole("--num-layers", "--encoder-num-layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=groups,
        ffn_hidden_size=ffn,
        head_dim=head_size,
        seq_length=options.whole("--seq-length", "--encoder-seq-length"),
        vocab_size=_vocab_size(options, tp),
        tied_embeddings=None if options.has("--untie-embeddings-and-output-weights") else True,
    )
    return model | {key: True for name, key in flags.items() if is_llama and options.has(name)}, differs


def _vocab_size(options: OptionReader, tp: int) -> int | None:
    """Return the rows of the table of token vectors, padded as Megatron pads them; None if the command names none."""
    padded = options.whole("--padded-vocab-size")
    tokenizer = options.text("--tokenizer-type") or ("GPT2BPETokenizer" if options.has("--merge-file") else "")
    size = options.whole("--vocab-size") or VOCABULARIES.get(tokenizer)
    if padded or size is None or options.has("--no-pad-vocab-size") or options.has("--disable-pad-vocab-size"):
        return padded or size
    multiple = (options.whole("--make-vocab-size-divisible-by") or 128) * tp
    return -(-size // multiple) * multiple


def _check_degrees(options: OptionReader, tp: int, num_ranks: int | None, ranks_a_replica: int) -> None:
    """Raise HolmesError for degrees with which Megatron would not start."""
    heads = options.whole("--num-attention-heads")
    if heads is not None and heads % tp:
        what = f"command: --tensor-model-parallel-size {tp} does not divide --num-attention-heads {heads}"
        raise HolmesError(what, "choose a divisor of it, or leave the option out for Holmes to choose")
    if num_ranks is not None and num_ranks % ranks_a_replica:
        what = f"command: {num_ranks} ranks are not a multiple of tp x pp x cp = {ranks_a_replica}"
        raise HolmesError(what, "correct the degrees or the starter's counts, or leave the starter's counts out")


def _recompute(options: OptionReader) -> str:
    granularity = options.text("--recompute-granularity")
    if granularity not in (None, "full", "selective"):
        what = f"command: --recompute-granularity {shown(str(granularity))}: not full or selective"
        raise HolmesError(what, "correct it")
    return granularity or ("selective" if options.has("--recompute-activations") else "none")


def _steps(options: OptionReader, batch: int | None) -> int | None:
    samples = options.whole("--train-samples")
    if samples is not None and batch is not None:
        return max(1, samples // batch)
    return options.whole("--train-iters")


def _stages(options: OptionReader, pp: int) -> dict[str, object]:
    """Return the keys of `parallel` for the pipeline: layers of each stage, schedule and chunks."""
    num_layers = options.whole("--num-layers", "--encoder-num-layers")
    layout = options.text("--pipeline-model-parallel-layout")
    if layout is not None:
        layers = _layout_layers(layout)
        if len(layers) % pp or sum(layers) != (num_layers or sum(layers)):
            what = f"command: --pipeline-model-parallel-layout has {sum(layers)} layers in {len(layers)} stages"
            raise HolmesError(f"{what}; --num-layers is {num_layers}, pp {pp}", "correct one of them")
        chunks = len(layers) // pp
    elif num_layers is None or pp == 1:
        return {}
    else:
        chunks = _chunks(options, num_layers, pp)
        layers = _even_layers(options, num_layers, pp, chunks)
    if pp == 1:
        return {}
    if chunks == 1:
        return {"layers": layers, "schedule": "1f1b"}
    return {"layers": layers, "schedule": "interleaved", "chunks": chunks}


def _chunks(options: OptionReader, num_layers: int, pp: int) -> int:
    a_chunk = options.whole("--num-layers-per-virtual-pipeline-stage")
    if a_chunk is None:
        return options.whole("--num-virtual-stages-per-pipeline-rank") or 1
    if num_layers % (pp * a_chunk):
        what = f"command: --num-layers-per-virtual-pipeline-stage {a_chunk}: {num_layers} layers in {pp} ranks"
        raise HolmesError(f"{what} do not make a whole number of such stages", "correct it")
    return num_layers // (pp * a_chunk)


def _even_layers(options: OptionReader, num_layers: int, pp: int, chunks: int) -> list[int]:
    """Return the layers of each stage: equally many, except for a first or last stage that options fix."""
    stages = pp * chunks
    embedding = options.has("--account-for-embedding-in-pipeline-split")
    loss = options.has("--account-for-loss-in-pipeline-split")
    first = options.whole("--decoder-first-pipeline-num-layers")
    last = options.whole("--decoder-last-pipeline-num-layers")
    if (first or last) and chunks > 1:
        what = "command: --decoder-first-pipeline-num-layers or -last- with stages that a rank holds several of"
        raise HolmesError(what, "write the stages as --pipeline-model-parallel-layout")
    middle = num_layers + embedding + loss - (first or 0) - (last or 0)
    count = stages - (first is not None) - (last is not None)
    if count < 1 or middle < count or middle % count:
        what = f"command: {num_layers} layers cannot be cut into {stages} stages as it says"
        raise HolmesError(what, "correct --pipeline-model-parallel-size or the layers of a stage")
    layers = [middle // count] * count
    layers = [*([first] if first else []), *layers, *([last] if last else [])]
    layers[0] -= embedding
    layers[-1] -= loss
    return layers


def _layout_layers(text: str) -> list[int]:
    """Return the layers of each stage of `--pipeline-model-parallel-layout`."""
    what = f"command: --pipeline-model-parallel-layout {shown(text)}"
    if not _LAYOUT.fullmatch(text):
        raise HolmesError(f"{what}: other parts than E, t and L are not planned", "write a layout of these")
    flat = text.replace(",", "")
    for repeated in (r"([EtL|])\*([0-9]+)", r"\(([EtL|]*)\)(?:\*([0-9]+))?"):
        repeats = [(len(piece), int(count[:9] or 1)) for piece, count in re.findall(repeated, flat)]
        if sum(size * count for size, count in repeats) > 4 * MAX_LAYERS:
            raise HolmesError(f"{what}: more than {MAX_LAYERS} layers", "correct its repeats")
        flat = re.sub(repeated, lambda found: found[1] * int(found[2] or 1), flat)
    if not re.fullmatch(r"E?[t|]*L?", flat):
        raise HolmesError(f"{what}: cannot be read", "write it as `Et*3|t*4|t*3L`")
    layers = [stage.count("t") for stage in flat.split("|")]
    if 0 in layers:
        raise HolmesError(f"{what}: a stage without a layer is not planned", "give each stage a layer")
    return layers
