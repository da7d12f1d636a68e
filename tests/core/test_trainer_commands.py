"""Commands of other trainers become keys of job.yaml; each of their words is taken, kept, taken out or refused."""

from __future__ import annotations

import contextlib
import json
import random
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from holmes_core.trainers.command_line import read_command, split_options
from holmes_core.trainers.from_megatron import import_megatron
from holmes_core.trainers.from_scripts import import_script
from holmes_core.trainers.from_torchtitan import import_torchtitan
from holmes_core.trainers.imported_job import ImportedJob
from holmes_core.trainers.megatron_options import ADDED, DECIDED, HARMLESS, NOT_COUNTED, REFUSED, TAKEN
from tests.seeds import few_of

# Megatron-LM's own parser, d98e8a64: names, types, choices and numbers of values of its 838 options.
ARGUMENTS = Path(__file__).parents[3] / "shared" / "consumers" / "megatron_arguments.json"
SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --vocab-size 50257"
BATCH = "--global-batch-size 256 --micro-batch-size 2 --train-iters 100 --bf16"
# The commands that these scripts of Megatron-LM's examples run, with paths in place of their variables:
# examples/gpt3/train_gpt3_175b_distributed.sh on 16 hosts, examples/llama/train_llama3_8b_h100_fp8.sh.
GPT_175B = """
torchrun --nproc_per_node 8 --nnodes 16 --master_addr localhost --master_port 29500 pretrain_gpt.py \\
 --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 \\
 --attention-backend auto --micro-batch-size 1 --global-batch-size 1536 \\
 --step-batch-size-schedule "0:16 2.4B:320 4.8B:624 7.2B:928 9.6B:1232 12B:1536" --train-iters 500000 \\
 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006 --clip-grad 1.0 --fp16 --lr 6.0e-5 \\
 --lr-decay-style cosine --min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 430000 \\
 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --data-path /data/gpt_text_document \\
 --vocab-file /data/gpt2-vocab.json --merge-file /data/gpt2-merges.txt --split 949,50,1 --log-interval 100 \\
 --save-interval 10000 --eval-interval 1000 --save /ckpt --load /ckpt --eval-iters 10 --tensorboard-dir /logs
"""
LLAMA_8B = """
torchrun --nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost --master_port 6000 pretrain_gpt.py \\
 --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
 --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192 \\
 --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 \\
 --hidden-dropout 0.0 --swiglu --normalization RMSNorm --init-method-std 0.0134 --attention-backend fused \\
 --apply-layernorm-1p --untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1 \\
 --global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748 --lr 0.00015 --bf16 \\
 --grad-reduce-in-bf16 --cross-entropy-loss-fusion --calculate-per-token-loss --fp8-format hybrid \\
 --fp8-param-gather --tensor-model-parallel-size 1 --context-parallel-size 1 --sequence-parallel \\
 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --mock-data \\
 --tokenizer-type NullTokenizer --vocab-size 128256 --split '99,1,0' --num-workers 1 --save /ckpt
"""


def imported(options: str, start: str = "python pretrain_gpt.py") -> ImportedJob:
    return import_megatron(read_command(f"{start} {options}"))


def fates(job: ImportedJob) -> dict[str, str]:
    return {row.words.split(" ")[0]: row.fate for row in job.rows}


def test_the_175b_example_becomes_its_job() -> None:
    found = import_megatron(read_command(GPT_175B))
    job = Job.model_validate(found.data)
    assert (job.engine, job.global_batch_size, job.steps, job.precision) == ("megatron", 1536, 500_000, "fp16")
    shape = job.model
    assert (shape.family, shape.num_layers, shape.hidden_size, shape.num_heads) == ("gpt", 96, 12288, 96)
    assert (shape.vocab_size, shape.tied_embeddings) == (51200, True)  # GPT-2's, padded to a multiple of 128 x 8
    fixed = job.parallel
    assert (fixed.tp, fixed.pp, fixed.dp, fixed.micro_batch_size, fixed.schedule) == (8, 16, 1, 1, "1f1b")
    assert (fixed.layers, fixed.recompute) == ((6,) * 16, "none")
    assert job.trainer is not None
    words = job.trainer.command
    assert words[:4] == ("python", "pretrain_gpt.py", "--num-layers", "96")
    assert "0:16 2.4B:320 4.8B:624 7.2B:928 9.6B:1232 12B:1536" in words
    assert not {"--micro-batch-size", "--tensor-model-parallel-size", "--nnodes", "torchrun"} & set(words)
    assert fates(found)["--step-batch-size-schedule"] == "not counted"
    assert "not understood" not in fates(found).values()


def test_the_llama_example_becomes_its_job() -> None:
    found = import_megatron(read_command(LLAMA_8B))
    job = Job.model_validate(found.data)
    shape = job.model
    assert (shape.family, shape.kv_heads, shape.ffn_size, shape.vocab_size) == ("llama", 8, 14336, 128256)
    assert (shape.tied_embeddings, shape.head_dim, job.steps) == (False, None, 1953125000 // 128)
    assert (job.parallel.tp, job.parallel.pp, job.parallel.dp, job.parallel.layers) == (1, 1, 8, None)
    seen = fates(found)
    assert seen["--fp8-format"] == seen["--grad-reduce-in-bf16"] == "not counted"
    assert seen["--context-parallel-size"] == "decided"
    assert "not understood" not in seen.values()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--num-experts 8", "--num-experts 8"),
        ("--cp-comm-type a2a", "--cp-comm-type a2a"),
        ("--multi-latent-attention", "--multi-latent-attention"),
        ("--mtp-num-layers 1", "--mtp-num-layers 1"),
        ("--deepspeed --zero-stage 1", "--deepspeed"),
        ("--tensor-model-parallel-size 3", "--tensor-model-parallel-size 3 does not divide"),
        ("--tensor-model-parallel-size", "--tensor-model-parallel-size has no value"),
        ("--pipeline-model-parallel-size 5", "cannot be cut into 5 stages"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*3|t*3L", "has 6 layers in 2 stages"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*31|tmL", "other parts than E, t and L"),
        ("--pipeline-model-parallel-layout (t*9999|)*9999", "more than 10000 layers"),
        ("--pipeline-model-parallel-layout Et*32|L", "a stage without a layer"),
        ("--recompute-granularity some", "--recompute-granularity some"),
    ],
)
def test_models_and_degrees_that_cannot_be_planned_are_refused_by_option(options: str, named: str) -> None:
    with pytest.raises(HolmesError) as refused:
        imported(f"{SHAPE} {BATCH} {shlex.join(options.split())}")
    assert named in refused.value.what


def test_a_context_parallel_degree_is_read_and_shares_the_ranks() -> None:
    titan = "torchrun --nproc-per-node=8 -m torchtitan.train --module llama3 --config llama3_8b"
    megatron = imported(f"{SHAPE} {BATCH} --context-parallel-size 4", "torchrun --nproc-per-node=8 pretrain_gpt.py")
    for found in (megatron, import_torchtitan(read_command(f"{titan} --parallelism.context_parallel_degree 4"))):
        job = Job.model_validate({"steps": 1, "global_batch_size": 8, **found.data})
        assert (job.parallel.cp, job.parallel.dp) == (4, 2)


def test_ranks_that_no_replica_divides_are_refused() -> None:
    with pytest.raises(HolmesError, match="8 ranks are not a multiple of tp x pp x cp = 16"):
        imported(f"{SHAPE} {BATCH} --tensor-model-parallel-size 16", "torchrun --nproc-per-node=8 pretrain_gpt.py")


@pytest.mark.parametrize(
    ("options", "layers", "chunks"),
    [
        ("", [8, 8, 8, 8], None),
        ("--num-layers-per-virtual-pipeline-stage 4", [4] * 8, 2),
        ("--num-virtual-stages-per-pipeline-rank 2", [4] * 8, 2),
        ("--pipeline-model-parallel-layout 'Et*5|(t*9|)*3,L'", None, None),
        ("--pipeline-model-parallel-layout 'Et*5|(t*9|)*2t*9L'", [5, 9, 9, 9], None),
        ("--pipeline-model-parallel-layout 'E(t*4|)*7t*4,L'", [4] * 8, 2),
        ("--decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 3", [5, 12, 12, 3], None),
        ("--decoder-last-pipeline-num-layers 2", [10, 10, 10, 2], None),
    ],
)
def test_stages_are_cut_as_megatron_cuts_them(options: str, layers: list[int] | None, chunks: int | None) -> None:
    text = f"{SHAPE} {BATCH} --pipeline-model-parallel-size 4 {options}"
    if layers is None:
        with pytest.raises(HolmesError):
            imported(text)
        return
    found = imported(text).data["parallel"]
    assert (found["layers"], found.get("chunks")) == (layers, chunks)
    assert found["schedule"] == ("1f1b" if chunks is None else "interleaved")


def test_embedding_and_loss_count_as_layers_where_megatron_counts_them() -> None:
    sizes = SHAPE.replace("--num-layers 32", "--num-layers 30")
    both = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    found = imported(f"{sizes} {BATCH} --pipeline-model-parallel-size 4 {both}")
    assert found.data["parallel"]["layers"] == [7, 8, 8, 7]


def test_an_order_of_ranks_and_networks_by_type_are_taken_out() -> None:
    found = imported(f"{SHAPE} {BATCH} --use-tp-pp-dp-mapping --nccl-communicator-config-path nccl.yaml --seed 1")
    assert found.data["trainer"]["command"][-3:] == ["--bf16", "--seed", "1"]
    seen = fates(found)
    assert seen["--use-tp-pp-dp-mapping"] == seen["--nccl-communicator-config-path"] == "decided"


def test_words_behind_an_option_that_is_taken_out_are_kept_and_listed() -> None:
    found = imported(f"{SHAPE} {BATCH} --sequence-parallel stray --micro-batch-size=4 other")
    words = found.data["trainer"]["command"]
    assert words[-3:] == ["--bf16", "stray", "other"]
    assert found.data["parallel"]["micro_batch_size"] == 4  # the last of two counts, as for argparse
    assert fates(found)["stray"] == fates(found)["other"] == "not understood"


def test_schedulers_and_starters_are_taken_apart() -> None:
    start = "FOO=1 srun -N 4 -n 32 --mpi=none env MASTER_PORT=1 BAR='a b' python3 -m torch.distributed.run --nnodes 4"
    command = read_command(f"{start} --nproc-per-node=8 pretrain_gpt.py --seed 1")
    assert command.environment == {"FOO": "1", "MASTER_PORT": "1", "BAR": "a b"}
    assert command.dropped == ("srun", "-N", "4", "-n", "32", "--mpi=none", "env")
    assert (command.starter, command.num_ranks) == ("torchrun", 32)
    assert command.program == ("python", "pretrain_gpt.py")
    found = imported(f"{SHAPE} {BATCH}", "FOO=1 MASTER_PORT=1 WANDB_API_KEY=xyzzy python3 -u pretrain_gpt.py")
    assert found.data["launch"] == {"environment": {"FOO": "1", "WANDB_API_KEY": None}}
    assert "xyzzy" not in str(found)
    assert found.data["trainer"]["command"][:3] == ["python3", "-u", "pretrain_gpt.py"]
    assert fates(found)["MASTER_PORT=1"] == "decided"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('torchrun ${ARGS[@]} x.py --a "$B"', "${ARGS[@]}, $B"),
        ("python x.py --a `date`", "`date`"),
        ("python x.py --a $(date)", "$(date)"),
        ("python x.py > log", "'>'"),
        ("cd /x && python x.py", "'&&'"),
        ("python x.py\npython y.py", "line break"),
        ("python x.py --data *.bin", "*.bin"),
        ("python x.py --data ~/x", "~/x"),
        ("python x.py --data {a,b}", "{a,b}"),
        ("python x.py --a {tp}", "{tp}"),
        ("python x.py --a 'b", "No closing quotation"),
        ("bash run.sh", "bash run.sh"),
        ("srun -N 4 bash -c true", "srun -N 4 bash -c true"),
        ("torchrun --no-python ls", "torchrun"),
        ("python", "python"),
        ("", "nothing"),
        ("accelerate config", "accelerate config"),
        ("python x.py 'a\nb'", "several lines"),
    ],
)
def test_a_command_that_needs_a_shell_or_starts_no_python_is_refused(text: str, named: str) -> None:
    with pytest.raises(HolmesError) as refused:
        read_command(text)
    assert named.removeprefix("torchrun") in refused.value.what


def test_quoted_signs_of_a_shell_are_values() -> None:
    text = """python x.py --layout 'Et*3|t*3L' --a "x; y" --b \\$HOME --c '{"a": 1, "b": 2}' --d x=~/y"""
    options = {option.name: option.values for option in read_command(text).options}
    assert options["--layout"] == ("Et*3|t*3L",)
    assert (options["--a"], options["--b"], options["--d"]) == (("x; y",), ("$HOME",), ("x=~/y",))


@pytest.mark.parametrize(
    "sign", few_of(3, ["'", '"', "\\", "{", "$", "~", "*", "a ", "-", "(", "${", "x=", "\\\n", "é", "\0"])
)
def test_a_long_command_is_read_or_refused_in_little_time(sign: str) -> None:
    for text in (sign * (40_000 // len(sign)), f"python x.py {sign * 20_000}", f"python x.py --a={sign * 20_000}"):
        with contextlib.suppress(HolmesError):
            read_command(text)


def test_a_torchtitan_command_becomes_its_job() -> None:
    text = (
        "torchrun --nproc_per_node=8 --nnodes 2 --rdzv_backend c10d -m torchtitan.train --module llama3"
        " --config llama3_8b --training.steps 500 --parallelism.tensor_parallel_degree=2"
        " --parallelism.pipeline-parallel-degree 2 --parallelism.pipeline_parallel_schedule Interleaved1F1B"
        " --parallelism.data_parallel_replicate_degree 2"
        " --training.local_batch_size 8 --parallelism.pipeline_parallel_microbatch_size 2 --metrics.log_freq 1"
        " --parallelism.fsdp_reshard_after_forward never --some.thing 1 activation-checkpoint:full --preserve-rng-state"
    )
    found = import_torchtitan(read_command(text))
    job = Job.model_validate(found.data)
    assert (job.engine, job.steps, job.global_batch_size, job.model.num_layers) == ("torchtitan", 500, 32, 32)
    fixed = job.parallel
    assert (fixed.tp, fixed.pp, fixed.dp, fixed.zero, fixed.micro_batch_size) == (2, 2, 4, 3, 2)
    assert (fixed.schedule, fixed.recompute) == ("interleaved", "full")
    assert job.trainer is not None
    assert job.trainer.command[:6] == ("python", "-m", "torchtitan.train", "--module", "llama3", "--config")
    assert job.trainer.command[-2:] == ("activation-checkpoint:full", "--preserve-rng-state")
    assert not any("parallel" in word for word in job.trainer.command)
    assert fates(found)["--some.thing"] == "not understood"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--parallelism.expert-parallel-degree=2", "--parallelism.expert-parallel-degree=2"),
        ("--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule ZBVZeroBubble", "ZBV"),
    ],
)
def test_torchtitan_settings_that_cannot_be_planned_are_refused(words: str, named: str) -> None:
    with pytest.raises(HolmesError) as refused:
        import_torchtitan(read_command(f"torchrun -m torchtitan.train --module llama3 --config llama3_8b {words}"))
    assert named in refused.value.what


def test_deepspeeds_settings_become_a_job() -> None:
    settings: dict[str, Any] = {
        **{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4},
        **{"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}},
    }
    command = read_command("deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed_config ds.json --lr 1")
    found = import_script(command, "deepspeed", settings)
    assert found.data["parallel"] == {"tp": 1, "pp": 1, "dp": 16, "micro_batch_size": 4, "zero": 1}
    assert (found.data["global_batch_size"], found.data["precision"]) == (256, "bf16")
    assert found.data["trainer"]["command"] == ["python", "train.py", "--deepspeed_config", "ds.json", "--lr", "1"]
    seen = {row.words.split(":")[0]: row.fate for row in found.rows}
    assert (seen["optimizer"], seen["zero_optimization.stage"]) == ("not understood", "not counted")
    for wrong in (
        {"zero_optimization": {"stage": 3}},
        {"zero_optimization": {"stage": "3"}},
        {"zero_optimization": [3]},
        {"pipeline": {"stages": 2}},
        {"train_batch_size": 255},
        {"train_batch_size": "many"},
    ):
        with pytest.raises(HolmesError, match="DeepSpeed's settings"):
            import_script(command, "deepspeed", settings | wrong)


def test_accelerates_options_that_change_the_training_are_refused_or_become_variables() -> None:
    start = "accelerate launch --num_processes 16 --mixed_precision bf16"
    arguments = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_steps 10"
    found = import_script(read_command(f"{start} train.py {arguments}"), "accelerate", {})
    assert found.data["launch"] == {"environment": {"ACCELERATE_MIXED_PRECISION": "bf16"}}
    assert (found.data["global_batch_size"], found.data["steps"], found.data["precision"]) == (128, 10, "bf16")
    assert found.data["parallel"]["zero"] == 1
    sharded = import_script(read_command(f"{start} --use-fsdp train.py"), "accelerate", {})
    assert sharded.data["parallel"]["zero"] == 3
    with pytest.raises(HolmesError, match="--fsdp_offload_params true"):
        import_script(read_command(f"{start} --fsdp_offload_params true train.py"), "accelerate", {})


def arguments() -> list[dict[str, Any]]:
    """Return Megatron-LM's options; skip the test without their table."""
    if not ARGUMENTS.exists():
        pytest.skip(f"{ARGUMENTS} is not there")
    options: list[dict[str, Any]] = json.loads(ARGUMENTS.read_text(encoding="utf-8"))["arguments"]
    return options


def values(option: dict[str, Any]) -> Sequence[str]:
    """Values that the option takes, as many as it may have."""
    if option["action"] != "store":
        return ()
    if option.get("choices"):
        one = str(option["choices"][-1])
    else:
        one = {"int": "2", "float": "-0.5", "float_or_int": "2"}.get(option.get("type", "str"), "word")
    count = option.get("nargs")
    return (one,) * (count if isinstance(count, int) else 3 if count else 1)


def test_every_option_of_megatron_is_read_kept_or_refused_by_name() -> None:
    refused: dict[str, str] = {}
    for option in arguments():
        for name in option["options"]:
            words = (name, *values(option))
            try:
                found = imported(f"{SHAPE} {BATCH} {shlex.join(words)}")
            except HolmesError as error:
                refused[name] = error.what
                continue
            rows = [row for row in found.rows if row.words.split(" ")[0] == name]
            assert rows, words
            kept = found.data["trainer"]["command"]
            stays = any(tuple(kept[at : at + len(words)]) == words for at in range(len(kept)))
            assert stays != (rows[-1].fate == "decided"), words
    assert {name: what for name, what in refused.items() if name not in what} == {}
    assert 20 < len(refused) < 40


def test_values_of_megatrons_options_end_at_the_next_option() -> None:
    draw = random.Random(7)
    options = [(option["options"][0], tuple(values(option))) for option in arguments()]
    draw.shuffle(options)
    found = split_options([word for name, taken in options for word in (name, *taken)])
    assert [(option.name, option.values) for option in found] == options


def test_tables_name_options_that_megatron_has_with_their_values() -> None:
    known = {name: option for option in arguments() for name in option["options"]}
    named = {*TAKEN, *DECIDED, *REFUSED, *HARMLESS, *NOT_COUNTED, *ADDED}
    assert named - set(known) == {"--deepspeed", "--deepspeed_config"}  # of a fork
    assert set(TAKEN) & set(DECIDED) == set(DECIDED) & set(NOT_COUNTED) == set(REFUSED) & set(TAKEN) == set()
    for name, rule in DECIDED.items():
        most = 20 if known[name].get("nargs") else int(known[name]["action"] == "store")
        assert rule.arity == most, name


@pytest.mark.parametrize("seed", range(5))
def test_random_words_are_never_lost(seed: int) -> None:
    draw = random.Random(seed)
    pieces = ["--seed", "--micro-batch-size", "--bf16", "--", "-x", "--a=b", "'q u'", "é", "7", "--num-layers", "--="]
    for _ in range(100):
        text = " ".join(draw.choice(pieces) for _ in range(draw.randrange(12)))
        words = shlex.split(text)
        try:
            found = imported(text)
        except HolmesError:
            continue
        shown = " ".join(row.words for row in found.rows).split(" ")
        for word in words:
            assert word in found.data["trainer"]["command"] or word in shown, text
