"""The folder for what outlives a command."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """Return `$XDG_STATE_HOME/holmes`, else ~/.local/state/holmes."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "holmes"
