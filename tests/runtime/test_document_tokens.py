"""The tokens at the borders of documents are those the model was trained with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holmes_runtime.config.run_settings import DataSettings
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.node.data_files.text import FileTokenizer

tokenizers: Any = pytest.importorskip("tokenizers")
WORDS = ["one", "two", "<s>", "</s>", "<|endoftext|>", "<|end▁of▁sentence|>", "<|im_end|>"]


def write_tokenizer(folder: Path, *words: str, template: str | None = None, **config: object) -> Path:
    """A tokenizer of `words`, which puts the tokens of `template` around a text, and its configuration."""
    ids = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=words[0]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if template is not None:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=[(word, ids[word]) for word in template.split() if word in ids]
        )
    made.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


@pytest.mark.parametrize(
    ("template", "config", "begin"),
    [
        (None, {}, None),
        ("<s> $A", {}, "<s>"),
        ("<s> $A </s>", {}, "<s>"),
        ("$A </s>", {}, None),
        ("<s> $A", {"add_bos_token": False, "bos_token": "<s>"}, None),
        (None, {"add_bos_token": True, "bos_token": {"content": "<s>"}}, "<s>"),
        (None, {"bos_token": "<s>"}, None),
    ],
)
def test_documents_begin_as_the_tokenizer_begins_texts(
    tmp_path: Path, template: str | None, config: dict[str, Any], begin: str | None
) -> None:
    path = write_tokenizer(tmp_path, *WORDS, template=template, **config)

    assert FileTokenizer(str(path)).begin_of_document == (None if begin is None else WORDS.index(begin))


@pytest.mark.parametrize(
    ("words", "files", "end"),
    [
        (WORDS, {"tokenizer_config.json": {"eos_token": "<|im_end|>"}}, "<|endoftext|>"),  # eos ends a turn of a chat
        (["one", "[end]"], {"tokenizer_config.json": {"eos_token": {"content": "[end]"}}}, "[end]"),
        (["one", "[end]"], {"generation_config.json": {"eos_token_id": [1, 0]}}, "[end]"),
        (["one", "[end]"], {"config.json": {"eos_token_id": 1}}, "[end]"),
        (["one", "[end]"], {"config.json": {"eos_token_id": 2}}, None),
        (["one", "[end]"], {}, None),
    ],
)
def test_an_unknown_end_of_document_is_found_in_the_configurations(
    tmp_path: Path, words: list[str], files: dict[str, dict[str, Any]], end: str | None
) -> None:
    path = write_tokenizer(tmp_path, *words)
    for name, config in files.items():
        (tmp_path / name).write_text(json.dumps(config))

    assert FileTokenizer(str(path)).end_of_document == (None if end is None else words.index(end))


def test_documents_of_jsonl_have_both(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path, *WORDS, template="<s> $A")
    (tmp_path / "a.jsonl").write_text('{"text": "one two"}\n{"text": "two"}\n')

    corpus = load_corpus(
        DataSettings(str(tmp_path / "a.jsonl"), tokenizer=str(path)),
        "a1",
        2,
        len(WORDS),
    )

    assert corpus.training[0].read(0, corpus.num_tokens).tolist() == [2, 0, 1, 4, 2, 1, 4]


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path, *WORDS)
    (tmp_path / "tokenizer_config.json").write_text("{")

    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not JSON"):
        FileTokenizer(str(path))
