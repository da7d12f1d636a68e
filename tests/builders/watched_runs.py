"""A recorded run of two hosts, one rank each, whose readings a test edits to plant a cause."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from holmes_core.records.inventory import Inventory
from prober.asking.commands import Command
from prober.asking.recording import HostNotes, HostRecording, Recorded, read_recorded_hosts, write_recording
from prober.running import watch_script as asked
from prober.running.diagnose_run import RunDiagnosis, diagnose_run
from prober.running.watch_hosts import run_of
from prober.running.watched_run import WatchedRun

RECORDED = Path(__file__).parents[1] / "data" / "watched_runs" / "ddp_gloo"
PIDS = {"a1": 17568, "a2": 17569}
SECONDS = 9.4  # that the recording lasted, about
_CPU = 11  # place of utime after the name's bracket
Change = Callable[["Watched"], None]


class Watched:
    """The outputs of the recording, by host, and edits of them."""

    def __init__(self) -> None:
        self.hosts = {name: list(each.outputs) for name, each in read_recorded_hosts(RECORDED).items()}
        self.failures = dict[str, HostRecording]()
        for name in self.hosts:
            self.age(name, 3600.0)

    def run(self, probed: Inventory | None = None) -> WatchedRun:
        return run_of({name: HostRecording(tuple(each)) for name, each in self.hosts.items()} | self.failures, probed)

    def diagnosis(self, probed: Inventory | None = None) -> RunDiagnosis:
        return diagnose_run(self.run(probed))

    def write(self, folder: Path) -> None:
        """Write the recording as `--record` does."""
        for position, (name, outputs) in enumerate(self.hosts.items()):
            write_recording(folder, name, outputs, HostNotes(position=position))

    def edit(self, host: str, command: Command, change: Callable[[str], str], last: bool = False) -> None:
        """Change the text of every output of the command, or of the last one."""
        outputs = self.hosts[host]
        places = [at for at, each in enumerate(outputs) if each.command == (command.shown or command.shell)]
        for at in places[-1:] if last else places:
            outputs[at] = replace(outputs[at], text=change(outputs[at].text))

    def sub(self, host: str, command: Command, pattern: str, new: str) -> None:
        self.edit(host, command, lambda text: re.sub(pattern, new, text, flags=re.MULTILINE))

    def answer(self, host: str, command: Command, *texts: str) -> None:
        """Give each output of the command the next of the texts, and those after them the last."""
        outputs = [each for each in self.hosts[host] if each.command != (command.shown or command.shell)]
        self.hosts[host] = [*outputs, *(Recorded(command.shown or command.shell, text, 0) for text in texts)]

    def state(self, host: str, letters: str) -> None:
        """Give the rank's main thread these states in the snapshots."""
        left = iter(letters)
        self.edit(host, asked.MAIN_THREADS, lambda text: re.sub(r"\) [A-Z] ", lambda _: f") {next(left)} ", text))

    def cpu(self, host: str, share: float) -> None:
        """Let the rank and its main thread use so many CPU seconds a second."""
        for command in (asked.PROCESSES, asked.MAIN_THREADS):
            texts = [each.text for each in self.hosts[host] if each.command == command.shown]
            first = next(line for line in texts[0].splitlines() if line.startswith(f"{PIDS[host]} "))
            self.edit(host, command, partial(_replaced, PIDS[host], _with_cpu(first, share)), last=True)

    def age(self, host: str, seconds: float) -> None:
        """Let the rank have started so long before the watch."""
        began_s = next(float(each.text.split()[0]) for each in self.hosts[host] if each.command == asked.UPTIME.shell)
        ticks = round((began_s - seconds) * 100)
        start = re.compile(rf"^({PIDS[host]} \(.*\)(?: \S+){{19}}) \d+", re.MULTILINE)
        self.edit(host, asked.PROCESSES, lambda text: start.sub(rf"\g<1> {ticks}", text))

    def process(self, host: str, pid: int, name: str, share: float, parent: int = 1) -> None:
        """Add a process that uses so many CPU seconds a second."""
        line = f"{pid} ({name}) R {parent} " + " ".join("0" for _ in range(40))
        self.edit(host, asked.PROCESSES, lambda text: f"{text}{line}\n")
        self.edit(host, asked.PROCESSES, lambda text: text.replace(line, _with_cpu(line, share)), True)

    def loader(self, host: str, pid: int, share: float) -> None:
        """Add a loader process of the rank, which inherits its environment."""
        self.process(host, pid, "pt_data_worker", share, PIDS[host])
        self.family(host, pid)

    def family(self, host: str, pid: int, rank: int | None = None) -> None:
        """Give the process the rank's environment, or that of another rank."""

        def copied(text: str) -> str:
            own = [line for line in text.splitlines() if f"/{PIDS[host]}/" in line]
            lines = "\n".join(own).replace(str(PIDS[host]), str(pid))
            return text + (lines if rank is None else re.sub(r":RANK=\d+", f":RANK={rank}", lines)) + "\n"

        self.edit(host, asked.ENVIRONMENT, copied)

    def quiet(self, host: str) -> None:
        """Let the rank neither compute nor send nor read, and wait in one place."""
        self.cpu(host, 0.0)
        self.state(host, "SSSSSS")
        for command in (asked.SOCKETS, asked.DISK):
            first = next(each.text for each in self.hosts[host] if each.command == command.shown)
            self.edit(host, command, lambda _, first=first: first)  # type: ignore[misc]
        self.sub(host, asked.WAIT_CHANNELS, ":.*$", ":ep_poll")

    def gpus(
        self, host: str, *, use: int = 95, clock: int = 1900, reasons: str = "0x0", ecc: tuple[int, int] = (0, 0)
    ) -> None:
        """Give the host one GPU, which its rank uses."""
        rows = [f"0, GPU-{host}, {use}, {clock}, 1980, {count}, {reasons}\n" for count in ecc]
        self.answer(host, asked.GPUS, *rows)
        self.answer(host, asked.GPU_PROCESSES, f"GPU-{host}, {PIDS[host]}\n")

    def ports(self, host: str, *grown: int) -> None:
        """Give the host an active RDMA port for each number of bytes that it carries."""
        folders = [f"/sys/class/infiniband/mlx5_{number}/ports/1" for number in range(len(grown))]
        facts = ("state:4: ACTIVE", "rate:400 Gb/sec (4X NDR)", "link_layer:InfiniBand")
        self.answer(host, asked.PORTS, "".join(f"{folder}/{fact}\n" for folder in folders for fact in facts))
        counted = [
            "".join(
                f"{folder}/counters/{name}:{1000 + size // 4 * late}\n"
                for folder, size in zip(folders, grown, strict=True)
                for name in ("port_xmit_data", "port_rcv_data")
            )
            for late in (0, 1)
        ]
        self.answer(host, asked.PORT_COUNTERS, *counted)


def _replaced(pid: int, line: str, text: str) -> str:
    return re.sub(rf"^{pid} .*$", line, text, flags=re.MULTILINE)


def _with_cpu(line: str, share: float) -> str:
    head, _, rest = line.rpartition(") ")
    words = rest.split()
    words[_CPU] = str(int(words[_CPU]) + round(share * SECONDS * 100))
    return f"{head}) {' '.join(words)}"
