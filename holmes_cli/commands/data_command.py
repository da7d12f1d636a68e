"""`holmes data`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from holmes_cli.screen.terminal import err, print_err, print_out
from holmes_cli.tuning.chat_template import ChatTemplate, open_template
from holmes_cli.tuning.examples import ExampleReader, holds_examples
from holmes_cli.tuning.write_examples import stretches, write_examples
from holmes_cli.tuning.write_teacher import write_teacher
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_runtime.config.run_settings import DataSettings
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.check_inputs import check_source
from holmes_runtime.node.data_files.documents import has_documents
from holmes_runtime.node.data_files.teacher_file import MAX_TOP
from holmes_runtime.node.data_files.text import Tokenizer, open_tokenizer, source_files, tokenized
from holmes_runtime.node.data_files.token_file import TokenFileWriter, index_path, token_type_of

USUAL_TOP = 32  # logits of a teacher
MAX_SEQ_LENGTH = 2**24  # far above any model's: the padding of a sequence is in memory
SHOWN_STRETCHES = 16  # of an example
SHOWN_TEXT = 800  # characters of a stretch of an example


def data_command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Text, .jsonl, .jsonl.gz, .jsonl.zst (the field `text`, or examples: `prompt` and `completion`, or "
            "`messages`) or .parquet: a file or folder. With --teacher, a token file."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The token file; its .idx gets the same name.")
    ] = None,
    pattern: Annotated[str, typer.Option("--pattern", help="Files to read in a folder.")] = "*",
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="A JSON file of the `tokenizers` library; else bytes.")
    ] = None,
    seq_length: Annotated[
        int | None,
        typer.Option(
            "--seq-length", min=2, max=MAX_SEQ_LENGTH, help="The model's seq_length, for examples and a teacher."
        ),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option("--chat-template", help="A Jinja file for `messages`; else the tokenizer's own.")
    ] = None,
    skip_bad_lines: Annotated[
        int, typer.Option("--skip-bad-lines", min=0, help="Skip at most this many lines or rows without text.")
    ] = 0,
    teacher: Annotated[
        Path | None, typer.Option("--teacher", help="A published model's folder: write its logits for SOURCE.")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option("--top", min=1, max=MAX_TOP, help="Highest logits of the teacher to keep per token; else 32."),
    ] = None,
) -> None:
    """Turn text, or examples to fine-tune on, into a token file, so that nodes need no tokenizer."""
    if teacher is not None:
        for_text: dict[str, object] = {"--output": output, "--tokenizer": tokenizer, "--chat-template": chat_template}
        for_text |= {"--pattern": pattern != "*" or None, "--skip-bad-lines": skip_bad_lines or None}
        if (given := next((name for name, value in for_text.items() if value is not None), None)) is not None:
            raise HolmesError(f"{given} is for text, and --teacher reads a token file", f"leave {given} out")
        write_teacher(source, teacher, top or USUAL_TOP, seq_length)
        return
    if top is not None:
        raise HolmesError(f"--top {top} is for a teacher", "add --teacher FOLDER, or leave --top out")
    files, bad_lines = _files(source, pattern), BadLines(skip_bad_lines)
    output = _checked(output, source)
    try:
        has_examples = holds_examples(files, BadLines(skip_bad_lines), prefers_text=seq_length is None)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        raise HolmesError(str(error), "name text or examples, or leave the file out with --pattern") from None
    one_of_kind = {has_documents(file): file for file in files}
    by_kind = {kind: _open(file, tokenizer) for kind, file in one_of_kind.items()}
    tokenizers = {file: by_kind[has_documents(file)] for file in files}
    vocab_size = max(opened.vocab_size for opened in tokenizers.values())
    if has_examples:
        if seq_length is None:
            raise HolmesError(f"{files[0]} has examples, which are packed", "add --seq-length, the model's seq_length")
        template = open_template(chat_template, tokenizer)
        section = _pack(files, tokenizers[files[0]], template, seq_length, output, bad_lines)
    else:
        for name, value in (("--seq-length", seq_length), ("--chat-template", chat_template)):
            if value is not None:
                hint = f"leave {name} out, or name the files with examples"
                raise HolmesError(f"{name} is for examples, and {files[0]} has text", hint)
        section = _join(source, pattern, files, tokenizers, output, token_type_of(vocab_size), bad_lines)
    if bad_lines.count:
        print_err(bad_lines.sentence)
    next_step = f"in job.yaml, {section} and `vocab_size: {vocab_size}` (or more) in `model`"
    print_out(f"next: {next_step}")


def _files(source: Path, pattern: str) -> list[Path]:
    """Return the source files. Raises HolmesError if there are none, or they are tokens already."""
    try:
        files = source_files(source, pattern)
    except FileNotFoundError as error:
        raise HolmesError(str(error), "give a file, or a folder and a --pattern that matches its text") from None
    except (OSError, ValueError) as error:
        raise HolmesError(str(error), "name text, or leave the file out with --pattern") from None
    for file in files:
        if file.suffix == ".bin":
            raise HolmesError(f"{file} has tokens, not text", "train on it directly: `data: {path: ...}` in job.yaml")
    return files


def _join(
    source: Path,
    pattern: str,
    files: list[Path],
    tokenizers: dict[Path, Tokenizer],
    output: Path,
    token_type: str,
    bad_lines: BadLines,
) -> str:
    """Write the documents of `files` one after the other. Return the part of job.yaml that reads them."""
    try:
        check_source(source, DataSettings(str(source), pattern, skip_bad_lines=bad_lines.limit))
    except (OSError, ValueError, ModuleNotFoundError) as error:
        raise HolmesError(str(error), "name text, or leave the file out with --pattern") from None
    writer = TokenFileWriter(output, token_type)
    with _named_errors(output), _progress(files) as progress, writer:
        for file in files:
            for piece, parts in tokenized(file, tokenizers[file], bad_lines):
                for part in parts:
                    writer.add(part)
                if piece.ends_document:
                    writer.end_document()
                progress(piece.source_bytes)
    print_out(f"tokens: {output} ({writer.num_tokens:,} tokens, {writer.num_documents:,} documents)")
    return f"`data: {{path: {output.absolute()}}}`"


def _pack(
    files: list[Path],
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    length: int,
    output: Path,
    bad_lines: BadLines,
) -> str:
    """Write the examples of `files`, packed. Show the first ones, and return the part of job.yaml that reads them."""
    reader = ExampleReader(tokenizer, template, length, bad_lines)
    writer = TokenFileWriter(output, "int32", packed_length=length)
    with _named_errors(output), _progress(files) as progress, writer:
        written = write_examples(files, reader, writer, length, tokenizer.end_of_document or 0, progress)
        if not written.examples:
            raise ValueError(f"{files[0]} has no example")
    for number, example in enumerate(written.shown, start=1):
        print_out(f"example {number}, {len(example):,} tokens")
        parts = stretches(example, tokenizer)
        for is_predicted, text in parts[:SHOWN_STRETCHES]:
            label = "  predicted  " if is_predicted else "  read       "
            lines = _shortened(text).removesuffix("\n").replace("\n", "\\n\n             ")
            end = "\\n" if text.endswith("\n") else ""
            print_out(f"{label}{lines}{end}")
        if len(parts) > SHOWN_STRETCHES:
            print_out(f"  [{len(parts) - SHOWN_STRETCHES:,} more stretches]")
    filled = written.tokens / (written.sequences * length)
    print_out(
        f"tokens: {output} ({written.examples:,} examples in {written.sequences:,} sequences of {length:,}, "
        f"{filled:.1%} full; {written.predicted:,} tokens are predicted)"
    )
    if reader.split:
        print_err(
            f"{reader.split:,} conversations became an example for each answer: the chat template writes answers "
            "otherwise once others follow"
        )
    return f"`data: {{path: {output.absolute()}, documents: separate}}`, `seq_length: {length}`"


def _shortened(text: str) -> str:
    """Return the two ends of a long text."""
    half = SHOWN_TEXT // 2
    return text if len(text) <= SHOWN_TEXT else f"{text[:half]} [{len(text) - 2 * half:,} characters] {text[-half:]}"


@contextmanager
def _named_errors(output: Path) -> Iterator[None]:
    """Raise what goes wrong with files as HolmesError."""
    try:
        yield
    except (ModuleNotFoundError, ValueError) as error:
        hint = "correct the text, leave the file out with --pattern, or allow such lines with --skip-bad-lines"
        raise HolmesError(str(error), hint) from None
    except OSError as error:
        raise HolmesError(f"cannot write {output}: {error}", "nothing was left behind", ANSWER_IS_NO) from None


@contextmanager
def _progress(files: list[Path]) -> Iterator[Callable[[int], None]]:
    """Show the bytes of `files` that were read; the function that is given adds some."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as progress:
        task = progress.add_task("tokenizing", total=sum(file.stat().st_size for file in files))
        yield lambda source_bytes: progress.advance(task, source_bytes)


def _checked(output: Path | None, source: Path) -> Path:
    """Return the output. Raise HolmesError if it is not given, or cannot be written."""
    if output is None:
        raise HolmesError("no --output is given", f"`holmes data {source} -o TOKENS.bin`")
    if output.suffix != ".bin":
        raise HolmesError(f"--output {output} does not end in .bin", f"write to {output.with_suffix('.bin')}")
    if not output.absolute().parent.is_dir():
        raise HolmesError(f"folder {output.parent} does not exist", f"`mkdir -p {output.parent}`")
    for path in (output, index_path(output)):
        if path.exists():
            raise HolmesError(f"{path} exists", "choose another --output, or remove it if no run needs it")
    return output


def _open(file: Path, tokenizer: Path | None) -> Tokenizer:
    if tokenizer is not None and not tokenizer.is_file():
        raise HolmesError(f"tokenizer {tokenizer} does not exist", "name a tokenizer.json of the `tokenizers` library")
    try:
        return open_tokenizer(file, None if tokenizer is None else str(tokenizer))
    except ModuleNotFoundError as error:
        raise HolmesError(str(error), "`pip install tokenizers`, here only: nodes need no tokenizer") from None
    except ValueError as error:
        raise HolmesError(str(error), "name a tokenizer.json of the `tokenizers` library") from None
