"""What `holmes launch` costs: fan-out to 256 hosts, and time to the first step against torchrun typed by hand.

Fan-out: a host is a loopback address with a home of its own, sshd real, agent real, and torch a stub of a few lines
that waits to be ended: connecting, shipping, preflight, starting and ending are measured, 256 trainings on one machine
are not. The sshds, shells and two Pythons of every host share the controller's cores, so the seconds are more than a
real fleet's; the controller's own part is the column of its CPU seconds. Their homes are in memory, as 256 hosts do not
write to one disk. First step: on the bed, `holmes launch`
against bare torchrun started on all four hosts at once, same plan and same runtime, in turns.
"""

from __future__ import annotations

import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figure import print_figure
from benchmarks.probe_scale import address, running_hosts
from holmes_core.records.access import Access
from holmes_core.records.inventory import Cluster, Host, Inventory, Network
from holmes_core.records.plan import Node, Plan
from holmes_core.records.record_file import read_file, write_signed
from launcher.prepare.prepare import run_config_of
from tests.planner.fleets import bed_job, netdev, plan_for, port
from tests.testbed.rehearsal import Site, bed_site, standard_library_corpus

SIZES = (8, 64, 256)
REPETITIONS = 3
MEMORY_FOLDER = "/dev/shm"
HOME_BY_ADDRESS = 'set -- $SSH_CONNECTION\nexport HOME="{folder}/homes/$3"\nmkdir -p "$HOME"\n'
PYTHON = '#!/bin/sh\nexec env PYTHONPATH="{stubs}" "{python}" -S "$@"\n'
TORCH = {
    "torch/__init__.py": "",
    "torch/version.py": "__version__ = '2.13.0'\n",
    "torch/_C/__init__.py": "",
    "torch/_C/_distributed_c10d.py": "PrefixStore = TCPStore = object\n",
    "torch/distributed/__init__.py": "",
    "torch/distributed/run.py": "import time\ndef parse_args(arguments): ...\ndef run(arguments): time.sleep(600)\n",
    "torch/distributed/elastic/__init__.py": "",
    "torch/distributed/elastic/multiprocessing/__init__.py": "",
    "torch/distributed/elastic/multiprocessing/errors.py": "class ChildFailedError(Exception): ...\n",
    "torch/distributed/elastic/rendezvous/__init__.py": (
        "class rendezvous_handler_registry:\n    register = staticmethod(lambda *given: None)\n"
        "RendezvousInfo = RendezvousParameters = RendezvousStoreInfo = object\n"
    ),
    "torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py": "class StaticTCPRendezvous: ...\n",
    "torch/distributed/elastic/rendezvous/utils.py": "parse_rendezvous_endpoint = None\n",
}


def main() -> None:
    """Both ways to the first step, then fan out to each size twice."""
    with tempfile.TemporaryDirectory(prefix="holmes-launch-") as name, bed_site(Path(name)) as site:
        first_steps(site)
    with tempfile.TemporaryDirectory(prefix="holmes-launch-", dir=MEMORY_FOLDER) as name:
        fan_outs(Path(name))


@dataclass(frozen=True)
class FanOut:
    """One launch that is ended by Ctrl-C once all ranks start. `cpu_s` and `peak_mb` are the controller's own."""

    start_s: float
    end_s: float
    cpu_s: float
    peak_mb: float


def fan_outs(folder: Path) -> None:
    """Seconds until the ranks start on every host; the second launch finds everything there."""
    table = Table(title="holmes launch until ranks start, client and servers on the same cores", title_justify="left")
    for heading in ("hosts", "launch", "started after s", "ended within s", "controller's CPU s", "peak MB"):
        table.add_column(heading, justify="right")
    with running_hosts(folder, max(SIZES)) as sshd_port:
        write_stubs(folder)
        for size in SIZES:
            plan = write_plan(folder, size, sshd_port)
            for launch, figure in (("first", "fanout_seconds"), ("second", "fanout_again_seconds")):
                row = fan_out(folder, plan, size)
                cells = (f"{row.start_s:.1f}", f"{row.end_s:.1f}", f"{row.cpu_s:.1f}", f"{row.peak_mb:.0f}")
                table.add_row(str(size), launch, *cells)
                print_figure(f"launch.{figure}.{size}", row.start_s, "s")
    print_figure(f"launch.fanout_peak_mb.{max(SIZES)}", row.peak_mb, "MB")
    Console(highlight=False, width=120).print(table)


def write_stubs(folder: Path) -> None:
    """A home for each address, and a Python whose torch is a stub."""
    stubs = folder / "stubs"
    for name, text in TORCH.items():
        (stubs / name).parent.mkdir(parents=True, exist_ok=True)
        (stubs / name).write_text(text, encoding="utf-8")
    (folder / "host" / ".bashrc").write_text(HOME_BY_ADDRESS.format(folder=folder), encoding="utf-8")
    python = folder / "host" / "bin" / "python3"
    python.write_text(PYTHON.format(stubs=stubs, python=sys.executable), encoding="utf-8")


def write_plan(folder: Path, size: int, sshd_port: int) -> Path:
    """The plan of one CPU slot a host, half of them in each of two clusters, 4 stages."""
    clusters, hosts = [], []
    for index in range(2):
        numbers = range(index * size // 2, (index + 1) * size // 2)
        names = [f"s{number:03}" for number in numbers]
        for number, name in zip(numbers, names, strict=True):
            access = Access(
                address=address(number),
                port=sshd_port,
                ssh_config=str(folder / "ssh_config"),
                python=str(folder / "host" / "bin" / "python3"),
            )
            netdevs = (netdev("lo", f"{address(number)}/8", 10.0),)
            hosts.append(Host(name=name, access=access, reachable=True, hostname=name, netdevs=netdevs))
        ports = tuple(port(f"s{number:03}", "lo", address(number), 10.0) for number in numbers)
        fabric = Network(name="ab"[index], kind="Ethernet", subnet="127.0.0.0/8", ports=ports)
        clusters.append(Cluster(name="ab"[index], hosts=tuple(names), fabric=fabric))
    shared = Network(
        name="shared",
        kind="Ethernet",
        subnet="127.0.0.0/8",
        ports=tuple(port(host.name, "lo", str(host.access.address), 1.0) for host in hosts),
    )
    inventory = Inventory(hosts=tuple(hosts), clusters=tuple(clusters), shared=shared, findings=())
    parallel = {"pp": 4, "dp": size // 4, "micro_batch_size": 1, "tp": 1}
    path = folder / f"plan-{size}.json"
    job = bed_job(parallel=parallel, global_batch_size=size, data=standard_library_corpus())
    write_signed(path, plan_for(inventory, job))
    return path


def fan_out(folder: Path, plan: Path, size: int) -> FanOut:
    """Launch until all ranks start, then end it. Raises SystemExit if either fails."""
    command = [sys.executable, "-m", "holmes_cli", "launch", str(plan), "--runs", str(folder / "runs")]
    command += ["--force", "versions", "--force", "disk"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said, start_s = "", None
    for line in process.stderr:
        said += line
        if f"{size} of {size} nodes: starting ranks" in line:
            start_s = time.perf_counter() - started
            process.send_signal(signal.SIGINT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if start_s is None or process.returncode != 130:
        raise SystemExit(f"holmes launch to {size} hosts exited with {process.returncode}:\n{said[-3000:]}")
    end_s = time.perf_counter() - started - start_s
    return FanOut(start_s, end_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000)


def first_steps(site: Site) -> None:
    """Median seconds to the first step of both ways, started in turns."""
    plan = make_bed_plan(site)
    times: dict[str, list[float]] = {"holmes launch": [], "torchrun by hand": []}
    for repetition in range(REPETITIONS):
        times["holmes launch"].append(launched_s(site, plan, repetition))
        times["torchrun by hand"].append(typed_s(site, plan, repetition))
    table = Table(title="seconds to the first step, four hosts", title_justify="left")
    for heading in ("way", "median", "each"):
        table.add_column(heading)
    for way, seconds in times.items():
        table.add_row(way, f"{statistics.median(seconds):.2f}", " ".join(f"{each:.2f}" for each in seconds))
    Console(highlight=False, width=120).print(table)
    ratio = statistics.median(times["holmes launch"]) / statistics.median(times["torchrun by hand"])
    print_figure("launch.over_torchrun", ratio, "x")


def make_bed_plan(site: Site) -> Path:
    """A small job on all four hosts."""
    job = {
        "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32},
        "data": standard_library_corpus(),
        "global_batch_size": 8,
        "steps": 2,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": {"pp": 2, "dp": 2, "micro_batch_size": 1},
    }
    inventory, plan = str(site.folder / "inventory.json"), site.folder / "plan.json"
    run(site.command("probe", str(site.hosts_yaml), "-o", inventory))
    run(site.command("plan", str(site.write_job("job", job)), "-i", inventory, "-o", str(plan)))
    return plan


def launched_s(site: Site, plan: Path, repetition: int) -> float:
    """Seconds from the command to the line of the first step."""
    started = time.perf_counter()
    command = site.command("launch", str(plan), "--runs", str(site.folder / f"runs-{repetition}"))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith("step 1/"):
            seconds = time.perf_counter() - started
            process.communicate()
            return seconds
    raise SystemExit(f"holmes launch took no step:\n{said}")


def typed_s(site: Site, path: Path, repetition: int) -> float:
    """Seconds from starting torchrun on every host to the first line of metrics."""
    plan = read_file(Plan, path)
    folder = site.folder / f"typed-{repetition}"
    folder.mkdir()
    (folder / "run_config.json").write_text(run_config_of(plan, "typed").to_json(), encoding="utf-8")
    started = time.perf_counter()
    processes = [type_torchrun(site, plan, node, folder) for node in plan.nodes]
    metrics = folder / "metrics-rank0.jsonl"
    while not metrics.exists() or not metrics.read_text(encoding="utf-8").endswith("\n"):
        if any(process.poll() not in (None, 0) for process in processes):
            raise SystemExit(f"torchrun failed; its logs are in {folder}")
        time.sleep(0.01)
    seconds = time.perf_counter() - started
    for process in processes:
        process.wait()
    return seconds


def type_torchrun(site: Site, plan: Plan, node: Node, folder: Path) -> subprocess.Popen[bytes]:
    """torchrun on one host, with the plan's environment."""
    assert site.bed is not None
    first = plan.nodes[0]
    variables = {variable.name: variable.value for variable in node.environment}
    variables |= {"PYTHONPATH": str(Path(__file__).parent.parent), "HOLMES_METRICS_DIR": str(folder)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(plan.nodes))]
    torchrun += ["--node-rank", str(node.node_rank), "--nproc-per-node", str(node.num_ranks)]
    torchrun += ["--master-addr", first.shared_address, "--master-port", str(plan.job.master_port)]
    torchrun += ["-m", "holmes_runtime.train", str(folder / "run_config.json")]
    command = ["env", *(f"{name}={value}" for name, value in variables.items()), *torchrun]
    with open(folder / f"{node.host}.log", "wb") as log:
        return subprocess.Popen(site.bed.on_host_command(node.host, command), stdout=log, stderr=log)


def run(command: Sequence[str]) -> None:
    """Run one command; its output is shown only when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job; launches inherit it
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    main()
