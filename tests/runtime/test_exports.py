"""Exports keep what training does not change: configuration, generation settings, tokenizer, untrained positions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holmes_runtime import export as export_command
from holmes_runtime.checkpoint.tensor_piece import weights_of
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.export import export
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.node.checkpoint_files.description import Counters, Description, Origin, describe, kept_origin
from holmes_runtime.node.published_files.architectures import carried_config, published_config, read_shape
from holmes_runtime.parallel.zero1 import Zero1
from holmes_runtime.published.carried_model import copy_files, files_to_carry
from holmes_runtime.published.first_weights import load_first_weights

from .forked_ranks import launch_forked
from .launched_runs import TINY, TINY_LLAMA, make_config, write_corpus
from .test_published import CONFIG, SETTINGS, publish, random_stage, write_config


def write_files(folder: Path, *names: str, text: str = "{}") -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(text)
    return folder


def test_only_what_training_changed_is_changed_in_a_configuration() -> None:
    source = {
        **CONFIG, "model_type": "mistral", "architectures": ["MistralModel"], "sliding_window": 4096,
        "dtype": "float16", "max_position_embeddings": 32768, "bos_token_id": 5, "eos_token_id": [6, 7],
    }  # fmt: skip

    carried = carried_config(source, TINY_LLAMA, "bf16", 0)

    assert carried == {**source, "architectures": ["MistralForCausalLM"], "dtype": "bfloat16"}
    longer = carried_config(source, replace(TINY_LLAMA, seq_length=40000), "bf16", 0)
    assert longer["max_position_embeddings"] == 40000


def test_a_model_without_tokens_at_the_borders_of_documents_says_so() -> None:
    config = published_config(TINY_LLAMA, "fp32")

    assert (config["bos_token_id"], config["eos_token_id"]) == (None, None)
    assert published_config(TINY_LLAMA, "fp32", 3, 4)["eos_token_id"] == 4


def test_known_files_of_a_published_model_are_copied_and_no_others(tmp_path: Path) -> None:
    names = ("tokenizer.json", "tokenizer.model", "generation_config.json", "merges.txt", "chat_template.jinja")
    source = write_files(tmp_path / "source", *names, "model.safetensors", "modeling.py")
    (source / "vocab.json").mkdir()
    (source / "blob").write_text("linked")
    (source / "special_tokens_map.json").symlink_to("blob")  # as the hub's cache has all its files

    files = files_to_carry(source, None)
    out = write_files(tmp_path / "out")

    assert copy_files(files, out) == []
    assert {file.name for file in out.iterdir()} == {*names, "special_tokens_map.json"}
    assert (out / "special_tokens_map.json").read_text() == "linked"
    assert not (out / "special_tokens_map.json").is_symlink()


def test_the_tokenizer_that_text_was_read_by_counts(tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    own = write_files(tmp_path / "own", "tokenizer.json", "vocab.json", "other.json", text='{"model": {}}')
    named = own / "other.json"

    assert files_to_carry(source, write_files(tmp_path / "same", "tokenizer.json") / "tokenizer.json") == {
        name: source / name for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
    }
    assert files_to_carry(source, own / "tokenizer.json") == {
        "generation_config.json": source / "generation_config.json",
        **{name: own / name for name in ("tokenizer.json", "vocab.json")},
    }
    assert files_to_carry(None, named) == {"tokenizer.json": named}
    assert files_to_carry(None, tmp_path / "gone.json") == {}
    (tmp_path / "id_rsa").write_text("a key that a checkpoint names")
    assert files_to_carry(None, tmp_path / "id_rsa") == {}


def test_a_file_too_large_or_already_there_is_not_copied(tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", "tokenizer.json", "merges.txt", "vocab.json")
    with open(source / "tokenizer.json", "r+b") as file:
        file.truncate(2**28 + 1)
    out = write_files(tmp_path / "out", "merges.txt", text="mine")

    reasons = copy_files(files_to_carry(source, None), out)

    assert [reason.split(" is not copied")[0] for reason in reasons] == [
        f"{source}/tokenizer.json", f"{source}/merges.txt"
    ]  # fmt: skip
    assert (out / "merges.txt").read_text() == "mine"
    assert (out / "vocab.json").exists()


def test_a_checkpoint_says_where_its_run_began_through_resumes() -> None:
    text = describe(make_config(weights="/models/llama"), "digest", Counters(1, 1, 1.0, 0, 8)).to_json()
    saved = Description.parse(text, Path("c"))

    assert saved.origin == Origin("/models/llama", None)
    assert kept_origin(saved.origin, Origin("/other", "/t.json")) == Origin("/models/llama", "/t.json")
    assert kept_origin(Origin(None, "/t.json"), Origin("/later", None)) == Origin(None, "/t.json")
    with pytest.raises(ValueError, match="origin"):
        Description.parse(json.dumps({**json.loads(text), "origin": {"weights": 3, "tokenizer": None}}), Path("c"))


def write_published(folder: Path, name: str) -> Any:
    """A tiny published model with tokenizer and generation settings, by the libraries that others publish with."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    torch.manual_seed(0)
    if name == "gpt 2":
        config = transformers.GPT2Config(vocab_size=256, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    else:
        small = {**CONFIG, "max_position_embeddings": 64, "sliding_window": 32}
        config = transformers.MistralConfig(**{key: value for key, value in small.items() if key != "model_type"})
    config.eos_token_id = 7
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id, model.generation_config.temperature = [7, 9], 0.6
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"one": 0, "two": 1, "</s>": 7}, unk_token="one"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
    fast.chat_template = "{{ messages }}"
    fast.save_pretrained(folder)
    return model


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("lone_group")
@pytest.mark.parametrize("name", ["gpt 2", "mistral"])
def test_a_published_model_trained_and_exported_is_itself_but_for_its_weights(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    source, saved, out = tmp_path / "source", str(tmp_path / "saved"), tmp_path / "out"
    model = write_published(source, name)
    shape = read_shape(source, 32)
    corpus = write_corpus(tmp_path)
    first = make_config(
        corpus, model=shape, steps=1, checkpoint=CheckpointSettings(saved, 1, 1, 2), weights=str(source)
    )
    second = replace(first, steps=2, resume=True, weights=None)
    for number, config in enumerate((first, second)):
        run = launch_forked(config, tmp_path / str(number))
        assert run.exit_code == 0, run.stderr[-2000:]

    capsys.readouterr()  # what the libraries wrote
    monkeypatch.setattr("sys.argv", ["export", saved, str(out)])
    assert export_command.main() == 0

    written = capsys.readouterr()
    assert written.err.startswith("kept: config.json, generation_config.json, tokenizer.json, tokenizer_config")
    assert len(written.err.splitlines()) == 1
    again = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    kept = {**again.config.to_dict(), "_name_or_path": "", "transformers_version": ""}
    assert kept == {**model.config.to_dict(), "_name_or_path": "", "transformers_version": ""}
    assert again.generation_config.to_diff_dict() == model.generation_config.to_diff_dict()
    assert transformers.AutoTokenizer.from_pretrained(out)("one two").input_ids == [0]
    assert type(again) is type(model)

    stage = DecoderStage(shape, Stage(0, 0, shape.num_layers), 0, draws=False)
    load_first_weights(out, shape, weights_of(Zero1([stage], stage.parts, SETTINGS, RankGroups(), 1).shards()))
    tokens = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, untrained = again.eval()(tokens).logits, model.eval()(tokens).logits
        assert (stage(tokens) - logits).abs().amax() <= 1e-5
    assert (untrained - logits).abs().amax() > 1e-3
    if name == "gpt 2":
        rows, before = again.transformer.wpe.weight, model.transformer.wpe.weight
        assert torch.equal(rows[32:], before[32:])
        assert not torch.equal(rows[:32], before[:32])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of a gpt that began with the model in `published`."""
    from holmes_runtime.checkpoint.checkpoints import Checkpoints
    from holmes_runtime.rank_notices import RankNotices

    stage = random_stage(TINY)
    publish(stage, tmp_path / "published")
    config = make_config(
        model=TINY, checkpoint=CheckpointSettings(str(tmp_path / "saved"), 1, 1, 2), weights=str(tmp_path / "published")
    )
    checkpoints = Checkpoints(config, config.grid.rank(0), "digest", RankNotices(tmp_path, 0))
    checkpoints.save(Zero1([stage], stage.parts, SETTINGS, RankGroups(), 1).shards(), Counters(1, 1, 1.0, 0, 8))
    checkpoints.finish()
    return tmp_path / "saved"


@pytest.mark.torch
@pytest.mark.usefixtures("lone_group")
def test_a_published_model_that_is_gone_is_named_with_what_to_do(checkpoint: Path, tmp_path: Path) -> None:
    moved = (tmp_path / "published").rename(tmp_path / "moved")
    write_files(moved, "tokenizer.json")

    without: list[str] = []
    given: list[str] = []
    export(checkpoint, tmp_path / "out", notify=without.append)
    export(checkpoint, tmp_path / "again", moved, given.append)

    (note,) = without
    assert f"tokenizer of {tmp_path}/published, which the run began with" in note
    assert "to take them from a copy: --published FOLDER" in note
    assert given == ["kept: config.json, tokenizer.json"]


@pytest.mark.torch
@pytest.mark.usefixtures("lone_group")
def test_another_model_in_the_place_of_the_published_one_is_not_taken(checkpoint: Path, tmp_path: Path) -> None:
    write_config(tmp_path / "published")

    notes: list[str] = []
    export(checkpoint, tmp_path / "out", notify=notes.append)

    assert "family llama, not gpt" in "".join(notes)
    with pytest.raises(ValueError, match="family llama, not gpt"):
        export(checkpoint, tmp_path / "again", tmp_path / "published")
    assert not (tmp_path / "again").exists()
