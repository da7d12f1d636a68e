"""Where NCCL takes its settings from beside the environment, and how they are written. Free of torch.

Source: NCCL 2.29, src/misc/param.cc: NCCL_CONF_FILE, else ~/.nccl.conf; then /etc/nccl.conf. The environment comes
before all of them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_SETTING = re.compile(r"^[ \t]*(?:export[ \t]+|setenv[ \t]+)?(NCCL_[A-Z0-9_]+)[= ](\S*)", re.MULTILINE)


def conf_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The files NCCL reads, the one that counts first."""
    return Path(environ.get("NCCL_CONF_FILE") or "~/.nccl.conf").expanduser(), Path("/etc/nccl.conf")


def settings_in(file: Path) -> Iterator[tuple[str, str]]:
    """Name and value of each NCCL variable that `file` sets, a shell's start-up file too; none if it is not there."""
    with contextlib.suppress(OSError):
        for name, value in _SETTING.findall(file.read_text(encoding="utf-8", errors="replace")):
            yield name, value.strip("'\";")
