"""GPT-2 as OpenAI published it: a GELU approximated by tanh, and files saved without the head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holmes_runtime.checkpoint.tensor_piece import weights_of
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.run_config import Stage
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.node.published_files.architectures import read_shape
from holmes_runtime.parallel.zero1 import Zero1
from holmes_runtime.published.first_weights import load_first_weights

from .test_published import SETTINGS

pytestmark = pytest.mark.torch
transformers = pytest.importorskip("transformers")
TOKENS = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))


@pytest.mark.usefixtures("lone_group")
@pytest.mark.parametrize("has_head", [True, False])
@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh"])
def test_logits_are_those_of_the_library(activation: str, has_head: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=256, n_embd=32, n_layer=3, n_head=4, n_positions=64, activation_function=activation
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # so that the two forms of GELU differ by more than the tolerance
            parameter.add_(0.1 * torch.randn_like(parameter))
    (model if has_head else model.base_model).save_pretrained(tmp_path)

    shape = read_shape(tmp_path, TOKENS.shape[1])
    stage = DecoderStage(shape, Stage(0, 0, shape.num_layers), 0, draws=False)
    load_first_weights(tmp_path, shape, weights_of(Zero1([stage], stage.parts, SETTINGS, RankGroups(), 1).shards()))

    with torch.no_grad():
        expected = model.eval()(TOKENS, use_cache=False).logits
    assert shape.tanh_gelu
    assert (stage(TOKENS) - expected).abs().amax() <= 1e-5
    exact = expected_of_exact_gelu(stage)
    assert (exact - expected).abs().amax() > 1e-4


def expected_of_exact_gelu(stage: DecoderStage) -> torch.Tensor:
    """Logits of the same weights with the exact GELU."""
    for block in stage.blocks.values():
        block.mlp.make = torch.nn.functional.gelu  # type: ignore[union-attr]
    with torch.no_grad():
        logits: torch.Tensor = stage(TOKENS)
    return logits
