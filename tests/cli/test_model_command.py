"""`holmes model`: what it prints is what job.yaml takes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.records.job import Job
from tests.cli.conftest import Command

QWEN3 = {
    "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": True,
}  # fmt: skip


TINY = {
    **{"model_type": "llama", "hidden_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1},
    **{"intermediate_size": 2, "vocab_size": 4, "max_position_embeddings": 8},
}
MATRIX, TABLE, NORM = [2, 2], [4, 2], [2]
LAYER = {
    **{f"self_attn.{each}_proj.weight": MATRIX for each in "qkvo"},
    **{f"mlp.{each}_proj.weight": MATRIX for each in ("gate", "up", "down")},
    **{f"{each}.weight": NORM for each in ("input_layernorm", "post_attention_layernorm")},
}
TENSORS = {
    **{"model.embed_tokens.weight": TABLE, "lm_head.weight": TABLE, "model.norm.weight": NORM},
    **{f"model.layers.0.{name}": size for name, size in LAYER.items()},
}


def write_folder(
    folder: Path, config: Mapping[str, object] = TINY, tensors: Mapping[str, list[int]] = TENSORS, cut: int = 0
) -> None:
    """A published model's folder; its tensors are zeros in fp32, and the file ends `cut` bytes early."""
    (folder / "config.json").write_text(json.dumps(config))
    header, offset = {}, 0
    for name, size in tensors.items():
        stop = offset + 4 * math.prod(size)
        header[name] = {"dtype": "F32", "shape": size, "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(offset - cut))


def test_a_model_of_experts_is_read_into_the_keys_of_a_job(command: Command, tmp_path: Path) -> None:
    experts = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 5, "norm_topk_prob": False}
    (tmp_path / "config.json").write_text(
        json.dumps({**TINY, **experts, "model_type": "qwen3_moe", "num_key_value_heads": 1})
    )

    model = yaml.safe_load(command("model", str(tmp_path)).stdout)["model"]

    expected = {"experts": 3, "experts_per_token": 2, "expert_ffn": 5, "normalized_routing": False, "qk_norm": True}
    assert {key: model.get(key) for key in expected} == expected


def test_training_starts_from_the_tensors_of_a_folder_that_has_them(command: Command, tmp_path: Path) -> None:
    write_folder(tmp_path)

    done = command("model", ".")

    assert (done.code, yaml.safe_load(done.stdout)["weights"]) == (0, str(tmp_path))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"cut": 1}, "model.safetensors: its header is invalid: bytes "),
        ({"tensors": {**TENSORS, "lm_head.weight": NORM}}, "lm_head.weight has the shape [2], the model needs [4, 2]"),
        ({"tensors": {"lm_head.weight": TABLE}}, "has no tensor model.embed_tokens.weight"),
        ({"config": {**TINY, "num_hidden_layers": 2**31 - 1}}, "num_layers: must be at most 10000"),
        ({"config": {**TINY, "hidden_size": 2**31 - 2}}, "hidden_size: must be at most 1048576"),
        ({"config": {**TINY, "vocab_size": 10**300}}, "not a whole number from 1 to 2147483647"),
        ({"config": {**TINY, "num_attention_heads": 2**31 - 1}}, "head_dim is 0"),
    ],
)
def test_a_folder_that_cannot_be_true_is_wrong_usage(
    written: dict[str, Any], said: str, command: Command, tmp_path: Path
) -> None:
    write_folder(tmp_path, **written)

    done = command("model", ".")

    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 2  # and the hint


def test_an_index_that_leads_outside_the_folder_is_wrong_usage(command: Command, tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "config.json").write_text(json.dumps(TINY))
    index = {"weight_map": dict.fromkeys(TENSORS, "../model.safetensors")}
    (tmp_path / "inner" / "model.safetensors.index.json").write_text(json.dumps(index))

    done = command("model", "inner")

    assert done.code == 2
    assert "'../model.safetensors', which is not a file in its folder" in done.stderr


def test_its_lines_are_a_job_s(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))

    done = command("model", ".")

    assert done.code == 0
    job = Job.model_validate(
        {**yaml.safe_load(done.stdout), "data": {"path": "/d"}, "steps": 1, "global_batch_size": 8}
    )
    assert job.weights is None
    assert "the folder holds no tensors" in done.stderr
    assert (job.model.qk_norm, job.model.tied_embeddings, job.model.head_size) == (True, True, 128)
    assert (job.model.rope_theta, job.model.norm_eps, job.model.seq_length) == (1e6, 1e-6, 8192)
    assert "0.60 billion parameters" in done.stderr


def test_a_model_it_does_not_know_is_wrong_usage(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "olmoe"}))

    done = command("model", str(tmp_path))

    assert done.code == 2
    assert "model_type 'olmoe' is not one of" in done.stderr
    assert done.stdout == ""


def test_weights_that_are_a_pickle_alone_are_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")

    done = command("model", ".")

    assert (done.code, done.stdout) == (1, "")
    assert "has its weights only in pytorch_model.bin, a pickle" in done.stderr


def test_the_tokenizer_and_the_borders_of_documents_are_named(command: Command, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    write_folder(tmp_path)
    words = {"one": 0, "<s>": 1, "</s>": 2}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words)).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "bos_token": "<s>"}))

    done = command("model", ".")

    assert yaml.safe_load(done.stdout)["data"] == {"tokenizer": str(tmp_path / "tokenizer.json")}
    assert "documents begin with token 1 and end with token 2" in done.stderr


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def deep(path: Path) -> None:
    path.write_text('{"weight_map": ' + "[" * 90_000)


@pytest.mark.parametrize("kind", [pipe, endless, terabyte, deep])
@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"],
)
def test_file_of_a_model_that_is_none_is_refused_and_not_waited_for(
    kind: Callable[[Path], None], name: str, command: Command, tmp_path: Path
) -> None:
    write_folder(tmp_path)
    if name.startswith("tokenizer"):
        write_tokenizer(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    kind(tmp_path / name)

    done = command("model", ".")

    assert (done.code, name in done.stderr, done.stderr.count("hint: ")) == (2, True, 1), done


def write_tokenizer(folder: Path) -> None:
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": words}))


def test_folder_of_links_as_a_download_leaves_it_is_read(command: Command, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "0f3a", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    write_folder(snapshot)
    for number, file in enumerate(snapshot.iterdir()):
        file.rename(blobs / str(number))
        file.symlink_to(f"../../blobs/{number}")

    done = command("model", "snapshots/0f3a")

    assert (done.code, "weights" in yaml.safe_load(done.stdout)) == (0, True)
