"""Compiled layers and kernels stay on the machine's own disk, in a folder that only their user can enter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holmes_runtime.node.start_torchrun import compile_caches


def test_both_compilers_keep_theirs_on_the_machine(tmp_path: Path) -> None:
    caches = compile_caches(tmp_path / "home", "gpu-a1", f"{tmp_path}/compiled-")
    folder = tmp_path / f"compiled-{os.geteuid()}"
    assert caches == {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    assert compile_caches(tmp_path / "home", "gpu-a1", f"{tmp_path}/compiled-") == caches


@pytest.mark.parametrize("way", ["others can enter", "link", "file", "no such place"])
def test_folder_that_another_user_may_have_made_is_not_used(tmp_path: Path, way: str) -> None:
    """Ranks run the code in the cache."""
    folder = tmp_path / f"compiled-{os.geteuid()}"
    if way == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif way == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    local = tmp_path / "gone" if way == "no such place" else tmp_path
    caches = compile_caches(tmp_path / "home", "gpu-a1", f"{local}/compiled-")
    assert caches["TRITON_CACHE_DIR"] == str(tmp_path / "home" / "compiled" / "gpu-a1" / "triton")


@pytest.mark.parametrize(("machine", "name"), [("a.b/../c", "a-b----c"), ("..", "--"), ("", "unnamed")])
def test_name_of_a_machine_leads_out_of_no_folder(tmp_path: Path, machine: str, name: str) -> None:
    caches = compile_caches(tmp_path, machine, f"{tmp_path}/gone/compiled-")
    assert caches["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled" / name / "inductor")
