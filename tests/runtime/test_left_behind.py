"""What a killed run has left on a host is removed by the next run there, and what a living run has is not."""

from __future__ import annotations

import os
import time
from pathlib import Path

from holmes_runtime.config.node_config import AGENT_LOCK_FILE
from holmes_runtime.node.left_behind import LEFT_AFTER_S, hold, remove_memory, remove_unstarted


def left(within: Path, name: str, age_s: float) -> Path:
    """A folder with one rank's part that nobody has written into for so long."""
    folder = within / name
    part = folder / "0" / "save"
    part.mkdir(parents=True)
    (part / "piece").write_bytes(bytes(100))
    for path in (folder / "0", folder):
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    return folder


def test_an_old_folder_that_nobody_holds_is_removed(tmp_path: Path) -> None:
    old, new, other = (
        left(tmp_path, f"holmes-{tmp_path.name}-a", 2 * LEFT_AFTER_S),
        left(tmp_path, f"holmes-{tmp_path.name}-b", LEFT_AFTER_S / 2),
        left(tmp_path, "another-program", 2 * LEFT_AFTER_S),
    )

    remove_memory(time.time(), tmp_path)

    assert [path.exists() for path in (old, new, other)] == [False, True, True]


def test_an_old_folder_of_a_run_whose_agent_lives_stays(tmp_path: Path) -> None:
    folder = left(tmp_path, f"holmes-{tmp_path.name}-c", 2 * LEFT_AFTER_S)
    held = hold(folder)
    assert held is not None

    remove_memory(time.time(), tmp_path)
    assert folder.exists()

    held.close()
    remove_memory(time.time(), tmp_path)
    assert not folder.exists()


def test_a_link_of_that_name_and_what_it_names_stay(tmp_path: Path) -> None:
    mine = left(tmp_path, "mine", 2 * LEFT_AFTER_S)
    (tmp_path / "holmes-link").symlink_to(mine)

    remove_memory(time.time(), tmp_path)

    assert (mine / "0" / "save" / "piece").exists()


def test_an_old_folder_in_which_no_agent_began_is_removed(tmp_path: Path) -> None:
    unstarted, started, new = (left(tmp_path, f"run-{each}", 2 * LEFT_AFTER_S) / "0" for each in range(3))
    (started / AGENT_LOCK_FILE).touch()
    (new / "sent just now").touch()
    for folder in (unstarted, started):
        os.utime(folder, (time.time() - 2 * LEFT_AFTER_S,) * 2)

    remove_unstarted(time.time(), tmp_path)

    assert [path.exists() for path in (unstarted, unstarted.parent, started, new)] == [False, False, True, True]
