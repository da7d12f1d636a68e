"""Keys of job.yaml that the command line overrides: `--set optimizer.learning_rate=1e-4`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from holmes_core.records.parse_record import parse
from holmes_core.records.plain_data import parse_yaml, read_plain
from holmes_core.records.record_file import read_user_file


def read_job(path: Path, overrides: Sequence[str]) -> Job:
    """Return the job of job.yaml at `path`, with `KEY=VALUE` put into it one after another.

    KEY is dotted, VALUE is YAML; an empty one is null.

    Raises:
        HolmesError: As `read_user_file` does, naming the overrides as well; or one is not `KEY=VALUE`.
    """
    if not overrides:
        return read_user_file(Job, path)
    data = read_plain(path)
    for override in overrides:
        data = overridden(data, override)
    return parse(Job, data, f"{path} with {as_options(overrides)}")


def as_options(overrides: Sequence[str]) -> str:
    """Return the overrides as words for a shell."""
    return " ".join(f"--set {shlex.quote(override)}" for override in overrides)


def overridden(data: object, override: str) -> object:
    """Return `data` with the override; `data` itself does not change. Raises HolmesError if it is not `KEY=VALUE`."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise HolmesError(f"--set {override}: not KEY=VALUE", "write it as in `--set checkpoint.keep_last=5`")
    return _with(data, parts, parse_yaml(text, f"--set {override}"), override)


def _with(data: object, parts: Sequence[str], value: object, override: str) -> object:
    if not parts:
        return value
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise HolmesError(f"--set {override}: nothing is above {parts[0]} but a value", "override that key as a whole")
    changed: dict[Any, object] = {**data, parts[0]: _with(data.get(parts[0]), parts[1:], value, override)}
    return changed
