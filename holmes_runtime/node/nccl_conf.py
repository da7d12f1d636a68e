"""The files from which NCCL reads settings, and their format. Free of torch.

Source: NCCL 2.29, src/misc/param.cc: NCCL_CONF_FILE, else ~/.nccl.conf; then /etc/nccl.conf. The environment takes
precedence over all of them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_SETTING = re.compile(r"^[ \t]*(?:export[ \t]+|setenv[ \t]+)?(NCCL_[A-Z0-9_]+)[= ](\S*)", re.MULTILINE)


def conf_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files that NCCL reads, highest precedence first."""
    return Path(environ.get("NCCL_CONF_FILE") or "~/.nccl.conf").expanduser(), Path("/etc/nccl.conf")


def settings_in(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each NCCL variable set in `file`, which may be a shell's start-up file."""
    with contextlib.suppress(OSError):
        for name, value in _SETTING.findall(file.read_text(encoding="utf-8", errors="replace")):
            yield name, value.strip("'\";")
