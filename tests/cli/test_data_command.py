"""`holmes data`: text to token files, whole or not at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from holmes_runtime.config.run_settings import DataSettings
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.node.data_files.token_file import read_index
from tests.cli.conftest import Command

# Stands in for the `tokenizers` package, which Holmes does not depend on: a token is the number of a word.
TOKENIZERS = """
import json

class Encoding:
    def __init__(self, ids):
        self.ids = ids

class Tokenizer:
    @staticmethod
    def from_file(path):
        tokenizer = Tokenizer()
        with open(path) as file:
            tokenizer.words = json.load(file)
        return tokenizer

    def get_vocab_size(self):
        return len(self.words)

    def token_to_id(self, word):
        return self.words.index(word) if word in self.words else None

    def encode(self, text, add_special_tokens):
        return Encoding([])

    def encode_batch(self, texts, add_special_tokens):
        assert not add_special_tokens
        return [Encoding([self.words.index(word) for word in text.split()]) for text in texts]
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages of this test's own, from which `tokenizers` is imported anew."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    del sys.modules["tokenizers"]
    return folder


def tokens(path: Path) -> list[int]:
    corpus = load_corpus(DataSettings(str(path)), "here", 1, 70000)
    return corpus.training[0].read(0, corpus.num_tokens).tolist()


def test_bytes_of_a_folder_are_the_tokens_a_node_would_read_itself(command: Command, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "b.txt").write_text("world\n" * 30_000)
    (tmp_path / "text" / "a.txt").write_text("häl\xf8 ")

    done = command("data", "text", "-o", "out.bin", "--pattern", "*.txt")

    assert done.code == 0, done.stderr
    assert "tokens: out.bin (180,007 tokens, 2 documents)" in done.stdout
    assert "`vocab_size: 256`" in done.stdout
    assert read_index(tmp_path / "out.bin").token_type == "uint8"
    assert tokens(tmp_path / "out.bin") == tokens(tmp_path / "text")


def test_documents_of_jsonl_end_with_the_tokenizers_end_of_document(
    command: Command, tmp_path: Path, packages: Path
) -> None:
    (packages / "tokenizers.py").write_text(TOKENIZERS)
    (tmp_path / "words.json").write_text(json.dumps(["one", "two", "<|endoftext|>", *(str(n) for n in range(300))]))
    (tmp_path / "a.jsonl").write_text('{"text": "one two"}\n{"text": "two two"}\n')

    done = command("data", "a.jsonl", "-o", "out.bin", "--tokenizer", "words.json")

    assert done.code == 0, done.stderr
    assert "(6 tokens, 2 documents)" in done.stdout
    assert tokens(tmp_path / "out.bin") == [0, 1, 2, 1, 1, 2]
    assert read_index(tmp_path / "out.bin").token_type == "uint16"


def test_bad_lines_are_left_out_where_the_command_line_allows_it(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"title": "two"}\n')

    refused = command("data", "a.jsonl", "-o", "out.bin")
    done = command("data", "a.jsonl", "-o", "out.bin", "--skip-bad-lines", "1")

    assert refused.code == 2
    assert "a.jsonl, line 2" in refused.stderr
    assert done.code == 0, done.stderr
    assert "(4 tokens, 1 documents)" in done.stdout
    assert "1 bad lines" in done.stderr


def test_a_tokenizer_without_its_package_says_how_to_install_it(
    command: Command, tmp_path: Path, packages: Path
) -> None:
    (packages / "tokenizers.py").write_text("raise ModuleNotFoundError('tokenizers')")
    (tmp_path / "words.json").write_text("[]")
    (tmp_path / "a.txt").write_text("text")

    done = command("data", "a.txt", "-o", "out.bin", "--tokenizer", "words.json")

    assert done.code == 2
    assert "needs the Python package `tokenizers`" in done.stderr
    assert "pip install tokenizers" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.txt", "-o", "out.bin"], "none.txt does not exist"),
        ([".", "-o", "out.bin", "--pattern", "*.md"], "has no file matching '*.md'"),
        (["a.txt", "-o", "out.tokens"], "--output out.tokens does not end in .bin"),
        (["a.txt", "-o", "none/out.bin"], "folder none does not exist"),
        (["a.txt", "-o", "there.bin"], "there.bin exists"),
        (["there.bin", "-o", "out.bin"], "there.bin has tokens, not text"),
        (["a.txt", "-o", "out.bin", "--tokenizer", "none.json"], "tokenizer none.json does not exist"),
        (["bad.jsonl", "-o", "out.bin"], 'bad.jsonl, line 2: the field "text" is 3, not a string'),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    command: Command, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "there.bin").write_text("tokens")
    (tmp_path / "bad.jsonl").write_text('{"text": "one"}\n{"text": 3}\n')
    before = sorted(tmp_path.iterdir())

    done = command("data", *arguments)

    assert done.code == 2
    assert said in done.stderr
    assert sorted(tmp_path.iterdir()) == before
