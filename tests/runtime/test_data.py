"""Reading text and token files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from holmes_runtime.config.run_settings import DataSettings, DataSource, Documents
from holmes_runtime.data.blend import Blend
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.data.same_on_hosts import check_equal
from holmes_runtime.data.samples import Samples
from holmes_runtime.node.data_files.stored_bytes import FileBytes
from holmes_runtime.node.data_files.token_file import NOTE, TokenFileWriter, index_path

HOW: tuple[Documents, Documents] = ("joined", "separate")


def data(
    path: Path, pattern: str = "*", tokenizer: str | None = None, validation_fraction: float = 0.0
) -> DataSettings:
    return DataSettings(str(path), pattern, tokenizer=tokenizer, validation_fraction=validation_fraction)


def blend(*paths: Path, documents: Documents = "joined", validation_fraction: float = 0.0) -> DataSettings:
    sources = tuple(DataSource(str(path), weight) for weight, path in enumerate(paths, start=1))
    return DataSettings(sources, documents=documents, validation_fraction=validation_fraction)


def write_tokens(path: Path, *documents: Sequence[int], token_type: str = "uint8") -> None:
    with TokenFileWriter(path, token_type) as writer:
        for document in documents:
            writer.add(document)
            writer.end_document()


def test_a_folder_is_its_matching_files_joined_by_name(tmp_path: Path) -> None:
    for name, text in (("b.txt", "world"), ("a.txt", "hello "), ("empty.txt", ""), ("c.md", "no"), ("sub/d.txt", "no")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    corpus = load_corpus(data(tmp_path, "*.txt"), "a1", seq_length=4, vocab_size=256)

    assert bytes(corpus.training[0].read(0, 11).tolist()) == b"hello world"
    assert corpus.num_tokens == 11


def test_the_last_fraction_is_for_validation(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(100)))

    of_bytes = replace(data(tmp_path, validation_fraction=0.25), bytes=True)
    corpus = load_corpus(of_bytes, "a1", seq_length=8, vocab_size=256)

    assert corpus.training[0].read(0, 75).tolist() == list(range(75))
    assert corpus.validation[0].read(0, 25).tolist() == list(range(75, 100))


def test_documents_of_jsonl_end_with_a_zero_byte(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "zwei \\u00e4", "id": 1}\n')

    corpus = load_corpus(data(tmp_path), "a1", seq_length=4, vocab_size=256)

    assert bytes(corpus.training[0].read(0, corpus.num_tokens).tolist()) == "one\0zwei ä\0".encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"content": "x"}', r"""it has no field "text", only \['content'\]"""),
        ('{"text": 3}', 'the field "text" is 3, not a string'),
        ("[1]", "it is not a JSON object"),
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

    assert corpus.training[0].read(0, 200).tolist() == tokens


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

    with pytest.raises(ValueError, match=r"host a1: .* has 8 tokens for training, but a sample needs 9"):
        load_corpus(data(tmp_path), "a1", 8, 256)


def test_hosts_with_other_data_are_named(tmp_path: Path) -> None:
    read = []
    for host, text in (("a1", "same text"), ("b1", "some text"), ("a2", "same text")):
        (tmp_path / "a.txt").write_text(text)
        read.append((host, load_corpus(data(tmp_path), host, 2, 256).digest))
    same, other = read[0][1], read[1][1]

    with pytest.raises(RuntimeError, match=f"^the data is not the same on every host: a1, a2: {same}; b1: {other}$"):
        check_equal("the data is", read)
    check_equal("the data is", read[::2])


def test_a_blend_has_the_tokens_of_each_source_and_keeps_the_end_of_each_for_validation(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(100)))
    write_tokens(tmp_path / "b.bin", range(100, 180))

    sources = (tmp_path / "a.txt", tmp_path / "b.bin")
    of_bytes = replace(blend(*sources, validation_fraction=0.25), bytes=True)
    corpus = load_corpus(of_bytes, "a1", seq_length=8, vocab_size=256)

    assert [part.read(0, len(part)).tolist() for part in corpus.training] == [[*range(75)], [*range(100, 160)]]
    assert [part.read(0, len(part)).tolist() for part in corpus.validation] == [[*range(75, 100)], [*range(160, 180)]]
    assert corpus.num_tokens == 180


def test_the_source_of_a_blend_without_a_whole_sample_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("12345678901234567890")
    (tmp_path / "b.txt").write_text("1234")

    with pytest.raises(ValueError, match=r"host a1: .*b\.txt has 4 tokens for training, but a sample needs 9"):
        load_corpus(blend(tmp_path / "a.txt", tmp_path / "b.txt"), "a1", 8, 256)


def test_documents_are_an_index_s_the_lines_of_jsonl_and_else_whole_files(tmp_path: Path) -> None:
    write_tokens(tmp_path / "a.bin", [1, 2, 3], [4], [5, 6], token_type="uint16")
    (tmp_path / "b.jsonl").write_text('{"text": "ab"}\n{"text": ""}\n{"text": "c"}\n')
    for name in ("1.txt", "2.txt"):
        (tmp_path / "c" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "c" / name).write_text("xyz")
    paths = [tmp_path / name for name in ("a.bin", "b.jsonl", "c")]

    corpus = load_corpus(blend(*paths, documents="separate"), "a1", 4, 256)

    positions = [tokens.positions(0, len(tokens)).tolist() for tokens in corpus.training]
    assert positions == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 0, 0, 1], [0, 1, 2, 0, 1, 2]]


def test_documents_of_several_sequences_begin_with_the_first_of_them(tmp_path: Path) -> None:
    with TokenFileWriter(tmp_path / "t.bin", "int32", longest_sequence=2) as writer:
        for document in ([1, 2, 3, 4, 5], [6], [7, 8, 9]):
            writer.add(document)
            writer.end_document()

    (tokens,) = load_corpus(blend(tmp_path / "t.bin", documents="separate"), "a1", 4, 256).training

    assert tokens.positions(0, 9).tolist() == [0, 1, 2, 3, 4, 0, 0, 1, 2]
    assert tokens.positions(3, 8).tolist() == [0, 1, 0, 0, 1]


def test_documents_of_one_plain_text_cannot_be_separate(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text and more text")

    with pytest.raises(ValueError, match=r"host a1: .*a\.txt is one document, as plain text is"):
        load_corpus(blend(tmp_path / "a.txt", documents="separate"), "a1", 4, 256)


def test_hosts_whose_documents_differ_are_found_where_documents_are_separate(tmp_path: Path) -> None:
    digests = []
    for documents in ([[1, 2, 3], [4, 5]], [[1, 2], [3, 4, 5]]):
        write_tokens(tmp_path / "t.bin", *documents)
        digests.append([load_corpus(blend(tmp_path / "t.bin", documents=how), "a1", 2, 256).digest for how in HOW])

    assert digests[0][0] == digests[1][0]
    assert digests[0][1] != digests[1][1]


def test_the_largest_token_of_our_files_and_of_text_is_known_before_the_first_step(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t.bin", [1, 2, 300], [7], token_type="uint16")

    with pytest.raises(
        ValueError, match=r"host a1: .*t\.bin has token 300, but vocab_size is 300: raise vocab_size, or"
    ):
        load_corpus(data(tmp_path), "a1", 2, 300)
    assert load_corpus(data(tmp_path), "a1", 2, 301).num_tokens == 4


def test_a_foreign_index_does_not_say_the_largest_token(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t.bin", [1, 2, 300], token_type="uint16")
    os.truncate(index_path(tmp_path / "t.bin"), index_path(tmp_path / "t.bin").stat().st_size - NOTE.size)

    assert load_corpus(data(tmp_path), "a1", 1, 300).num_tokens == 3


@pytest.mark.parametrize("name", ["t.bin", "t.txt"])
def test_a_file_cut_under_a_run_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "t.bin":
        write_tokens(path, range(200))
    else:
        path.write_bytes(bytes(range(200)))
    (tokens,) = load_corpus(replace(data(path), bytes=True), "a1", 8, 256).training
    os.truncate(path, 100)

    assert tokens.read(90, 99).tolist() == list(range(90, 99))
    with pytest.raises(
        OSError, match=rf"{name} was truncated: 9 bytes expected from byte 96 on, 4 found; it had 200 bytes"
    ):
        tokens.read(96, 105)


def test_an_index_cut_under_a_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t.bin", range(100), range(100))
    (tokens,) = load_corpus(blend(tmp_path / "t.bin", documents="separate"), "a1", 8, 256).training
    os.truncate(tmp_path / "t.idx", 40)

    with pytest.raises(OSError, match=r"t\.idx was truncated: 8 bytes expected"):
        tokens.positions(0, 200)


def test_a_mark_that_no_sequence_has_is_named(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t.bin", range(9), range(9))
    index = bytearray((tmp_path / "t.idx").read_bytes())
    index[-NOTE.size - 16] = 9
    (tmp_path / "t.idx").write_bytes(index)
    (tokens,) = load_corpus(blend(tmp_path / "t.bin", documents="separate"), "a1", 8, 256).training

    with pytest.raises(ValueError, match=r"t\.idx: document 1 begins with sequence 9 of 2"):
        tokens.positions(0, 18)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_file_is_closed_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("text")
    before = open_files()

    stored = FileBytes(tmp_path / "t")
    assert open_files() == before + 1
    del stored

    assert open_files() == before


def packed(path: Path, num_sequences: int, length: int = 4) -> Path:
    """Sequences of `length` tokens; all but the second half of the last one is only read."""
    with TokenFileWriter(path, "int32", packed_length=length) as writer:
        for number in range(num_sequences):
            last = number == num_sequences - 1
            writer.add([value if last and value >= length // 2 else ~value for value in range(length)])
            writer.end_document()
        writer.add([~0])
    return path


def test_validation_begins_with_a_packed_sequence(tmp_path: Path) -> None:
    settings = blend(packed(tmp_path / "t.bin", 10), documents="separate", validation_fraction=0.25)

    corpus = load_corpus(settings, "a1", 4, 256)

    assert (len(corpus.training[0]), len(corpus.validation[0])) == (7 * 4 + 1, 3 * 4 + 1)
    assert corpus.validation[0].read(8, 13).tolist() == [~0, ~1, 2, 3, ~0]


@pytest.mark.parametrize(
    ("seq_length", "documents", "reason"),
    [
        (
            8,
            "separate",
            r"packed in sequences of 4 tokens, but model\.seq_length is 8: set it to 4, or .* --seq-length 8",
        ),
        (4, "joined", "set `documents: separate` in `data`"),
    ],
)
def test_packed_examples_are_read_as_they_were_packed(
    tmp_path: Path, seq_length: int, documents: Documents, reason: str
) -> None:
    settings = blend(packed(tmp_path / "t.bin", 10), documents=documents)

    with pytest.raises(ValueError, match=rf"host a1: .*t\.bin .*{reason}"):
        load_corpus(settings, "a1", seq_length, 256)


def test_a_folder_joins_no_packed_examples(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin"):
        packed(tmp_path / name, 3)
    settings = replace(blend(tmp_path, documents="separate"), pattern="*.bin")

    with pytest.raises(ValueError, match="name each file as a source of a blend"):
        load_corpus(settings, "a1", 4, 256)


def test_a_negative_token_of_an_ordinary_file_is_refused(tmp_path: Path) -> None:
    with TokenFileWriter(tmp_path / "t.bin", "int32") as writer:
        writer.add([1, 2, -3, 4, 5])
    corpus = load_corpus(data(tmp_path), "a1", 4, 256)

    with pytest.raises(ValueError, match="has token -3 at offset 2"):
        Samples(corpus.training, Blend((1.0,)), "7", 4, 256, 1).batch(0, [0])


def test_the_weight_of_targets_is_of_the_global_batch(tmp_path: Path) -> None:
    """Of 20 targets in five sequences two are predicted; of an ordinary source all are."""
    tuned, plain = packed(tmp_path / "t.bin", 5), tmp_path / "p.bin"
    write_tokens(plain, range(41))
    both = load_corpus(blend(tuned, plain, documents="separate"), "a1", 4, 256).training

    assert Samples(both[:1], Blend((1.0,)), "7", 4, 256, 5).target_weight(3) == 20 / 2
    assert Samples(both[1:], Blend((1.0,)), "7", 4, 256, 5).target_weight(3) == 1.0
    assert Samples(both, Blend((0.5, 0.5)), "7", 4, 256, 10).target_weight(0) == 40 / (2 + 20)
