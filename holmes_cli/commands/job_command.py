"""`holmes job`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer

from holmes_cli.screen.terminal import print_out
from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from holmes_core.records.reference import Key, keys_of


def job_command(
    key: Annotated[
        str | None,
        typer.Option("--explain", metavar="KEY", help="A key such as steps, checkpoint.every_steps or grad_clip."),
    ] = None,
) -> None:
    """Print the keys of job.yaml, or explain one: its type, default, meaning and an example."""
    keys = keys_of(Job)
    if key is None:
        for known in keys:
            print_out(f"{known.name}: {known.type} ({known.default})")
        return
    for number, known in enumerate(explained(keys, key)):
        _show(known, gap="\n" if number else "")


def explained(keys: Sequence[Key], name: str) -> Sequence[Key]:
    """Return the key of that dotted name, or all keys with that last part. Raises HolmesError naming the nearest."""
    wanted = name.replace("[]", "")
    by_name = {known.name.replace("[]", ""): known for known in keys}
    if wanted in by_name:
        return (by_name[wanted],)
    found = [known for full, known in by_name.items() if full.endswith(f".{wanted}")]
    if not found:
        words = {full.rpartition(".")[2]: full for full in by_name} | {full: full for full in by_name}
        near = difflib.get_close_matches(wanted, words, n=1, cutoff=0.5)
        hint = f"did you mean `{words[near[0]]}`?" if near else "`holmes job` prints all keys"
        raise HolmesError(f"job.yaml has no key {name}", hint)
    return found


def _show(key: Key, gap: str) -> None:
    lines = {"type": key.type, "default": key.default, "meaning": key.meaning}
    print_out(f"{gap}{key.name}")
    for label, text in lines.items():
        print_out(f"  {label}: {text}")
    example = key.written().rstrip().replace("\n", "\n    ")
    if example:
        print_out(f"  example:\n    {example}")
