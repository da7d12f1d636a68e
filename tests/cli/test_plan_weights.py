"""`holmes plan` with `weights`: another model than the job's, or one that is not computed, is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.records.record_file import write_signed
from tests.cli.conftest import Command, Done
from tests.cli.test_model_command import TENSORS, TINY, write_folder
from tests.planner.fleets import bed_job, cpu_inventory
from tests.seeds import few_of

MODEL = {
    **{"family": "llama", "num_layers": 1, "hidden_size": 2, "num_heads": 1, "ffn_hidden_size": 2, "vocab_size": 4},
    **{"seq_length": 8, "norm_eps": 1e-6},
}
JOB = {**bed_job().model_dump(mode="json", exclude_defaults=True), "data": {"path": "/tokens.bin"}, "parallel": {}}

Planned = Callable[..., Done]


@pytest.fixture
def planned(command: Command, tmp_path: Path) -> Planned:
    """Runs `holmes plan` of a job that starts from the folder `published` of this machine."""
    write_signed(tmp_path / "inventory.json", cpu_inventory([1, 1]))
    (tmp_path / "published").mkdir()

    def run(**changes: object) -> Done:
        job = {**JOB, "model": {**MODEL, **changes}, "weights": str(tmp_path / "published")}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
        return command("plan", "job.yaml")

    return run


@pytest.mark.parametrize(
    ("written", "said"),
    few_of(
        3,
        [
            ({"config": {**TINY, "attention_bias": True}}, "config.json: attention_bias is True"),
            (
                {"config": {**TINY, "model_type": "mistral", "sliding_window": 4}},
                "sliding_window 4 is below the",
            ),
            ({"config": {**TINY, "rope_theta": 5e5}}, "rope_theta 500000.0, not 10000.0 as in job.yaml"),
            (
                {"config": {**TINY, "model_type": "qwen2", "num_key_value_heads": 1}},
                "qkv_bias True, not False as in job.yaml",
            ),
            ({"config": {**TINY, "model_type": "gemma2"}}, "model_type 'gemma2' is not one of"),
            (
                {"tensors": {**TENSORS, "lm_head.weight": [2]}},
                "lm_head.weight has the shape [2], the model needs [4, 2]",
            ),
            ({"cut": 1}, "model.safetensors: its header is invalid"),
        ],
    ),
)
def test_a_model_that_cannot_be_trained_is_refused(
    written: dict[str, Any], said: str, planned: Planned, tmp_path: Path
) -> None:
    write_folder(tmp_path / "published", **written)

    done = planned()

    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert f"weights: {tmp_path}/published" in done.stderr
    assert f"hint: put into job.yaml what `holmes model {tmp_path}/published` prints" in done.stderr
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.slow
def test_a_job_with_another_gelu_than_its_weights_is_refused(planned: Planned, tmp_path: Path) -> None:
    gpt = {"model_type": "gpt2", "n_embd": 2, "n_layer": 1, "n_head": 1, "n_positions": 8, "vocab_size": 4}
    (tmp_path / "published" / "config.json").write_text(json.dumps(gpt))

    done = planned(family="gpt", ffn_hidden_size=8, tied_embeddings=True, norm_eps=1e-5)

    assert done.code == 2
    assert "config.json has tanh_gelu True, not False as in job.yaml" in done.stderr
    assert planned(family="gpt", ffn_hidden_size=8, tied_embeddings=True, norm_eps=1e-5, tanh_gelu=True).code == 0


def test_weights_that_are_a_pickle_alone_are_refused(planned: Planned, tmp_path: Path) -> None:
    (tmp_path / "published" / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "published" / "pytorch_model.bin").write_bytes(b"PK")

    done = planned()

    assert done.code == 2
    assert "has its weights only in pytorch_model.bin, a pickle" in done.stderr


@pytest.mark.parametrize("lies_here", few_of(1, ["nothing", "configuration", "all"]))
def test_what_is_on_the_hosts_alone_is_left_to_them(lies_here: str, planned: Planned, tmp_path: Path) -> None:
    if lies_here == "configuration":
        (tmp_path / "published" / "config.json").write_text(json.dumps(TINY))
    elif lies_here == "all":
        write_folder(tmp_path / "published")

    assert planned().code == 0
