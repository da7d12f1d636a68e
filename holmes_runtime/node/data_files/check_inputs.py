"""Refuse data files with unsuitable content, before any rank starts and in each rank. Free of torch."""

from __future__ import annotations

from pathlib import Path

from holmes_runtime.config.run_settings import DataSettings
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.documents import has_documents, read_documents
from holmes_runtime.node.data_files.file_kind import check_text
from holmes_runtime.node.data_files.home_folder import read_run_config
from holmes_runtime.node.data_files.teacher_file import check_teacher
from holmes_runtime.node.data_files.text import source_files
from holmes_runtime.node.data_files.token_file import TokenFile, read_index


def wrong_inputs(run_config: str) -> tuple[str, ...]:
    """Return why the run of this configuration cannot train on the files of this host, one reason per source.

    Missing files are left to another check, which covers all files that job.yaml names.
    """
    config, reasons = read_run_config(run_config), []
    for source in config.data.sources:
        try:
            shape = config.model
            check_source(Path(source.path), config.data, config.expected_tokenizer, shape.seq_length, shape.vocab_size)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, ModuleNotFoundError) as error:
            reasons.append(str(error))
    return tuple(reasons)


def check_source(
    path: Path,
    data: DataSettings,
    expected_tokenizer: str | None = None,
    seq_length: int | None = None,
    vocab_size: int | None = None,
) -> list[Path]:
    """Return the files of the source at `path`.

    These are refused: text without a tokenizer if one is expected, packed examples and a teacher's logits for another
    `seq_length`, and logits of another vocabulary.

    Raises:
        ValueError: a file does not hold what its name says.
        ModuleNotFoundError: the Python package needed to read a file is missing.
        OSError: a file cannot be read.
    """
    files = source_files(path, data.pattern)
    if len({file.suffix == ".bin" for file in files}) > 1:
        raise ValueError(f"{path} with pattern {data.pattern!r} mixes token files (.bin) and text")
    if files[0].suffix != ".bin" and data.tokenizer is None and expected_tokenizer is not None:
        raise ValueError(
            f"{files[0]} is text, and its bytes are not the model's tokens: set `tokenizer` in `data` to "
            f"{expected_tokenizer}, or `bytes: true` to train on bytes"
        )
    for file in files:
        if file.suffix == ".bin":
            tokens = read_index(file)
            _check_packing(tokens, len(files), data, seq_length)
            if data.teacher is not None:
                _check_teaching(tokens, len(files), data)
                check_teacher(tokens, seq_length, vocab_size)
        elif data.teacher is not None:
            raise ValueError(
                f"{file} is text, but a teacher's logits are for tokens: run `holmes data {file} -o TOKENS.bin`, then "
                "`holmes data TOKENS.bin --teacher FOLDER`, and train on TOKENS.bin"
            )
        elif has_documents(file):
            next(read_documents(file, BadLines(data.skip_bad_lines)), None)
        elif not data.bytes:
            check_text(file, len(files))
    return files


def _check_teaching(tokens: TokenFile, num_files: int, data: DataSettings) -> None:
    """Raise ValueError if a teacher read the tokens of a file in other sequences than the run would."""
    if num_files > 1:
        raise ValueError(
            f"{tokens.path} has logits of a teacher for its own sequences, which other files would shift: name each "
            "file as a source of a blend"
        )
    if data.documents == "separate" and tokens.packed_length is None:
        raise ValueError(
            f"{tokens.path} has logits of a teacher that read joined documents: leave `documents` out of `data`"
        )


def _check_packing(tokens: TokenFile, num_files: int, data: DataSettings, seq_length: int | None) -> None:
    """Raise ValueError if the packed examples of a file would be read in other sequences, or attend to one another."""
    if tokens.packed_length is None:
        return
    if seq_length not in (None, tokens.packed_length):
        raise ValueError(
            f"{tokens.path} has examples packed in sequences of {tokens.packed_length} tokens, but model.seq_length is "
            f"{seq_length}: set it to {tokens.packed_length}, or run `holmes data` again with --seq-length {seq_length}"
        )
    if data.documents != "separate":
        raise ValueError(
            f"{tokens.path} has examples packed in sequences, where each would attend to the ones before it: set "
            "`documents: separate` in `data`"
        )
    if num_files > 1:
        raise ValueError(
            f"{tokens.path} has packed examples, which other files cannot follow: name each file as a source of a "
            "blend, or run `holmes data` once on the text of all"
        )
