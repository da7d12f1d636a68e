"""Reading the corpus and sampling it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holmes_runtime.corpus import CorpusDigest, batch, describe_difference, load_corpus, sample
from holmes_runtime.run_config import Corpus

BYTES = torch.arange(200, dtype=torch.uint8)


def test_a_sample_depends_on_seed_step_and_slot_only() -> None:
    samples = {
        (seed, step, slot): sample(BYTES, seed, step, slot, 8) for seed in (1, 2) for step in (0, 1) for slot in (0, 1)
    }

    assert all(torch.equal(sample(BYTES, *key, 8), tokens) for key, tokens in samples.items())
    assert len({tuple(tokens.tolist()) for tokens in samples.values()}) == len(samples)


def test_a_sample_is_a_run_of_the_corpus() -> None:
    tokens = sample(BYTES, 1, 2, 3, seq_length=8)

    assert tokens.dtype == torch.int64
    assert torch.equal(tokens, tokens[0] + torch.arange(9))


def test_a_batch_is_the_same_however_its_slots_are_split() -> None:
    halves = [batch(BYTES, 1, 2, slots, 8) for slots in (range(2), range(2, 4))]

    assert torch.equal(batch(BYTES, 1, 2, range(4), 8), torch.cat(halves))


def test_a_folder_is_its_matching_files_joined_by_name(tmp_path: Path) -> None:
    for name, text in (("b.txt", "world"), ("a.txt", "hello "), ("c.md", "no"), ("sub/d.txt", "no")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    content = load_corpus(Corpus(str(tmp_path), "*.txt"), "a1", seq_length=4)

    assert bytes(content.tolist()) == b"hello world"


def test_a_missing_corpus_names_host_and_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"host a1: corpus .*/none does not exist"):
        load_corpus(Corpus(str(tmp_path / "none"), "*.txt"), "a1", 8)


def test_a_folder_without_matching_files_names_host_and_pattern(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"host a1: .* no file matching '\*\.txt'"):
        load_corpus(Corpus(str(tmp_path), "*.txt"), "a1", 8)


def test_a_corpus_without_a_whole_sample_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("12345678")

    with pytest.raises(ValueError, match=r"host a1: .* has 8 bytes, a sample needs 9"):
        load_corpus(Corpus(str(tmp_path / "a.txt"), ""), "a1", 8)


def test_hosts_with_another_corpus_are_named() -> None:
    read = [CorpusDigest("a1", 10, "aa"), CorpusDigest("b1", 12, "bb"), CorpusDigest("a2", 10, "aa")]

    difference = describe_difference(read)

    assert difference is not None
    assert "a1, a2: 10 bytes, sha256 aa; b1: 12 bytes, sha256 bb" in difference
    assert describe_difference(read[::2]) is None
