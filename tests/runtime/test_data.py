"""Reading text and token files, and sampling them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holmes_runtime.config.run_settings import Data
from holmes_runtime.data.corpus import HostCorpus, Samples, Tokens, describe_difference, load_corpus
from holmes_runtime.data.token_file import TokenFileWriter

COUNTING = Tokens((torch.arange(120, dtype=torch.uint8), torch.arange(120, 200, dtype=torch.uint8)))
SAMPLES = Samples(COUNTING, "7", seq_length=8, vocab_size=256)


def data(path: Path, pattern: str = "*", tokenizer: str | None = None, validation_fraction: float = 0.0) -> Data:
    return Data(str(path), pattern, tokenizer, validation_fraction)


def test_a_sample_depends_on_key_step_and_slot_only() -> None:
    keys = [(key, step, slot) for key in ("1", "2") for step in (0, 1) for slot in (0, 1)]
    drawn = {
        (key, step, slot): Samples(COUNTING, key, 8, 256).batch(step, [slot])[0].tolist() for key, step, slot in keys
    }

    for key, step, slot in keys:
        assert Samples(COUNTING, key, 8, 256).batch(step, range(slot + 1))[slot].tolist() == drawn[key, step, slot]
    assert len({tuple(tokens) for tokens in drawn.values()}) == len(keys)


def test_a_sample_is_a_run_of_the_tokens_across_files() -> None:
    batch = SAMPLES.batch(0, range(200))

    assert batch.dtype == torch.int64
    assert torch.equal(batch, batch[:, :1] + torch.arange(9))
    assert ((batch[:, 0] < 120) & (batch[:, -1] >= 120)).any()


def test_a_batch_is_the_same_however_its_samples_are_split() -> None:
    parts = [SAMPLES.batch(2, numbers) for numbers in (range(1), range(1, 4))]

    assert torch.equal(SAMPLES.batch(2, range(4)), torch.cat(parts))


def test_a_token_outside_the_vocabulary_is_named() -> None:
    with pytest.raises(ValueError, match=r"the data has token \d+, vocab_size is 5"):
        Samples(COUNTING, "7", seq_length=8, vocab_size=5).batch(0, range(8))


def test_a_folder_is_its_matching_files_joined_by_name(tmp_path: Path) -> None:
    for name, text in (("b.txt", "world"), ("a.txt", "hello "), ("empty.txt", ""), ("c.md", "no"), ("sub/d.txt", "no")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    corpus = load_corpus(data(tmp_path, "*.txt"), "a1", seq_length=4, vocab_size=256)

    assert bytes(corpus.training.read(0, 11).tolist()) == b"hello world"
    assert corpus.num_tokens == 11


def test_the_last_fraction_is_for_validation(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(100)))

    corpus = load_corpus(data(tmp_path, validation_fraction=0.25), "a1", seq_length=8, vocab_size=256)

    assert corpus.training.read(0, 75).tolist() == list(range(75))
    assert corpus.validation.read(0, 25).tolist() == list(range(75, 100))


def test_documents_of_jsonl_end_with_a_zero_byte(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "zwei \\u00e4", "id": 1}\n')

    corpus = load_corpus(data(tmp_path), "a1", seq_length=4, vocab_size=256)

    assert bytes(corpus.training.read(0, corpus.num_tokens).tolist()) == "one\0zwei ä\0".encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"content": "x"}', r"""it has no field "text", only \['content'\]"""),
        ('{"text": 3}', 'the field "text" is 3, not a string'),
        ("[1]", "it is no object"),
        ("{", "Expecting property name"),
    ],
)
def test_a_line_of_jsonl_without_text_is_named(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' + line)

    with pytest.raises(ValueError, match=rf"host a1: .*a\.jsonl, line 2: {reason}"):
        load_corpus(data(tmp_path), "a1", seq_length=4, vocab_size=256)


@pytest.mark.parametrize("token_type", ["uint8", "uint16", "int32"])
def test_megatron_tokens_are_read_as_written(tmp_path: Path, token_type: str) -> None:
    tokens = list(range(200))
    with TokenFileWriter(tmp_path / "t.bin", token_type) as writer:
        writer.add(tokens[:150])
        writer.end_document()
        writer.add(tokens[150:])

    corpus = load_corpus(data(tmp_path), "a1", seq_length=4, vocab_size=200)

    assert corpus.training.read(0, 200).tolist() == tokens


def test_bytes_need_a_vocabulary_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")

    with pytest.raises(ValueError, match="read as bytes, which takes a vocab_size of 256, not 100"):
        load_corpus(data(tmp_path), "a1", seq_length=2, vocab_size=100)


def test_token_files_and_text_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with TokenFileWriter(tmp_path / "t.bin", "uint8") as writer:
        writer.add(range(10))

    with pytest.raises(ValueError, match="mixes token files"):
        load_corpus(data(tmp_path), "a1", seq_length=2, vocab_size=256)


def test_a_tokenizer_without_its_package_names_the_command_that_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    (tmp_path / "a.txt").write_text("text")

    with pytest.raises(ModuleNotFoundError, match=r"host a1: .*`holmes data .*a.txt --tokenizer bpe.json -o TOKENS"):
        load_corpus(data(tmp_path, tokenizer="bpe.json"), "a1", seq_length=2, vocab_size=256)


def test_missing_data_names_host_and_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"host a1: .*/none does not exist"):
        load_corpus(data(tmp_path / "none"), "a1", 8, 256)


def test_a_folder_without_matching_files_names_host_and_pattern(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"host a1: .* no file matching '\*\.txt'"):
        load_corpus(data(tmp_path, "*.txt"), "a1", 8, 256)


def test_data_without_a_whole_sample_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("12345678")

    with pytest.raises(ValueError, match=r"host a1: .* has 8 tokens for training, a sample needs 9"):
        load_corpus(data(tmp_path), "a1", 8, 256)


def test_hosts_with_other_data_are_named(tmp_path: Path) -> None:
    read = []
    for host, text in (("a1", "same text"), ("b1", "some text"), ("a2", "same text")):
        (tmp_path / "a.txt").write_text(text)
        read.append(HostCorpus(host, 9, load_corpus(data(tmp_path), host, 2, 256).digest))

    difference = describe_difference(read)

    assert difference is not None
    assert "a1, a2: 9 tokens, digest" in difference
    assert "; b1: 9 tokens, digest" in difference
    assert describe_difference(read[::2]) is None
