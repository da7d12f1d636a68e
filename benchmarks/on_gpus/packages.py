"""The packages that Holmes needs and this interpreter lacks, found with the standard library alone.

Nothing of Holmes is imported here: this runs first, where perhaps nothing of Holmes can be imported.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
_REQUIREMENT = re.compile(r'^\s*"([A-Za-z0-9_.-]+)([^"]*)",?\s*$', re.MULTILINE)
_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")


def requirements(pyproject: str) -> dict[str, str]:
    """Return the bounds of each of the project's own dependencies, by name; Python 3.10 has no reader of TOML."""
    listed = pyproject.partition("\ndependencies = [")[2].partition("\n]")[0]
    return dict(_REQUIREMENT.findall(listed))


def installed_version(name: str) -> str | None:
    """Return the version of a distribution that this interpreter finds; None if it finds none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def missing_packages(needed: dict[str, str], version_of: Callable[[str], str | None] = installed_version) -> list[str]:
    """Return the requirements that are not met, as pip takes them; torch last, of any version."""
    unmet = [f"{name}{bounds}" for name, bounds in needed.items() if not _fits(version_of(name), bounds)]
    return unmet + ([] if version_of("torch") else ["torch"])


def _fits(version: str | None, bounds: str) -> bool:
    if version is None:
        return False
    limits = [(sign, _numbers(limit)) for sign, limit in _BOUND.findall(bounds)]
    return all(_numbers(version) >= limit if sign == ">=" else _numbers(version) < limit for sign, limit in limits)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9.]+", version)
    return tuple(int(part) for part in found[0].split(".") if part) if found else ()


def how_to_bring(missing: list[str]) -> str:
    """Return the message that names what is missing, and the one command for each machine that brings it."""
    names = " ".join(f"'{name}'" for name in missing)
    version, kind = ".".join(map(str, sys.version_info[:2])), platform.machine()
    platforms = f"--platform manylinux_2_28_{kind} --platform manylinux2014_{kind}"
    return "\n".join(
        [
            f"error: {sys.executable} lacks {', '.join(missing)}",
            "hint: on a machine with network:",
            f"  pip download --only-binary=:all: --python-version {version} {platforms} -d wheels {names}",
            "then copy the folder wheels here, and:",
            f"  {sys.executable} -m pip install --no-index --find-links wheels --target packages {names}",
            "  export PYTHONPATH=$PWD/packages",
        ]
    )


def refuse_missing() -> None:
    """Exit with 2, naming every missing package, unless this interpreter has all of them."""
    missing = missing_packages(requirements(PYPROJECT.read_text(encoding="utf-8")))
    if missing:
        print(how_to_bring(missing), file=sys.stderr)
        sys.exit(2)
