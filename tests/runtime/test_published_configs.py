"""config.json of models that others published: each is taken with its true size, or refused by a key.

`published_configs.json` has what decides the arithmetic of each, with where it was seen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.node.published_files.architectures import read_shape

MODELS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "published_configs.json").read_text())


def names(*keys: str) -> list[Any]:
    """The models whose entry has all `keys`, as parameters of a test under their names."""
    return [pytest.param(model, id=model["name"]) for model in MODELS if all(key in model for key in keys)]


def write(model: dict[str, Any], folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(model["config"]))
    return folder


@pytest.mark.parametrize("model", names("billions"))
def test_a_published_model_has_its_true_size_and_reach(model: dict[str, Any], tmp_path: Path) -> None:
    shape = read_shape(write(model, tmp_path))

    parameters = stage_parameters(shape, shape.num_layers, is_first=True, is_last=True)
    assert round(parameters / 1e9, 2) == model["billions"]
    assert shape.seq_length == model["seq_length"]


@pytest.mark.parametrize("model", names("refused"))
def test_a_model_that_is_computed_otherwise_is_refused_by_its_key(model: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=model["refused"]):
        read_shape(write(model, tmp_path))


@pytest.mark.parametrize("model", names("refused_at"))
def test_sequences_beyond_a_model_s_reach_are_refused(model: dict[str, Any], tmp_path: Path) -> None:
    seq_length, said = model["refused_at"]

    with pytest.raises(ValueError, match=said):
        read_shape(write(model, tmp_path), seq_length)


def test_the_gelu_of_openai_is_read(tmp_path: Path) -> None:
    model = next(model for model in MODELS if model["name"] == "openai-community/gpt2")

    assert read_shape(write(model, tmp_path)).tanh_gelu
