"""Folders of this user that no other user can enter, in places where every user may create some."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def is_private_folder(folder: Path) -> bool:
    """Return True if it is a folder of this user, not a link, that no other user can enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
