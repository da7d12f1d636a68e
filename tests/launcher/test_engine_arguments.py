"""The arguments that a trainer's command gets: options that the trainer has, with the values of the plan."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_cli.screen.show_plan import plan_sentences, reducing_sentence, untold_batches
from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from launcher.prepare.engine_arguments import command_of, engine_arguments, placeholders
from tests.planner.fleets import gpt_7b, gpu_inventory, plan_for
from tests.seeds import few_of

OPTIONS = Path(__file__).parents[3] / "shared" / "consumers" / "megatron_arguments.json"
TWO = gpu_inventory([2, 2])
FIXED = {"tp": 8, "pp": 2, "micro_batch_size": 1}
SMALL = {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 1000}


def plan_of_engine(engine: str, *command: str, **changes: Any) -> Plan:
    """A plan of two clusters for a command of that engine."""
    trainer = {"engine": engine, "command": command or ("python", "train.py")}
    return plan_for(TWO, gpt_7b(trainer=trainer, data=None, **changes))


def settings(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each option."""
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            assert word not in found
            found[word] = last = []
        else:
            last.append(word)
    return found


def megatron_plans() -> Iterator[Plan]:
    """Plans that use every argument."""
    yield plan_of_engine("megatron")
    yield plan_of_engine("megatron", parallel={"pp": 1, "tp": 1, "recompute": "full"})
    yield plan_of_engine("megatron", parallel={"pp": 4, "tp": 2, "recompute": "selective", "chunks": 3})
    yield (instances := plan_of_engine("megatron", parallel={"pp": 1, "tp": 8, "dp": 4}))
    assert instances.optimizer_instances == 2


@pytest.mark.slow
@pytest.mark.skipif(not OPTIONS.exists(), reason="Megatron's options are not in ../shared")
def test_megatron_s_parser_has_every_option_with_such_values() -> None:
    known = {name: each for each in json.loads(OPTIONS.read_text())["arguments"] for name in each["options"]}
    for plan in megatron_plans():
        for name, values in settings(engine_arguments(plan)).items():
            option = known[name]
            assert len(values) == (option["action"] == "store")
            for value in values:
                assert value in option.get("choices", [value])
                assert option["type"] == "str" or str(int(value)) == value


def test_megatron_gets_the_plan_s_stages_and_batches() -> None:
    plan = plan_of_engine("megatron", parallel={"tp": 2, "pp": 2, "layers": [20, 16], "micro_batch_size": 2})
    found = settings(engine_arguments(plan))
    assert found["--tensor-model-parallel-size"] == ["2"]
    assert found["--pipeline-model-parallel-layout"] == ["Et*20|t*16L"]
    assert found["--micro-batch-size"] == ["2"]
    assert found["--global-batch-size"] == ["512"]
    assert "--sequence-parallel" in found


def test_torchtitan_gets_its_modules_stage_by_stage() -> None:
    plan = plan_of_engine(
        "torchtitan", parallel={"pp": 2, "layers": [20, 16], "micro_batch_size": 1, "schedule": "1f1b"}
    )
    *options, last = engine_arguments(plan)
    found = settings(options)
    first, second = found["--parallelism.module-fqns-per-model-part"]
    assert first.split(",") == ["tok_embeddings", *(f"layers.{layer}" for layer in range(20))]
    assert second.split(",") == [*(f"layers.{layer}" for layer in range(20, 36)), "norm", "lm_head"]
    assert found["--training.local-batch-size"] == [str(512 // plan.dp)]
    assert found["--parallelism.data-parallel-shard-degree"] == [str(plan.dp)]
    assert last == f"activation-checkpoint:{plan.recompute}"


def test_torchtitan_s_own_subcommand_of_the_user_s_stays_last() -> None:
    words = command_of(plan_of_engine("torchtitan", "python", "activation-checkpoint:full", parallel=FIXED))
    assert words[0] == "python"
    assert words[-1] == "activation-checkpoint:full"
    assert sum(word.startswith("activation-checkpoint:") for word in words) == 1


def test_accelerate_shards_inside_clusters_by_its_environment() -> None:
    words = command_of(plan_of_engine("accelerate"))
    assert words[0] == "env"
    assert words[-2:] == ("python", "train.py")
    assert {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE=2", "PARALLELISM_CONFIG_DP_SHARD_SIZE=16"} <= set(words)
    ddp = command_of(plan_of_engine("accelerate", model=SMALL, parallel={"zero": 1}))
    assert not [word for word in ddp if word.startswith(("PARALLELISM", "ACCELERATE_USE"))]


def test_accelerate_s_environment_is_set_unless_the_command_has_the_degrees() -> None:
    words = command_of(plan_of_engine("accelerate", "python", "train.py", "{micro_batch_size}", "{num_microbatches}"))
    assert words[0] == "env"
    own = command_of(plan_of_engine("accelerate", "python", "train.py", "{dp_replicate}", "{dp_shard}"))
    assert own == ("python", "train.py", "2", "16")


@pytest.mark.parametrize(
    ("engine", "words", "is_told"),
    few_of(
        2,
        [
            ("torch", (), False),
            ("torch", ("-b{micro_batch_size}",), True),
            ("deepspeed", (), False),
            ("megatron", (), True),
        ],
    ),
)
def test_a_command_that_is_not_told_its_batches_is_named(engine: str, words: tuple[str, ...], is_told: bool) -> None:
    plan = plan_of_engine(engine, "python", "train.py", *words, model=SMALL)
    sentences = untold_batches(plan)
    assert bool(sentences) is not is_told
    assert is_told or f"micro-batches of {plan.micro_batch_size}, {plan.microbatches[0]} for each" in sentences[0]


@pytest.mark.parametrize(
    ("engine", "zero", "samples", "words"),
    [
        ("torch", 3, 2, "reduced in each of 8 micro-batches, as torch does unless the script calls set_requires"),
        ("accelerate", 3, 2, "whole gradients on every rank until the last of 8 micro-batches, as accelerate"),
        ("accelerate", 3, 16, ""),
        ("torch", 1, 2, ""),
    ],
)
def test_plan_says_when_gradients_of_several_micro_batches_are_reduced(
    engine: str, zero: int, samples: int, words: str
) -> None:
    fixed = {"zero": zero, "micro_batch_size": samples, "dp": 4}
    plan = plan_of_engine(engine, "python", "train.py", model=SMALL, global_batch_size=64, parallel=fixed)
    assert max(plan.microbatches) == 16 // samples
    assert bool(reducing_sentence(plan)) is bool(words)
    assert words in " ".join(reducing_sentence(plan))


def examples() -> list[Job]:
    """The jobs of docs/engines.md."""
    text = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    return [Job.model_validate(yaml.safe_load(block)) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


@pytest.mark.slow
@pytest.mark.parametrize("job", examples(), ids=lambda job: job.engine)
def test_examples_of_the_docs_are_planned_and_told_their_batches(job: Job) -> None:
    plan = plan_for(TWO, job)
    assert untold_batches(plan) == ()
    words = " ".join(command_of(plan))
    assert str(plan.micro_batch_size) in words
    assert "{" not in words


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_a_script_without_options_of_the_engine_stays_as_it_is(engine: str) -> None:
    assert command_of(plan_of_engine(engine, model=SMALL)) == ("python", "train.py")


def test_placeholders_take_the_place_of_all_arguments() -> None:
    plan = plan_of_engine("megatron", "python", "--degrees={tp}x{pp}x{dp}", '{"json": 1}', "{layout}", parallel=FIXED)
    layers = plan.stages[0].num_layers
    assert command_of(plan)[:3] == ("python", f"--degrees={plan.tp}x{plan.pp}x{plan.dp}", '{"json": 1}')
    assert command_of(plan)[3].startswith(f"Et*{layers}|")
    assert len(command_of(plan)) == 4


def test_the_job_s_own_numbers_leave_the_arguments_there() -> None:
    words = command_of(plan_of_engine("megatron", "python", "--train-iters", "{steps}", parallel=FIXED))
    assert words[:3] == ("python", "--train-iters", "10")
    assert "--micro-batch-size" in words


def test_an_unknown_placeholder_names_the_known_ones() -> None:
    with pytest.raises(HolmesError, match="is not a setting of the plan") as refused:
        command_of(plan_of_engine("torch", "python", "{tensor}", model=SMALL))
    assert all(f"{{{name}}}" in str(refused.value.hint) for name in placeholders(plan_of_engine("torch", model=SMALL)))


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("megatron", ("python", "pretrain_gpt.py", "--lr", "3e-4")),
        ("torchtitan", ("python", "-m", "torchtitan.train")),
        ("torchtitan", ("python", "-m", "torchtitan.train", "activation-checkpoint:full")),
        ("accelerate", ("python", "train.py")),
        ("megatron", ("python", "pretrain_gpt.py", "--tensor-model-parallel-size", "{tp}")),
        ("deepspeed", ("python", "train.py")),
    ],
)
def test_plan_says_which_words_a_launch_adds_and_no_others(engine: str, command: tuple[str, ...]) -> None:
    plan = plan_of_engine(engine, *command)
    placed = [word.format(tp=plan.tp) for word in command]
    added = [word for word in command_of(plan) if word not in placed]
    said = [line for line in plan_sentences(plan, TWO) if line.startswith("A launch adds")]
    assert said == ([f"A launch adds to the command of {engine}: {shlex.join(added)}"] if added else [])
