"""Every run of this user on this controller, found from any folder through links in ~/.local/state/holmes/runs."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holmes_core.errors import HolmesError
from holmes_core.records.islands import ISLAND
from holmes_core.records.run import Controller, Run
from holmes_core.state_folder import state_folder
from launcher.journal.run_folder import EVENTS_FILE, holds_run, is_island, island_folders, read_run
from launcher.journal.step_file import METRICS_FILE, last_step

Watched = Literal["watched", "elsewhere", "unwatched", "ended"]


@dataclass(frozen=True)
class StoredRun:
    """A run and its folder."""

    folder: Path
    run: Run

    @property
    def watched(self) -> Watched:
        """The state of the run's controller. A controller on another machine, as in a batch job, may be alive."""
        if self.run.state != "running":
            return "ended"
        if self.run.controller is None:
            return "unwatched"
        if self.run.controller.host not in ("", socket.gethostname()):
            return "elsewhere"
        return "watched" if is_alive(self.run.controller) else "unwatched"

    @property
    def goes_on(self) -> bool:
        """True while its ranks train. A detached run needs a controller only if it has islands, which meet there."""
        goes_on_alone = self.run.settings.detached and not self.islands
        return self.run.state == "running" and (self.watched != "unwatched" or goes_on_alone)

    @property
    def islands(self) -> tuple[StoredRun, ...]:
        """The islands of a run, in order; none for an ordinary run or an island."""
        return tuple(StoredRun(folder, read_run(folder)) for folder in island_folders(self.folder))

    @property
    def whole(self) -> StoredRun | None:
        """The run to which this island belongs; None if this is not an island."""
        above = self.folder.parent
        return StoredRun(above, read_run(above)) if is_island(self.folder) else None

    @property
    def steps_done(self) -> int:
        """The number of steps of the training, by the last line of its metrics, which is newer than run.json.

        For a run of islands, it is the number of the island that is furthest.
        """
        islands = self.islands
        if islands:
            return max(island.steps_done for island in islands)
        with contextlib.suppress(HolmesError):
            last = last_step(self.folder)
            return self.run.steps_done if last is None else last + 1
        return self.run.steps_done

    @property
    def silent_s(self) -> float:
        """Seconds since its controller last wrote a step or an event; 0 if it has written none."""
        times_s = []
        for name in (METRICS_FILE, EVENTS_FILE):
            with contextlib.suppress(OSError):
                times_s.append((self.folder / name).stat().st_mtime)
        return max(0.0, time.time() - max(times_s)) if times_s else 0.0


def remember(folder: Path) -> None:
    """Make a run known to later commands."""
    links = _links_folder()
    links.mkdir(mode=0o700, parents=True, exist_ok=True)
    (links / folder.name).symlink_to(folder.absolute())


def all_runs() -> list[StoredRun]:
    """Return every run whose folder still exists, oldest first."""
    found = []
    for link in sorted(_links_folder().glob("*")):
        if not holds_run(link):
            link.unlink(missing_ok=True)
            continue
        with contextlib.suppress(HolmesError):  # of another version of Holmes
            found.append(StoredRun(Path(os.path.realpath(link)), read_run(link)))
    return found


def find_run(name: str) -> StoredRun:
    """Return the run with that id, unique prefix of an id, or folder. Raises HolmesError for none or several."""
    if holds_run(Path(name)):
        folder = Path(os.path.realpath(name))
        return StoredRun(folder, read_run(folder))
    runs = all_runs()
    found = [stored for stored in runs if stored.run.run_id.startswith(name)]
    if not found and ISLAND in name:
        found = [island for stored in runs for island in stored.islands if island.run.run_id == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise HolmesError(f"run {name}: {len(found)} runs begin with it", "give more of the id; `holmes ps` lists them")
    last = f"; the last is {runs[-1].run.run_id}" if runs else ""
    raise HolmesError(f"run {name}: not known here{last}", "`holmes ps` lists the runs; or name a run's folder")


def last_run() -> StoredRun:
    """Return the run that started last. Raises HolmesError if there is none."""
    runs = all_runs()
    if not runs:
        raise HolmesError("you have started no run on this machine", "`holmes launch plan.json` starts one")
    return max(runs, key=lambda stored: stored.run.started_at_s)


def this_process() -> Controller:
    """Return this process as the controller of a run."""
    return Controller(pid=os.getpid(), start_ticks=_start_ticks(os.getpid()) or 0, host=socket.gethostname())


def is_alive(controller: Controller) -> bool:
    """Return True if the very process still runs. The id alone could belong to a newer process."""
    return _start_ticks(controller.pid) == controller.start_ticks


def _start_ticks(pid: int) -> int | None:
    """Return field 22 of /proc/PID/stat, None if the process is absent or has ended, and 0 without /proc."""
    if not Path("/proc/self/stat").exists():
        with contextlib.suppress(OSError):
            os.kill(pid, 0)
            return 0
        return None
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[19])
    return None


def _links_folder() -> Path:
    return state_folder() / "runs"
