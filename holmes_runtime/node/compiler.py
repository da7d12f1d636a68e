"""The requirements of compiled layers and of FP8 on a host with torch. Free of torch: checked before ranks start."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

HEADERS = Path(sysconfig.get_path("include", scheme="posix_prefix"))  # where torch and triton look for them


def missing_for_compile(on_gpu: bool, environ: Mapping[str, str], headers: Path = HEADERS) -> str | None:
    """Return the first thing that compiled layers need and this host, under `environ`, lacks; None if it has all.

    They need a C++ compiler and the headers of this Python; on GPUs also triton and a C compiler for its launchers.
    Sources: torch/_inductor/cpp_builder.py; triton/runtime/build.py.
    """
    name, tried, what = ("CC", ["gcc", "clang"], "C") if on_gpu else ("CXX", ["g++"], "C++")
    wanted = [environ[name]] if name in environ else tried
    if not any(shutil.which(compiler, path=environ.get("PATH")) for compiler in wanted):
        return f"a {what} compiler: there is no {' or '.join(wanted)}"
    if on_gpu and importlib.util.find_spec("triton") is None:
        return "triton, which this Python does not have"
    if not (headers / "Python.h").is_file():
        return f"the headers of this Python: there is no {headers / 'Python.h'}"
    return None


def missing_for_fp8() -> str | None:
    """Return the package that layers in FP8 need and this Python lacks; None if it has it."""
    return "torchao, which this Python does not have" if importlib.util.find_spec("torchao") is None else None
