"""Adapters in peft's layout: written, read, and merged into the published model, which transformers then loads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.config.trainable import Lora
from holmes_runtime.data.same_on_hosts import common_frozen_weights, identity_of
from holmes_runtime.export import export
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.node.checkpoint_files.description import Counters
from holmes_runtime.node.published_files.adapter_names import adapter_rows, adapter_sizes
from holmes_runtime.node.published_files.check_adapters import check_adapters
from holmes_runtime.node.published_files.check_published import wrong_weights
from holmes_runtime.node.published_files.safetensors_header import read_header
from holmes_runtime.parallel.zero1 import Zero1
from holmes_runtime.published.peft_adapters import write_adapters, write_merged
from holmes_runtime.published.safetensors_files import TensorFolder
from holmes_runtime.rank_notices import RankNotices

from .launched_runs import TINY, TINY_LLAMA, make_config, write_corpus
from .test_adapters import GPT_LORA, LLAMA_LORA, trainer_of
from .test_published import SETTINGS, publish, random_stage

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lone_group")]
MODELS = {"gpt": (TINY, GPT_LORA), "llama": (TINY_LLAMA, LLAMA_LORA)}
TOKENS = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))


def adapted(folder: Path, shape: ModelShape, lora: Lora) -> DecoderStage:
    """A model with random adapters on published weights, saved after a step, and published."""
    published, saved = folder / "published", str(folder / "saved")
    frozen = random_stage(shape)
    publish(frozen, published)
    stage = DecoderStage(shape, Stage(0, 0, shape.num_layers), 0, lora=lora)
    stage.load_state_dict(frozen.state_dict(), strict=False)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            if name.endswith("_lora.b"):
                parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(len(name)))
    config = make_config(model=shape, lora=lora, weights=str(published), checkpoint=CheckpointSettings(saved, 1, 1, 2))
    frozen_weights = identity_of(published, shape)
    checkpoints = Checkpoints(config, config.grid.rank(0), "digest", RankNotices(folder, 0), frozen_weights)
    checkpoints.save(Zero1([stage], stage.parts, SETTINGS, RankGroups(), 1).shards(), Counters(1, 1, 1.0, 0, 8))
    checkpoints.finish()
    return stage


def tensors_in(file: Path) -> dict[str, Tensor]:
    stored = read_header(file)
    return {name: TensorFolder(stored).tensor(name) for name in stored}


@pytest.mark.parametrize("family", MODELS)
def test_the_merged_model_has_in_the_library_the_logits_of_weights_and_adapters(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    stage = adapted(tmp_path, *MODELS[family])

    export(tmp_path / "saved", tmp_path / "out", merge=True)

    model, said = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        expected = stage(TOKENS)
        assert (model.eval()(TOKENS, use_cache=False).logits - expected).abs().amax() <= 1e-5
        plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "published", dtype=torch.float32)
        assert (plain.eval()(TOKENS, use_cache=False).logits - expected).abs().amax() > 0.01


def test_adapters_have_the_names_shapes_and_settings_of_peft(tmp_path: Path) -> None:
    """As peft 0.21.2 writes those of the same matrices: it loads these, and has the same logits to 1e-5."""
    for family, (shape, lora) in MODELS.items():
        stage = adapted(tmp_path / family, shape, lora)
        export(tmp_path / family / "saved", tmp_path / family / "out")

        found = tensors_in(tmp_path / family / "out" / "adapter_model.safetensors")
        settings = json.loads((tmp_path / family / "out" / "adapter_config.json").read_text())
        assert (settings["r"], settings["lora_alpha"], settings["fan_in_fan_out"]) == (4, 8.0, family == "gpt")
        assert settings["base_model_name_or_path"] == str(tmp_path / family / "published")
        assert len(found) == 3 * len(lora.targets) * 2
        named = dict(stage.named_parameters())
        if family == "llama":
            name = "base_model.model.model.layers.2.self_attn.k_proj.lora_B.weight"
            assert torch.equal(found[name], named["blocks.2.attention.key_lora.b"].detach())
            assert settings["target_modules"][:2] == ["down_proj", "gate_proj"]
        else:
            assert settings["target_modules"] == ["attn.c_proj", "c_attn", "c_fc", "mlp.c_proj"]
            ours = named["blocks.1.attention.qkv_lora.b"].detach().view(4, 3, 8, 4)  # (heads, q k v, head_size, rank)
            theirs = found["base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"]
            assert torch.equal(theirs, ours.transpose(0, 1).reshape(96, 4))


@pytest.mark.parametrize("family", MODELS)
def test_a_run_starts_from_adapters_in_the_layout_of_peft(family: str, tmp_path: Path) -> None:
    shape, lora = MODELS[family]
    stage = adapted(tmp_path, shape, lora)
    export(tmp_path / "saved", tmp_path / "out")
    lora = replace(lora, adapters=str(tmp_path / "out"))
    config = make_config(write_corpus(tmp_path), model=shape, lora=lora, weights=str(tmp_path / "published"))
    assert wrong_weights(config.to_json()) == ()
    assert common_frozen_weights(config, "here") == identity_of(tmp_path / "published", shape)

    trainer = trainer_of(config)
    trainer.begin_from(tmp_path / "published")
    trainer.begin_from_adapters(tmp_path / "out")

    module = trainer._stages[0].module
    with torch.no_grad():
        assert torch.equal(module(TOKENS), stage(TOKENS))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"r": 8}, "r is 8, job.yaml has rank 4"),
        ({"lora_alpha": 16}, "lora_alpha is 16, job.yaml has alpha 8"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', only LORA is trained here"),
        ({"bias": "all"}, "bias is 'all', only none is trained here"),
        ({"use_dora": True}, "use_dora is True, which is not trained here"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is"),
        ({"init_lora_weights": "pissa"}, "frozen weights change"),
        ({"layer_replication": [[0, 2], [0, 1]]}, "layer_replication is"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens is [1, 2], which is not trained here"),
        ({"a_setting_to_come": 1}, "a_setting_to_come is 1"),
        ({"r": "4\x1b[31m"}, "job.yaml has rank 4"),
    ],
)
def test_adapters_that_would_compute_something_else_are_refused(
    change: dict[str, object], reason: str, tmp_path: Path
) -> None:
    write(tmp_path, TINY_LLAMA, LLAMA_LORA, change)

    with pytest.raises(ValueError, match=re.escape(reason)) as error:
        check_adapters(tmp_path, TINY_LLAMA, LLAMA_LORA)

    assert "\x1b" not in str(error.value)


def test_adapters_of_other_matrices_or_sizes_are_refused(tmp_path: Path) -> None:
    fewer = replace(LLAMA_LORA, targets=("query", "value"))
    write(tmp_path / "fewer", TINY_LLAMA, fewer)
    write(tmp_path / "more", TINY_LLAMA, LLAMA_LORA)
    write(tmp_path / "wide", replace(TINY_LLAMA, ffn_hidden_size=128), LLAMA_LORA)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "adapter_config.json").write_text((tmp_path / "more" / "adapter_config.json").read_text())
    (tmp_path / "cut" / "adapter_model.safetensors").write_bytes(b"\xff" * 20)

    for folder, lora, reason in (
        ("fewer", LLAMA_LORA, "k_proj.lora_A.weight, which trainable.lora.targets name"),
        ("more", fewer, "which belongs to no matrix of trainable.lora.targets"),
        ("wide", LLAMA_LORA, r"has the shape \[128, 4\], the model needs \[64, 4\]"),
        ("cut", LLAMA_LORA, "is not a safetensors file"),
    ):
        with pytest.raises(ValueError, match=reason):
            check_adapters(tmp_path / folder, TINY_LLAMA, lora)
    config = make_config(model=TINY_LLAMA, lora=replace(LLAMA_LORA, adapters=str(tmp_path / "fewer")))
    (said,) = wrong_weights(config.to_json())
    assert said.startswith("trainable.lora.adapters: ")


def write(folder: Path, shape: ModelShape, lora: Lora, change: dict[str, object] | None = None) -> None:
    """Zeros as adapters, with settings changed."""
    sizes = dict(adapter_sizes(shape, lora))
    write_adapters(folder, shape, lora, None, sizes, lambda name: torch.zeros(sizes[name]))
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **(change or {})}))


def test_any_alpha_of_peft_is_the_one_of_job_yaml(tmp_path: Path) -> None:
    lora = Lora(rank=14, targets=("query",), alpha=29.0)
    write(tmp_path, TINY_LLAMA, lora, {"lora_alpha": 29, "lora_dropout": 0.1})
    assert len(check_adapters(tmp_path, TINY_LLAMA, lora)) == 6
    assert Lora(rank=14, targets=("query",)).weight == 14.0


def test_tensors_that_a_model_does_not_need_are_not_merged(tmp_path: Path) -> None:
    """As the masks that older libraries saved with GPT-2, of a type that no weight has."""
    adapted(tmp_path, TINY, GPT_LORA)
    file = tmp_path / "published" / "model.safetensors"
    stored = read_header(file)
    size = int.from_bytes(file.read_bytes()[:8], "little")
    header = json.loads(file.read_bytes()[8 : 8 + size])
    end = max(each.stop for each in stored.values()) - 8 - size
    header["transformer.h.0.attn.bias"] = {"dtype": "BOOL", "shape": [4], "data_offsets": [end, end + 4]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + file.read_bytes()[8 + size :] + b"\1\1\0\1")
    sizes = dict(adapter_sizes(TINY, GPT_LORA))

    write_merged(tmp_path / "out", file.parent, TINY, GPT_LORA, sizes, lambda name: torch.zeros(sizes[name]))

    assert tensors_in(tmp_path / "out" / "model.safetensors").keys() == stored.keys()


def test_what_cannot_be_merged_is_refused_with_the_reason(tmp_path: Path) -> None:
    adapted(tmp_path, TINY_LLAMA, LLAMA_LORA)
    publish(random_stage(TINY_LLAMA), tmp_path / "again")
    publish(DecoderStage(TINY_LLAMA, Stage(0, 0, 3), 9), tmp_path / "other")

    export(tmp_path / "saved", tmp_path / "moved", tmp_path / "again", merge=True)
    with pytest.raises(ValueError, match=r"adapters of weights with the digest .{32}; .*other has the digest"):
        export(tmp_path / "saved", tmp_path / "out", tmp_path / "other", merge=True)
    assert not (tmp_path / "out").exists()
    for name in ("blocks.0.mlp.router_lora.a", "blocks.0.mlp.up_lora.c", "blocks.../x.mlp.up_lora.a", "head"):
        with pytest.raises(ValueError, match="is not an adapter of a llama"):
            adapter_rows(TINY_LLAMA, name, 4)
