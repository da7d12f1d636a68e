"""`holmes data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from holmes_cli.screen.terminal import err, out
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_runtime.config.run_settings import DataSettings
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.check_inputs import check_source
from holmes_runtime.node.data_files.text import Tokenizer, open_tokenizer, source_files, tokenized
from holmes_runtime.node.data_files.token_file import TokenFileWriter, index_path, token_type_of


def data_command(
    source: Annotated[
        Path,
        typer.Argument(help="Text, .jsonl, .jsonl.gz, .jsonl.zst (the field `text`) or .parquet: a file or folder."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The token file; its .idx is written beside it.")],
    pattern: Annotated[str, typer.Option("--pattern", help="Which files of a folder.")] = "*",
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="A JSON file of the `tokenizers` library; else bytes.")
    ] = None,
    skip_bad_lines: Annotated[
        int, typer.Option("--skip-bad-lines", min=0, help="Lines or rows without text that may be left out, in all.")
    ] = 0,
) -> None:
    """Turn text into a Megatron-compatible token file, which nodes train on without the tokenizer."""
    files = _sources(source, pattern, skip_bad_lines)
    _check_output(output)
    tokenizers = {suffix: _open(suffix, tokenizer) for suffix in {file.suffix for file in files}}
    vocab_size = max(opened.vocab_size for opened in tokenizers.values())
    writer, bad_lines = TokenFileWriter(output, token_type_of(vocab_size)), BadLines(skip_bad_lines)
    try:
        _write(files, tokenizers, writer, bad_lines)
    except (ModuleNotFoundError, ValueError) as error:
        raise HolmesError(str(error), "correct the text, or leave the file out with --pattern") from None
    except OSError as error:
        raise HolmesError(f"cannot write {output}: {error}", "nothing was left behind", ANSWER_IS_NO) from None
    out.print(f"tokens: {output} ({writer.num_tokens:,} tokens, {writer.num_documents:,} documents)", soft_wrap=True)
    if bad_lines.count:
        err.print(bad_lines.sentence, markup=False, soft_wrap=True)
    next_step = (
        f"in job.yaml, `data: {{path: {output.absolute()}}}` and `vocab_size: {vocab_size}` (or more) in `model`"
    )
    out.print(f"next: {next_step}", markup=False, soft_wrap=True)


def _sources(source: Path, pattern: str, skip_bad_lines: int) -> list[Path]:
    """Return the source files. Raises HolmesError if one is not text of the kind its name says."""
    try:
        for file in source_files(source, pattern):
            if file.suffix == ".bin":
                raise HolmesError(
                    f"{file} has tokens, not text", "train on it as it is: `data: {path: ...}` in job.yaml"
                )
        return check_source(source, DataSettings(str(source), pattern, skip_bad_lines=skip_bad_lines))
    except FileNotFoundError as error:
        raise HolmesError(str(error), "give a file, or a folder and a --pattern that matches its text") from None
    except (OSError, ValueError, ModuleNotFoundError) as error:
        raise HolmesError(str(error), "name text, or leave the file out with --pattern") from None


def _check_output(output: Path) -> None:
    if output.suffix != ".bin":
        raise HolmesError(f"--output {output} does not end in .bin", f"write to {output.with_suffix('.bin')}")
    if not output.absolute().parent.is_dir():
        raise HolmesError(f"folder {output.parent} does not exist", f"`mkdir -p {output.parent}`")
    for path in (output, index_path(output)):
        if path.exists():
            raise HolmesError(f"{path} exists", "choose another --output, or remove it if no run needs it")


def _open(suffix: str, tokenizer: Path | None) -> Tokenizer:
    if tokenizer is not None and not tokenizer.is_file():
        raise HolmesError(f"tokenizer {tokenizer} does not exist", "name a tokenizer.json of the `tokenizers` library")
    try:
        return open_tokenizer(Path(f"text{suffix}"), None if tokenizer is None else str(tokenizer))
    except ModuleNotFoundError as error:
        raise HolmesError(str(error), "`pip install tokenizers`, here only: nodes need no tokenizer") from None
    except ValueError as error:
        raise HolmesError(str(error), "name a tokenizer.json of the `tokenizers` library") from None


def _write(files: list[Path], tokenizers: dict[str, Tokenizer], writer: TokenFileWriter, bad_lines: BadLines) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as progress, writer:
        task = progress.add_task("tokenizing", total=sum(file.stat().st_size for file in files))
        for file in files:
            tokenizer = tokenizers[file.suffix]
            for piece, parts in tokenized(file, tokenizer, bad_lines):
                for part in parts:
                    writer.add(part)
                if piece.ends_document:
                    writer.end_document()
                progress.advance(task, piece.source_bytes)
