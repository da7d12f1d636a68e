"""The parts of job.yaml that are sent to ranks: variables by name, secrets by file, the user's own model and code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from holmes_core.records.regular_file import MIB, read_regular
from holmes_runtime.config.model_shape import CODE_FOLDER
from launcher.prepare.bundle import as_bytes
from launcher.prepare.code_folder import CodeFolder, read_code, read_code_files

MAX_BYTES = MIB  # limit of a secret and of a model's file


@dataclass(frozen=True)
class UserVariables:
    """Variables by name with their values, and files by name. `secrets` are never shown.

    `code` is the folder that job.yaml names, if any; then it holds the model's file.
    """

    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    code: CodeFolder | None = None


def read_user_variables(job: Job, environ: Mapping[str, str], folder: Path, stored: bool = False) -> UserVariables:
    """Return values from `environ`, secrets from their files, and the model's file from `folder`.

    `folder` is that of job.yaml, or that of a `stored` run, where the model's file and code have names of their own.
    Raises HolmesError for an absent file, and for a model that is not Python.
    """
    settings, code = job.launch, _code(job, folder, stored)
    return UserVariables(
        {name: _value(name, value, environ) for name, value in settings.environment.items()},
        {name: _read(f"launch.secrets.{name}", Path(file).expanduser()) for name, file in settings.secrets.items()},
        _model_file(job, folder, stored) if code is None else {},
        code,
    )


def brought_code(job: Job, folder: Path) -> Mapping[str, str]:
    """Return the files of `launch.code` or `model.factory` that a launch would send. `folder` is that of job.yaml.

    Raises HolmesError for a file that is absent or cannot be sent.
    """
    code = job.launch.code
    return _model_file(job, folder, stored=False) if code is None else read_code_files(folder / Path(code).expanduser())


def _code(job: Job, folder: Path, stored: bool) -> CodeFolder | None:
    """Return the folder of the user's own code, which must hold the model's file."""
    named, model_file = job.launch.code, (job.model.factory or "").rpartition(":")[0]
    if named is None:
        return None
    path = folder / (CODE_FOLDER if stored else Path(named).expanduser())
    code = CodeFolder(read_code_files(path)) if stored else read_code(path)
    if job.trainer is not None:
        for word in job.trainer.command:
            if word.endswith(".py") and word in code.files:
                _check_syntax("trainer.command", path / word, code.files[word])
        return code
    if model_file not in code.files:
        raise HolmesError(
            f"job.yaml: model.factory: {model_file} is not among the files of launch.code, {path}",
            "name a Python file by its path in that folder; names that begin with a dot are left out",
        )
    _check_syntax("model.factory", path / model_file, code.files[model_file])
    return code


def _model_file(job: Job, folder: Path, stored: bool) -> dict[str, str]:
    """Return the file of `model.factory`; nothing if there is none, or if its path is absolute and so on the hosts."""
    file = Path((job.model.factory or "").rpartition(":")[0])
    if job.model.factory is None or file.is_absolute():
        return {}
    path = folder / (file.name if stored else file)
    text = _read("model.factory", path)
    _check_syntax("model.factory", path, text)
    return {file.name: text}


def _check_syntax(key: str, path: Path, text: str) -> None:
    """Compile the user's file without running it: on the hosts an error would show only after torch has started."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(as_bytes(text), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else f": {error}"
        raise HolmesError(
            f"job.yaml: {key}: {path}{line}",
            f"correct it; Python {sys.version_info.major}.{sys.version_info.minor} compiled it here; nothing was sent",
        ) from None


def _value(name: str, value: str | None, environ: Mapping[str, str]) -> str:
    if value is not None:
        return value
    if name not in environ:
        raise HolmesError(
            f"job.yaml: launch.environment.{name}: no value is given, and this shell has no such variable",
            f"`export {name}=...` before this command, or write the value into job.yaml",
        )
    if any(character in environ[name] for character in "\n\r\0"):
        raise HolmesError(
            f"variable {name} has several lines",
            f"put it into a file and name it: `launch: {{secrets: {{{name}: FILE}}}}`",
        )
    return environ[name]


def _read(key: str, file: Path) -> str:
    try:
        return read_regular(file, MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise HolmesError(
            f"job.yaml: {key}: {file}: cannot be read: {reason}", "correct the path or its permissions"
        ) from None
