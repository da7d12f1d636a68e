"""The lock file holds what pyproject.toml and constraints.txt ask for, with hashes; the docs list licences."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
CUDA_BUILD = ("triton", "nvidia-", "cuda-")
NAME = re.compile(r"[A-Za-z0-9._-]+")


def canonical(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirement: str) -> str:
    found = NAME.match(requirement)
    assert found is not None, requirement
    return canonical(found[0])


def locked() -> dict[str, set[str]]:
    """By package the versions in the lock; each line that is no hash begins a package."""
    versions: dict[str, set[str]] = {}
    lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if HASH.fullmatch(line) is None:
            name, version = line.split(" ")[0].split("==")
            assert HASH.fullmatch(following), line
            versions.setdefault(canonical(name), set()).add(version)
    return versions


def direct() -> set[str]:
    """The packages that pyproject.toml names for users and for development, torch apart."""
    requirements = importlib.metadata.requires("holmes-train") or []
    return {named(each) for each in requirements} - {"holmes-train", "torch"}


def needed_at_run_time(names: Iterator[str], known: set[str]) -> set[str]:
    """Those packages and what they need, as installed here."""
    for name in names:
        if name not in known:
            known.add(name)
            needed = (
                each.name for each in map(Requirement, importlib.metadata.requires(name) or []) if is_for_here(each)
            )
            needed_at_run_time(filter(is_installed, map(canonical, needed)), known)
    return known


def is_for_here(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def is_installed(name: str) -> bool:
    return any(canonical(each.name) == name for each in importlib.metadata.distributions())


def licence(name: str) -> str:
    """A package's licence as its metadata declare it: the SPDX expression, else the older fields."""
    metadata = importlib.metadata.metadata(name)
    classifiers = [each for each in metadata.get_all("Classifier") or [] if each.startswith("License ::")]
    return metadata["License-Expression"] or metadata["License"] or classifiers[0].rpartition(":: ")[2]


def licence_rows() -> list[str]:
    """The rows of docs/dependencies.md for what is installed here, without torch's CUDA build."""
    requirements = importlib.metadata.requires("holmes-train") or []
    plain = (named(each) for each in requirements if "extra ==" not in each or 'extra == "torch"' in each)
    needed = sorted(needed_at_run_time(plain, set()))
    return [f"| {name} | {licence(name)} |" for name in needed if not name.startswith(CUDA_BUILD)]


def test_each_direct_dependency_is_locked_at_the_version_of_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.partition(";")[0].strip().split("==") for line in lines if not line.startswith("#"))
    versions = locked()

    assert {canonical(name) for name in pinned} == direct() | {"torch"}
    for name, version in pinned.items():
        if name != "torch":
            assert version in versions[canonical(name)], name


def test_the_lock_leaves_out_torch_and_what_its_cuda_build_brings() -> None:
    assert not [name for name in locked() if name.startswith(("torch", *CUDA_BUILD))]


def test_each_package_at_run_time_is_listed_with_its_licence() -> None:
    listed = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").splitlines()
    assert not [row for row in licence_rows() if row not in listed]
