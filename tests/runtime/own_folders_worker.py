"""`python -m tests.runtime.own_folders_worker FOLDER NAME...`: runs whose hosts, a rank each, have own folders.

The runs of `NAME`, which no other run begins with, are left out.
FOLDER/own_folders.json holds for each run its losses, how its ranks ended and what they said.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holmes_runtime.config.node_config import MEMORY_VARIABLE
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import CheckpointSettings

from .continuity_worker import STEPS, STOPPED_AFTER, ask_to_stop
from .forked_ranks import run
from .launched_runs import make_config, write_corpus

FOUR: dict[str, Any] = {"pipelines": ((0, 2), (3, 1)), "cuts": (0, 1, 3)}  # two stages of two replicas
THREE: dict[str, Any] = {"pipelines": ((0,), (1,), (2,)), "cuts": (0, 3), "microbatches": (4, 3, 1)}
TWO: dict[str, Any] = {"pipelines": ((0, 1),), "cuts": (0, 2, 3)}
CLUSTERS = {"h0": "a", "h1": "b", "h2": "b", "h3": "a"}
HOSTS = tuple(CLUSTERS)
MEMORY, MARK = Path("/dev/shm"), f"holmes-test-{os.getpid()}"
NEWEST = f"step-{STOPPED_AFTER:08d}"


class Worker:
    """The runs of one folder, by name."""

    def __init__(self, folder: Path, left_out: Collection[str] = ()) -> None:
        self._folder, self._corpus, self._left_out = folder, write_corpus(folder), left_out
        self.results: dict[str, dict[str, Any]] = {}

    def config(self, steps: int, plan: dict[str, Any], hosts: Sequence[str], **changes: Any) -> RunConfig:
        plain = make_config(self._corpus, steps=steps, **plan)
        ranks = tuple(replace(each, host=hosts[each.rank], cluster=CLUSTERS[hosts[each.rank]]) for each in plain.ranks)
        return replace(plain, ranks=ranks, **changes)

    def go_on(
        self,
        name: str,
        source: str,
        change: Callable[[Path], object] = lambda _: None,
        steps: int = STEPS,
        plan: dict[str, Any] = FOUR,
        hosts: Sequence[str] = HOSTS,
        before: Callable[[], None] = lambda: None,
        during: Callable[[list[int]], None] = lambda _: None,
        **changes: Any,
    ) -> None:
        """From what the run `source` saved, after `change` of its folders; from the beginning where there is none."""
        if name in self._left_out:
            return
        saved = self.saved(name)
        if source:
            shutil.copytree(self.saved(source), saved)
            change(saved)
        saving = CheckpointSettings(str(saved), 2, 4, 2)
        config = self.config(steps, plan, hosts, checkpoint=saving, resume=bool(source), **changes)
        self.results[name] = run(config, self._folder / name.replace(" ", "-"), before, during, own=own_folder)
        (self._folder / "own_folders.json").write_text(json.dumps(self.results))

    def saved(self, name: str) -> Path:
        return self._folder / f"saved-{name.replace(' ', '-')}"

    def all(self) -> None:
        """Every run."""
        self.results["uninterrupted"] = run(self.config(STEPS, FOUR, HOSTS), self._folder / "uninterrupted")
        self.go_on("stopped", "", steps=STOPPED_AFTER)
        self.go_on("nothing lost", "stopped")
        for host in HOSTS:
            self.go_on(f"{host} lost", "stopped", losing(host))
        self.go_on("h0 and h3 lost", "stopped", losing("h0", "h3"))
        self.go_on("gone back", "nothing lost", losing("h3"), resume_step=STOPPED_AFTER)
        self.go_on("gone back too far", "nothing lost", resume_step=1)
        self.go_on("on h0 h1 h2", "stopped", plan=THREE, hosts=HOSTS[:3])
        self.go_on("on h1 h2", "stopped", plan=TWO, hosts=HOSTS[1:3])
        self.go_on("on h0 h1", "stopped", plan=TWO, hosts=HOSTS[:2])
        self.damage()
        self.memory()

    def memory(self) -> None:
        """A run that is asked to stop keeps the newest checkpoint in memory; then disks hold zeros, or also a host is
        lost."""
        self.go_on("kept", "", steps=10**6, before=remembering("kept"), during=self.ask_one)
        stopped_after = int((self.saved("kept") / "h0" / "latest").read_text().strip().removeprefix("step-"))
        self.results["kept"]["stopped_after"] = stopped_after
        for name in ("from memory", "from memory without h3"):
            for host in HOSTS:
                shutil.copytree(memory_of("kept", host), memory_of(name, host))
        shutil.rmtree(memory_of("from memory without h3", "h3"))
        steps = stopped_after + 2
        self.go_on("from disk", "kept", steps=steps)
        self.go_on("from memory", "kept", zeros, steps=steps, before=remembering("from memory"))
        self.go_on(
            "from memory without h3",
            "kept",
            zeros_and_losing("h3"),
            steps=steps,
            before=remembering("from memory without h3"),
        )
        self.go_on("from zeros", "kept", zeros, steps=steps)
        for host in HOSTS:
            shutil.rmtree(memory_of("kept", host))
        self.results["left in memory"] = {"paths": [str(path) for path in MEMORY.glob(f"{MARK}-*")]}
        (self._folder / "own_folders.json").write_text(json.dumps(self.results))

    def ask_one(self, ranks: list[int]) -> None:
        """SIGTERM to one of the ranks once it trains."""
        ask_to_stop(ranks[2], self._folder / "kept" / "metrics" / "metrics-rank2.jsonl")

    def damage(self) -> None:
        """Runs that go on from folders in which something is wrong."""
        own, copy = (f"{host}/{NEWEST}/__0_0.distcp" for host in ("h0", "h1"))
        self.go_on("truncated", "stopped", lambda saved: os.truncate(saved / own, 100))
        self.go_on("flipped", "stopped", lambda saved: flip(saved / own))
        self.go_on("both flipped", "stopped", lambda saved: flip(saved / own, saved / copy))
        self.go_on("index flipped", "stopped", lambda saved: flip(saved / "h0" / NEWEST / "pieces.json"))
        self.go_on("no folder", "stopped", lambda saved: a_file_instead(saved / "h2"))
        self.go_on("full", "stopped", before=fill_one_disk)
        self.go_on("other run", "", steps=STOPPED_AFTER, run_id="other", seed=8)
        self.go_on("same run again", "", steps=STOPPED_AFTER, seed=8)
        for name, source in (("folder of other run", "other run"), ("folder of same step", "same run again")):
            self.go_on(name, "stopped", self.h3_as_after(source))
        self.go_on("old folder", "nothing lost", self.h3_as_after("stopped"), STEPS + 2)

    def h3_as_after(self, source: str) -> Callable[[Path], None]:
        """The folder of a host becomes what it was after another run, its clock an hour ahead."""

        def change(saved: Path) -> None:
            shutil.rmtree(saved / "h3")
            shutil.copytree(self.saved(source) / "h3", saved / "h3")
            for path in (saved / "h3").rglob("*"):
                later_s = path.stat().st_mtime + 3600
                os.utime(path, (later_s, later_s))

        return change


def losing(*hosts: str) -> Callable[[Path], None]:
    """Deletes the folders of those hosts."""

    def change(saved: Path) -> None:
        for host in hosts:
            shutil.rmtree(saved / host)

    return change


def zeros(saved: Path) -> None:
    """Nothing on any disk is what was written, and files are as long as they were."""
    for path in saved.glob("*/step-*/*.distcp"):
        path.write_bytes(bytes(path.stat().st_size))


def zeros_and_losing(*hosts: str) -> Callable[[Path], None]:
    """Both."""

    def change(saved: Path) -> None:
        zeros(saved)
        losing(*hosts)(saved)

    return change


def memory_of(name: str, host: str) -> Path:
    return MEMORY / f"{MARK}-{name.replace(' ', '-')}-{host}"


def remembering(name: str) -> Callable[[], None]:
    """Has each rank keep the newest checkpoint in a folder of its host's memory."""

    def before() -> None:
        os.environ[MEMORY_VARIABLE] = str(memory_of(name, HOSTS[int(os.environ["RANK"])]))

    return before


def own_folder(config: RunConfig, rank: int) -> RunConfig:
    """The configuration of a rank, whose folder is named after its host."""
    if config.checkpoint is None:
        return config
    path = f"{config.checkpoint.path}/{config.grid.rank(rank).host}"
    return replace(config, checkpoint=replace(config.checkpoint, path=path))


def flip(*paths: Path) -> None:
    """One bit in the middle of each file."""
    for path in paths:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def a_file_instead(folder: Path) -> None:
    """What cannot be written into, whoever tries."""
    shutil.rmtree(folder)
    folder.touch()


def fill_one_disk() -> None:
    """As on a full disk of host h1: no file there may grow beyond 64 KiB."""
    if os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))


if __name__ == "__main__":
    Worker(Path(sys.argv[1]), sys.argv[2:]).all()
