"""A teacher's logits for a token file, from which a run learns (`data.teacher` in job.yaml)."""

from __future__ import annotations

from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from holmes_cli.screen.terminal import err, print_out
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_runtime.node.data_files.teacher_file import teacher_path
from holmes_runtime.node.data_files.token_file import index_path


def write_teacher(tokens: Path, folder: Path, top: int, seq_length: int | None) -> None:
    """Write the `top` highest logits of the published model in `folder` next to the token file `tokens`.

    Raises:
        HolmesError: The tokens or the model cannot be used, a file cannot be read or written, or torch is missing.
    """
    if tokens.suffix != ".bin" or not tokens.is_file() or not index_path(tokens).is_file():
        hint = "`holmes data TEXT -o TOKENS.bin` writes one"
        raise HolmesError(f"{tokens} is not a token file with its .idx", hint)
    output = teacher_path(tokens)
    if output.exists():
        raise HolmesError(f"{output} exists", "remove it if no run needs it")
    try:
        from holmes_runtime.teacher_logits import write_teacher_logits  # imports torch, which no other command needs
    except ModuleNotFoundError as error:
        raise HolmesError(f"a teacher needs torch: {error}", "run this on a host with torch") from None
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    try:
        with Progress(*columns, console=err, transient=True) as shown:
            task = shown.add_task("asking the teacher", total=None)
            written = write_teacher_logits(
                *(tokens, folder, top, seq_length),
                progress=lambda done, of_all: shown.update(task, completed=done, total=of_all),
            )
    except ValueError as error:
        raise HolmesError(str(error), "nothing was left behind") from None
    except (OSError, MemoryError) as error:
        raise HolmesError(f"{output} was not made: {error}", "nothing was left behind", ANSWER_IS_NO) from None
    file, parts = written.file, written.num_parts
    in_parts = f", computed in {parts} parts of its layers, one in memory at a time" if parts > 1 else ""
    print_out(
        f"teacher: {output} ({file.top} of {file.vocab_size:,} logits for each target of {file.num_sequences:,} "
        f"sequences of {file.seq_length:,} tokens, {file.size_bytes / 1e6:,.1f} MB, on {written.device}{in_parts})"
    )
    print_out(
        f"next: copy it to the folder of {tokens.name} on every host; in job.yaml, `teacher: {{weight: 0.5}}` in "
        f"`data`, and `seq_length: {file.seq_length}` in `model`"
    )
