"""The folders where torch's compiler and Triton keep compiled code for the next run.

Homes may be on one NFS, where machines compete for files and locks. The folders are therefore on the machine's own
disk, in a folder private to one user, as their content is executed.
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

    If that folder cannot be used, it is the machine's own in `cache`, Holmes's folder in the home. It is not one per
    host of hosts.yaml, so hosts on one machine compile once.
    """
    folder = Path(f"{local}{os.geteuid()}")
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not is_private_folder(folder) or not os.access(folder, os.W_OK):
        folder = cache / "compiled" / (re.sub(r"[^A-Za-z0-9_-]", "-", machine) or "unnamed")
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
