"""`holmes import` writes a job.yaml that plans take, over no file; a command it cannot read exits with 2."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path

import pytest

from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file, read_user_file, write_signed
from holmes_core.trainers.command_line import read_command
from holmes_core.trainers.from_megatron import import_megatron
from launcher.prepare.engine_arguments import command_of
from tests.cli.conftest import Command
from tests.doc_session import run
from tests.planner.fleets import gpu_inventory, plan_anew

ROOT = Path(__file__).parents[2]
POOR = (
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --hidden-size 4096 --num-attention-heads 32"
    " --seq-length 2048 --vocab-size 50257 --global-batch-size 512 --micro-batch-size 2 --tensor-model-parallel-size 8"
    " --recompute-activations --bf16 --train-iters 100 --lr 1e-4 --new-option 7"
)
LLAMA = {
    **{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16},
    **{"intermediate_size": 8192, "vocab_size": 32000, "max_position_embeddings": 131072},
}


@pytest.mark.slow
def test_a_plan_says_what_the_command_would_do_and_what_other_degrees_gain(command: Command, tmp_path: Path) -> None:
    """The second plan is the one that the import prints, words as they are."""
    write_signed(tmp_path / "inventory.json", gpu_inventory((1, 1)))
    done = command("import", POOR)
    assert (done.code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert any("--new-option 7" in line and "not understood" in line for line in lines)
    assert "kept in the command, and no matter to the plan: --lr 1e-4" in lines
    assert "next: holmes plan job.yaml" in lines
    assert command("plan", "job.yaml").code == 0
    fixed = read_file(Plan, tmp_path / "plan.json")
    assert (fixed.tp, fixed.pp, fixed.dp, fixed.micro_batch_size, fixed.recompute) == (8, 1, 2, 2, "selective")
    (own,) = (line.partition("holmes ")[2] for line in lines if line.startswith("and with Holmes's own choices"))
    done = command(*shlex.split(own))
    assert (done.code, "This plan and plan.json" in done.stdout) == (0, True)
    chosen = read_file(Plan, tmp_path / "own.json")
    assert chosen.prediction.step_s < fixed.prediction.step_s
    assert chosen.job.trainer == fixed.job.trainer


STAGES = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout"


@pytest.mark.parametrize(
    "options",
    [
        f"--tensor-model-parallel-size 4 {STAGES} 'Et*6|t*5|t*6|t*7L' --recompute-activations",
        f"--tensor-model-parallel-size 2 {STAGES} 'Et*13|t*11L'",
        "--tensor-model-parallel-size 8 --recompute-granularity full --recompute-method block --recompute-num-layers 9",
    ],
)
def test_a_launch_runs_the_command_that_was_imported(options: str) -> None:
    """The words that a launch runs, imported once more, fix the same; their other options are the command's own."""
    imported = import_megatron(read_command(f"{POOR} {options}"))
    plan = plan_anew(gpu_inventory((1, 1)), Job.model_validate(imported.data))
    again = import_megatron(read_command(shlex.join(command_of(plan))))
    assert {**again.data["parallel"], "dp": plan.dp} == imported.data["parallel"]
    assert again.data["trainer"] == imported.data["trainer"]


def test_docs_show_what_an_import_prints(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\$ (holmes import '[^']+')\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    done = run(shown[0], tmp_path, 100)
    assert (done.returncode, done.stdout) == (0, shown[1])


def test_nothing_is_written_over(command: Command, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine", encoding="utf-8")
    (tmp_path / "to.yaml").symlink_to("elsewhere.yaml")
    for words in ((), ("-o", "to.yaml")):
        done = command("import", POOR, *words)
        assert (done.code, done.stdout) == (2, "")
    assert (tmp_path / "job.yaml").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "elsewhere.yaml").exists()


def test_the_folder_is_where_the_script_is(command: Command, tmp_path: Path) -> None:
    assert "trainer.folder: set it" in command("import", POOR, "-o", "without.yaml").stdout
    (tmp_path / "pretrain_gpt.py").touch()
    assert "trainer.folder" not in command("import", POOR).stdout
    job = read_user_file(Job, tmp_path / "job.yaml")
    assert job.trainer is not None
    assert job.trainer.folder == str(tmp_path)


def test_a_models_config_becomes_a_job_for_accelerate(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    done = command("import", "config.json")
    assert (done.code, done.stdout) == (2, "")
    assert "global_batch_size, steps" in done.stderr
    done = command("import", "config.json", "--set", "global_batch_size=64", "--set", "steps=10")
    assert "trainer.command: missing" in done.stdout
    job = read_user_file(Job, tmp_path / "job.yaml")
    assert (job.engine, job.is_launched, job.model.num_layers, job.model.seq_length) == ("accelerate", False, 8, 8192)


def test_deepspeeds_settings_are_read_from_their_file(command: Command, tmp_path: Path) -> None:
    words = ("deepspeed --num_gpus 8 train.py --deepspeed_config ds.json", "--model", "llama-3-8b", "--set", "steps=9")
    assert "ds.json" in command("import", *words).stderr
    settings = tmp_path / "ds.json"
    settings.write_text("[" * 100_000, encoding="utf-8")
    assert command("import", *words).code == 2
    settings.write_text('{"train_micro_batch_size_per_gpu": 4, "surprise": 1}', encoding="utf-8")
    done = command("import", *words)
    assert re.search(r"surprise: 1 +│ not understood", done.stdout)
    assert read_user_file(Job, tmp_path / "job.yaml").parallel.dp == 8


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("python train.py --a 1",), "not recognized"),
        (("python train.py", "--engine", "megatron-2021"), "--engine megatron-2021"),
        (("python train.py", "--engine", "torch"), "model.num_layers"),
        (("python train.py", "--engine", "torch", "--model", "llama-9"), "llama-9"),
        ((POOR, "--set", "steps"), "not KEY=VALUE"),
        ((POOR, "--set", "model="), "model"),
        ((POOR, "--set", "parallel.zero=3", "--set", "global_batch_size=511"), "global_batch_size 511"),
        ((f"NCCL_DEBUG=WARN {POOR} --num-experts 8",), "--num-experts 8"),
        (("x" * 200_000,), "200000 characters"),
        (("nowhere/config.json",), "nowhere/config.json"),
    ],
)
def test_what_cannot_be_a_job_is_refused_by_name(
    command: Command, tmp_path: Path, words: tuple[str, ...], named: str
) -> None:
    done = command("import", *words)
    assert (done.code, done.stdout) == (2, "")
    assert named in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_hostile_words_reach_no_terminal_and_no_file_unread(command: Command, tmp_path: Path) -> None:
    draw = random.Random(3)
    pieces = [
        "\x1b[31m",
        "\udcff",
        "é",
        "a: b",
        "- c",
        "{x",
        "]",
        "'",
        "#",
        "%",
        "&x",
        "!t",
        "null",
        "\u202e",
        ",",
        ":",
    ]
    for number in range(40):
        value = "".join(draw.choice(pieces) for _ in range(draw.randrange(1, 9)))
        name = f"job{number}.yaml"
        done = command("import", f"A={shlex.quote(value)} {POOR} --new {shlex.quote(value)}", "-o", name)
        assert "\x1b[31m" not in done.stdout + done.stderr
        assert done.code in (0, 2)
        if done.code == 0:
            job = read_user_file(Job, tmp_path / name)
            assert job.trainer is not None
            assert job.trainer.command[-1] == job.launch.environment["A"] == value
        else:
            assert not (tmp_path / name).exists()
