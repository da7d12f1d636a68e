"""Published models' folders: shapes, weights by pieces, and files that lie. test_transformers.py has the library's."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holmes_runtime.checkpoint.tensor_piece import boxes, weights_of
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.model_shape import ModelShape, RopeScaling
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import OptimizerSettings
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.model.rotary import make_rotation
from holmes_runtime.model.tensor_parallel import TensorParallel
from holmes_runtime.node.published_files.architectures import published_config, read_shape
from holmes_runtime.node.published_files.check_published import check_published
from holmes_runtime.node.published_files.needed_tensors import check_tensors, needed_tensors
from holmes_runtime.node.published_files.safetensors_header import read_header, read_headers
from holmes_runtime.parallel.gradient_buckets import Shard
from holmes_runtime.parallel.zero1 import Zero1
from holmes_runtime.published.first_weights import load_first_weights
from holmes_runtime.published.safetensors_files import TensorFolder
from holmes_runtime.published.write_model import write_model
from tests.seeds import few_of

from .launched_runs import TINY, TINY_LLAMA, TINY_MIXTRAL

SETTINGS = OptimizerSettings(1e-2, 0.0, 0, "constant", 0.1, 0.9, 0.95, None)
LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 16)
SHAPES = {
    "gpt": TINY,
    "gpt tied": replace(TINY, tied_embeddings=True),
    "gpt of OpenAI": replace(TINY, tied_embeddings=True, tanh_gelu=True),
    "llama": replace(TINY_LLAMA, rope_scaling=LLAMA3),
    "llama linear tied": replace(TINY_LLAMA, rope_scaling=RopeScaling("linear", 2.0, 1.0, 4.0, 8192), head_dim=6),
    "qwen 2.5": replace(TINY_LLAMA, qkv_bias=True, tied_embeddings=True, norm_eps=1e-6),
    "qwen 3": replace(TINY_LLAMA, qk_norm=True, head_dim=12, num_kv_heads=1),
    "mixtral": replace(TINY_MIXTRAL, ffn_hidden_size=24),
    "qwen 3 moe": replace(TINY_MIXTRAL, qk_norm=True, head_dim=12, normalized_routing=False),
}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
WINDOW = {"use_sliding_window": True, "sliding_window": 8}
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 256, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
}  # fmt: skip


def random_stage(shape: ModelShape) -> DecoderStage:
    """The whole model, every number of it random: biases and norms too."""
    module = DecoderStage(shape, Stage(0, 0, shape.num_layers), 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.1, generator=generator))
    return module


def publish(module: DecoderStage, folder: Path) -> dict[str, Tensor]:
    """Writes the whole model into `folder`; its weights by name."""
    weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
    sizes = {name: tuple(weight.shape) for name, weight in weights.items()}
    write_model(folder, module.shape, "fp32", sizes, weights.__getitem__)
    return weights


def write_config(folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    said = {key: value for key, value in {**CONFIG, **changes}.items() if value != "left out"}
    (folder / "config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize("name", SHAPES)
def test_a_written_configuration_is_read_as_the_same_shape(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published_config(SHAPES[name], "fp32")))

    assert read_shape(tmp_path, TINY.seq_length) == SHAPES[name]


@pytest.mark.parametrize("change", [{"qkv_bias": True}, {"normalized_routing": False}])
def test_experts_that_no_published_model_computes_are_not_written(change: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="no published model of experts"):
        published_config(replace(TINY_MIXTRAL, **change), "fp32")  # type: ignore[arg-type]


def test_the_width_of_a_mixtral_s_layers_without_experts_is_not_compared(tmp_path: Path) -> None:
    publish(random_stage(TINY_MIXTRAL), tmp_path)

    assert check_published(tmp_path, TINY_MIXTRAL)  # 64 here, 24 there, and no layer has it


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("tp", "cut"), few_of(1, [(1, 3), (1, 1), (2, 2)]))
def test_each_rank_gets_its_part_of_every_weight(name: str, tp: int, cut: int, tmp_path: Path) -> None:
    shape = SHAPES[name] if tp == 1 or SHAPES[name].kv_heads % tp == 0 else replace(SHAPES[name], num_kv_heads=2)
    weights = publish(random_stage(shape), tmp_path)

    for tp_rank in range(tp):
        for stage in [Stage(0, 0, cut)] + ([Stage(1, cut, 3)] if cut < 3 else []):
            module = DecoderStage(shape, stage, 0, tp=TensorParallel(None, tp_rank, tp), draws=False)
            shards = Zero1([module], module.parts, SETTINGS, RankGroups(), 1).shards()
            load_first_weights(tmp_path, shape, weights_of(shards))
            for parameter_name, parameter in module.named_parameters():
                assert torch.equal(parameter, module.parts[parameter_name].of(weights[parameter_name]))


@pytest.mark.parametrize("name", ["gpt", "qwen 2.5", "mixtral"])
def test_a_replica_reads_its_piece_alone_wherever_it_begins(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    module = random_stage(shape)
    weights = publish(module, tmp_path)
    generator = torch.Generator().manual_seed(2)

    for weight, part in module.parts.items():
        size = torch.Size(part.shape).numel()
        start, stop = sorted(torch.randint(size + 1, (2,), generator=generator).tolist())
        values = [torch.zeros(stop - start) for _ in range(5)]
        assert all(box.start >= start for box in boxes(part.shape, start, stop))
        load_first_weights(tmp_path, shape, weights_of([Shard(weight, part, start, stop, *values)]))
        assert torch.equal(values[0], weights[weight].flatten()[start:stop])


def test_what_was_written_in_16_bits_is_read_into_fp32(tmp_path: Path) -> None:
    module = random_stage(TINY_LLAMA)
    weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
    write_model(
        tmp_path, TINY_LLAMA, "bf16", {name: tuple(w.shape) for name, w in weights.items()}, weights.__getitem__
    )
    again = DecoderStage(TINY_LLAMA, Stage(0, 0, 3), 0, draws=False)

    load_first_weights(tmp_path, TINY_LLAMA, weights_of(Zero1([again], {}, SETTINGS, RankGroups(), 1).shards()))

    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, weights[name].bfloat16().float())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "olmoe"}, "model_type 'olmoe' is not one of llama, mistral, qwen2, qwen3, gpt2"),
        ({"model_type": "mixtral"}, "num_local_experts is None, not a whole number"),
        ({"model_type": "mixtral", "router_jitter_noise": 0.1}, "router_jitter_noise is 0.1"),
        ({"model_type": "mixtral", "sliding_window": 16}, "sliding_window 16 is below the job's seq_length 32"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "mlp_only_layers is [0]"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({"model_type": "qwen3_moe", **WINDOW, "num_experts": 8}, "sliding_window 8 is below"),
        ({"model_type": "mixtral", **EXPERTS, "num_local_experts": 2**31 - 1}, "experts"),
        (
            {"model_type": "mixtral", **EXPERTS, "num_experts_per_tok": 9},
            "experts_per_token: must be at most",
        ),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn' is not one of"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None, not a number above 0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3', not a whole number"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"vocab_size": 10**400}, "not a whole number from 1 to 2147483647"),
        ({"hidden_size": float("inf")}, "hidden_size is inf"),
        ({"model_type": "mistral", "sliding_window": 16}, "sliding_window 16 is below the job's seq_length 32"),
        ({"model_type": "qwen2", **WINDOW, "max_window_layers": 2}, "sliding_window 8 is below"),
        ({"model_type": "qwen3", **WINDOW, "layer_types": ["sliding_attention"]}, "sliding_window 8 is below"),
        ({"model_type": "qwen3", "attention_bias": True}, "attention_bias is True"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is set"),
        ({"auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"}}, "the model needs its own code"),
        ({"model_type": "gpt2", "n_embd": 8, "n_positions": 16}, "n_positions is 16, fewer than the job's seq_length"),
        ({"num_key_value_heads": 3}, "num_kv_heads: must divide num_heads 4, got 3"),
        ({"model_type": "gpt2", "activation_function": "relu"}, "activation_function is 'relu'"),
    ],
)
def test_a_model_that_is_computed_otherwise_is_refused_by_its_key(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"config\.json: ") as refused:
        read_shape(write_config(tmp_path, **changes), 32)

    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "seq_length"),
    [
        ({}, 32),
        ({"model_type": "mistral", "sliding_window": None, "max_position_embeddings": 8192}, 8192),
        ({"model_type": "mistral", "sliding_window": "left out", "max_position_embeddings": 8192}, 4096),
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 8}, 32),
        ({"model_type": "qwen2", **WINDOW, "max_window_layers": 2}, 8),
        ({"model_type": "qwen2", **WINDOW, "max_window_layers": 3}, 32),
        ({"model_type": "qwen3", **WINDOW, "layer_types": ["full_attention"] * 3}, 32),
    ],
)
def test_sequences_are_as_long_as_attention_looks_back_in_full(
    changes: dict[str, Any], seq_length: int, tmp_path: Path
) -> None:
    assert read_shape(write_config(tmp_path, **changes)).seq_length == seq_length


def test_the_keys_of_both_versions_of_the_library_are_read(tmp_path: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    old = {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}}
    new = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **scaling}}

    first, second = (read_shape(write_config(tmp_path, **said)) for said in (old, new))

    assert first == second
    assert (first.rope_theta, first.rope_scaling) == (5e5, LLAMA3)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": ["llama"]}', "[" * 100_000])
def test_a_configuration_that_is_none_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(ValueError, match=r"config\.json"):
        read_shape(tmp_path)


def test_a_folder_of_another_model_is_refused_by_what_differs(tmp_path: Path) -> None:
    publish(random_stage(TINY_LLAMA), tmp_path)

    with pytest.raises(ValueError, match=r"rope_theta 10000\.0, not 5000\.0 as in job\.yaml"):
        load_first_weights(tmp_path, replace(TINY_LLAMA, rope_theta=5e3), {})


def header_file(folder: Path, header: object, data: bytes = b"\0" * 64, length: int | None = None) -> Path:
    """A .safetensors file with this header, which may lie about its own length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(start: int, stop: int, *shape: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"\x00\x01", "is not JSON"),
        ([], "holds list, not keys"),
        ({"a": []}, "is invalid"),
        ({"a": {"dtype": "F32", "shape": [4]}}, "data_offsets"),
        ({"a": entry(0, 80, 20)}, r"bytes \[0, 80\] of only 64"),
        ({"a": entry(0, 16, 5)}, r"F32 \[5\] in 16 bytes"),
        ({"a": entry(16, 0, 4)}, "in -16 bytes"),
        ({"a": entry(16, 0, 4, dtype="I8")}, r"bytes \[16, 0\]"),
        ({"a": entry(-16, 0, 4)}, r"at \[-16, 0\]"),
        ({"a": entry(0, 16, -2, -2)}, r"a shape \[-2, -2\]"),
        ({"a": entry(0, 16, 2**40, 2**40)}, "in 16 bytes"),
        ({"a": entry(0, 16, 4), "b": entry(12, 28, 4)}, "a and b overlap"),
        (b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "a": {}}', "twice"),
        (b"[" * 100_000, "levels deep"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, "a shape"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused_in_a_sentence(header: object, said: str, tmp_path: Path) -> None:
    path = header_file(tmp_path, header)

    with pytest.raises(ValueError, match=said) as refused:
        read_header(path)

    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("length", [0, 2**63, 2**64 - 1, 10**9])
def test_a_header_longer_than_its_file_is_not_read(length: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        read_header(header_file(tmp_path, {"a": entry(0, 16, 4)}, length=length))


def test_an_index_names_files_beside_it_alone(tmp_path: Path) -> None:
    for name in ("../other.safetensors", "/etc/passwd", 3):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ValueError, match="not a file in its folder"):
            read_headers(tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_the_tensors_a_model_needs_are_those_it_is_written_with(name: str, tmp_path: Path) -> None:
    publish(random_stage(SHAPES[name]), tmp_path)

    written = {tensor: stored.shape for tensor, stored in read_headers(tmp_path).items()}

    assert dict(needed_tensors(SHAPES[name])) == written


def test_a_tensor_that_is_missing_or_of_another_shape_or_type_is_named(tmp_path: Path) -> None:
    publish(random_stage(TINY_LLAMA), tmp_path)
    stored = read_headers(tmp_path)
    head = stored["lm_head.weight"]
    wrong = {
        "has no tensor lm_head.weight": None,
        r"lm_head.weight has the shape \[32, 256\], the model needs \[256, 32\]": replace(head, shape=(32, 256)),
        "lm_head.weight is of type F8_E4M3, not one of F32, BF16, F16": replace(head, type_name="F8_E4M3"),
    }

    for said, tensor in wrong.items():
        held = {name: each for name, each in {**stored, "lm_head.weight": tensor}.items() if each is not None}
        with pytest.raises(ValueError, match=said):
            check_tensors(tmp_path, held, TINY_LLAMA)


def test_positions_beyond_a_run_s_sequences_are_left_out(tmp_path: Path) -> None:
    publish(random_stage(TINY), tmp_path)
    stored = read_headers(tmp_path)

    check_tensors(tmp_path, stored, replace(TINY, seq_length=TINY.seq_length - 1))
    with pytest.raises(ValueError, match=r"wpe.weight has the shape \[32, 32\], the model needs \[33, 32\]"):
        check_tensors(tmp_path, stored, replace(TINY, seq_length=TINY.seq_length + 1))


def test_tensors_need_not_be_aligned(tmp_path: Path) -> None:
    values = torch.arange(4, dtype=torch.float32)
    header_file(tmp_path, {"a": entry(1, 17, 4)}, data=b"\0" + struct.pack("<4f", 0, 1, 2, 3))

    assert torch.equal(TensorFolder(read_headers(tmp_path)).tensor("a"), values)


def test_scaled_frequencies_by_hand() -> None:
    shape = replace(TINY_LLAMA, hidden_size=8, num_heads=1, num_kv_heads=1, rope_theta=1e4, seq_length=2)
    shape = replace(shape, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 32))
    # One position turns by 1, 0.1, 0.01 and 0.001: 5.1, 0.51, 0.05 and 0.005 turns in 32 tokens.
    angles = torch.atan2(make_rotation(shape, None)[1, 1, 0], make_rotation(shape, None)[0, 1, 0])

    torch.testing.assert_close(angles, torch.tensor([1.0, 0.1 / 8, 0.01 / 8, 0.001 / 8]))
    # With 2 turns where 1 is low and 4 is high, it goes a third of the way from an eighth to the whole frequency.
    shape = replace(shape, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 126))
    angles = torch.atan2(make_rotation(shape, None)[1, 1, 0], make_rotation(shape, None)[0, 1, 0])
    kept = (126 * 0.1 / (2 * torch.pi) - 1) / 3
    assert angles[1].item() == pytest.approx(0.1 * (kept + (1 - kept) / 8), rel=1e-5)
