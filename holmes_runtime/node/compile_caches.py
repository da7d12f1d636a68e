"""The folders where torch's compiler and Triton keep what they compiled for the next run.

Homes may be one on NFS, where machines race for files and locks. So they are on the machine's own disk, in a folder of
one user alone, as what lies there is run.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from holmes_runtime.config.node_config import COMPILED_FOLDER
from holmes_runtime.node.private_folder import is_private_folder


def compile_caches(cache: Path, machine: str, local: str = COMPILED_FOLDER) -> dict[str, str]:
    """Return the variables of both, in a folder named `local` and the user's number.

    Where that cannot be had, it is the machine's own in `cache`, Holmes' folder in the home: no host's of hosts.yaml,
    so that hosts on one machine compile once.
    """
    folder = Path(f"{local}{os.geteuid()}")
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not is_private_folder(folder) or not os.access(folder, os.W_OK):
        folder = cache / "compiled" / (re.sub(r"[^A-Za-z0-9_-]", "-", machine) or "unnamed")
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
