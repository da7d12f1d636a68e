"""What job.yaml lets travel to the ranks: variables by name, and secrets by file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.job import LaunchSettings


@dataclass(frozen=True)
class UserVariables:
    """Variables by name with their values. `secrets` never appear in what a person is shown."""

    environment: Mapping[str, str]
    secrets: Mapping[str, str]


def read_user_variables(settings: LaunchSettings, environ: Mapping[str, str]) -> UserVariables:
    """Take values from `environ` and secrets from their files. Raises HolmesError for what is not there."""
    return UserVariables(
        {name: _value(name, value, environ) for name, value in settings.environment.items()},
        {name: _secret(name, Path(file)) for name, file in settings.secrets.items()},
    )


def _value(name: str, value: str | None, environ: Mapping[str, str]) -> str:
    if value is not None:
        return value
    if name not in environ:
        raise HolmesError(
            f"job.yaml: launch.environment.{name}: has no value, and this shell has no variable of that name",
            f"`export {name}=...` before `holmes launch`, or write the value into job.yaml",
        )
    if any(character in environ[name] for character in "\n\r\0"):
        raise HolmesError(
            f"variable {name} has several lines",
            f"put it into a file and name it: `launch: {{secrets: {{{name}: FILE}}}}`",
        )
    return environ[name]


def _secret(name: str, file: Path) -> str:
    try:
        return file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise HolmesError(
            f"job.yaml: launch.secrets.{name}: {file}: cannot be read: {reason}", "correct the path or its permissions"
        ) from None
