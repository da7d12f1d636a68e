"""What commands show at 80 and 120 columns, kept in tests/data/screens. `python -m tests.cli.screens` writes it anew.

Read the diff before accepting it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from rich.color import ColorSystem

from holmes_cli.commands.launch_command import show_preflight
from holmes_cli.commands.launched.ps_command import show_runs
from holmes_cli.commands.launched.status_command import RunSnapshot, print_snapshot
from holmes_cli.gpu_holders import show_claims
from holmes_cli.screen import terminal
from holmes_cli.screen.change_tables import mode_sheets, what_if_sheet
from holmes_cli.screen.comparison_tables import comparison_sheets
from holmes_cli.screen.run_view import RunView
from holmes_cli.screen.show_bundles import show_bundles
from holmes_cli.screen.show_inventory import show_changes, show_inventory, show_rule
from holmes_cli.screen.show_origin import ForeignFile, confirm_foreign
from holmes_cli.screen.show_plan import islands_sheet, show_islands, show_plan, show_sheet
from holmes_cli.screen.show_run import show_run
from holmes_core.errors import HolmesError
from holmes_core.records.access import LaunchSettings
from holmes_core.records.inventory import Finding, Inventory
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.run import Controller, Failure, MeasuredTraffic, Run, Settings
from holmes_runtime.config.node_config import GpuClaim
from holmes_runtime.config.run_settings import IslandsSettings
from launcher.journal.run_events import LogLine, NodeState, Notice
from launcher.journal.run_store import StoredRun
from launcher.journal.step_metrics import StepMetrics, StepTraffic, by_interface
from launcher.nodes.preflight import Fault, Preflight
from launcher.prepare.bundle import Parcel
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.trusted_parts import TrustedPart
from launcher.prepare.user_variables import UserVariables
from planner.advice.changes import apply_changes
from planner.advice.what_if import parse_changes
from planner.islands.uniform_links import with_uniform_links
from prober.differences import peer_differences
from prober.fabrics.clusters import find_clusters, find_shared_network
from prober.findings.catalogue import CATALOGUE
from tests.builders.clustered_hosts import host_in_cluster, infiniband_host, roce_host_at
from tests.cli.folder_screens import checkpoints, islands_status
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.planner.islands_jobs import planned_mode
from tests.planner.measured_links import measured, with_links

FOLDER = Path(__file__).parent.parent / "data" / "screens"
WIDTHS = (80, 120)
FIXED = {"pp": 2, "dp": 32, "micro_batch_size": 1, "schedule": "1f1b", "recompute": "none"}
RUNS = Path("runs")
HOME = Path("/home/mary")
STARTED_S = 1.7e9


def plan_and_gpu_fleet() -> tuple[Plan, Inventory]:
    """Eight hosts of eight A100 in two clusters."""
    fleet = gpu_inventory([4, 4])
    return plan_for(fleet, gpt_7b(parallel=FIXED, steps=100_000)), fleet


def bed_plan() -> Plan:
    """The bed's job."""
    return plan_for(cpu_inventory([2, 2], shared_gbps=0.02), bed_job())


def step(number: int, plan: Plan) -> StepMetrics:
    """A step of a run as planned."""
    guess, node = plan.prediction, plan.nodes[0]
    return StepMetrics(
        step=number,
        loss=3.5,
        eval_loss=None,
        grad_norm=1.0,
        learning_rate=1e-3,
        step_s=guess.step_s,
        compute_s=guess.compute_s,
        exposed_s=0.1,
        tokens_per_s=guess.tokens_per_s,
        tflops_per_s=100.0,
        mfu=0.4321,
        memory_bytes=42 << 30,
        verdicts=(),
        interfaces=(StepTraffic(node.host, "eth0", 2_150_000_000, 2_150_000_000),),
    )


def finished(plan: Plan, **changes: object) -> Run:
    """A run of 10 steps that ended well, or otherwise as `changes` say."""
    traffic = by_interface(plan.prediction.traffic)
    measured = tuple(
        MeasuredTraffic(
            **each.model_dump(include={"host", "netdev", "network", "sent_bytes", "received_bytes"}),
        )
        for each in traffic
    )
    run = Run(
        run_id="20261123-120000-abcd",
        plan_digest=plan.digest(),
        state="done",
        started_at_s=STARTED_S,
        ended_at_s=STARTED_S + 444.0,
        steps_done=10,
        first_loss=5.6,
        last_loss=3.77,
        tokens_per_s=plan.prediction.tokens_per_s,
        step_s=plan.prediction.step_s,
        traffic=measured,
    )
    return run.model_copy(update=changes)


def _plan() -> None:
    show_plan(*plan_and_gpu_fleet())


def _far() -> Inventory:
    return with_uniform_links(cpu_inventory([2, 2]), 0.002 * GBPS, 0.02)


@cache
def islands_plan() -> IslandsPlan:
    """The bed's clusters at 2 Mbit/s."""
    plan = planned_mode(_far(), bed_job(parallel={}, steps=100, islands=IslandsSettings(inner_steps=20)))
    assert isinstance(plan, IslandsPlan)
    return plan


def _islands() -> None:
    plan = islands_plan()
    show_islands(plan, _far(), (islands_sheet(plan), *mode_sheets(plan.modes)))


def _dry_run() -> None:
    plan, _ = plan_and_gpu_fleet()
    job = plan.job.model_copy(update={"launch": LaunchSettings(environment={"HF_HOME": "/data/hf"})})
    plan = plan.model_copy(update={"job": job})
    parcels = Parcel({"runtime.py": "x" * 700_000}), Parcel({"run_config.json": "x" * 40_000, "plan.json": "x"})
    bundles = prepare(plan, Attempt("dry-run"), UserVariables({"HF_HOME": "/data/hf"}, {}))
    show_bundles([replace(bundle, parcels=parcels) for bundle in bundles], plan)


def _running() -> None:
    plan, _ = plan_and_gpu_fleet()
    view = RunView(plan, now_s=lambda: STARTED_S + 444.0)
    view.take_run("20261123-120000-abcd", STARTED_S)
    for node in plan.nodes:
        view.show(NodeState(node.host, node.cluster, "stepping"))
    view.show(LogLine("a1", "a", 0, "rank 0 on a1: what it is"))
    for number in range(49_998, 50_000):
        view.show(step(number, plan))
    view.show(Notice("slow link a1-b1: 1.6x longer than planned (0.45 s a message, not 0.28 s)"))
    terminal.err.print(view.screen())


def _failed() -> None:
    plan, last = bed_plan(), ("Traceback (most recent call last):", '  File "own_model.py", line 3', "KeyError: 'x'")
    with RunView(plan) as view:
        view.take_run("20261123-120000-abcd", STARTED_S)
        view.show(replace(step(0, plan), mfu=0.0))
        for rank in range(4):
            for line in last:
                view.show(LogLine(plan.ranks[rank].host, plan.ranks[rank].cluster, rank, line))
    cause = Failure(
        host="b1", cluster="b", rank=2, exit_code=1, message="KeyError: 'x'", last_lines=last, time_s=STARTED_S
    )
    peers = [cause.model_copy(update={"rank": rank, "time_s": STARTED_S + 1}) for rank in (0, 1, 3)]
    show_run(plan, finished(plan, state="failed", exit_code=1, failures=(cause, *peers)), RUNS / "20261123-120000-abcd")


def _done() -> None:
    plan = bed_plan()
    show_run(plan, finished(plan), RUNS / "20261123-120000-abcd")


def _preflight() -> None:
    show_preflight(Preflight((), frozenset()))
    show_preflight(Preflight((Fault("disk", "b1", "10 MiB free for the run's logs"),), frozenset()))


def _probe() -> None:
    """Two clusters, of which one host is down and one has an older torch."""
    old = roce_host_at("gpu-b2.example.org", 4)
    old = old.model_copy(update={"software": old.software.model_copy(update={"torch": "2.4.0"})})
    hosts = (
        infiniband_host("gpu-a1.example.org", 1),
        infiniband_host("gpu-a2.example.org", 2),
        roce_host_at("gpu-b1.example.org", 3),
        old,
    )
    clusters, found = find_clusters(hosts, {})
    away = host_in_cluster("gpu-b3.example.org").model_copy(update={"reachable": False})
    fleet = Inventory(hosts=(*hosts, away), clusters=clusters, shared=find_shared_network(hosts), findings=found)
    link = measured(("gpu-a1.example.org", "gpu-b1.example.org"), 1.1e9, 2e-4, streams=4)
    link = link.model_copy(update={"network": "shared"})
    finding = Finding(
        rule="HOST-NO-ANSWER",
        severity="F",
        hosts=(away.name,),
        evidence="no answer within 20 s",
        effect="the host is left out",
        remedy="look whether it is up",
    )
    show_inventory(with_links(fleet, link).model_copy(update={"findings": (*found, finding)}))
    show_changes("inventory.json", peer_differences(fleet))


def _explain() -> None:
    show_rule(CATALOGUE["NET-INTERFACE-DOWN"])


def _compare() -> None:
    plan, fleet = bed_plan(), cpu_inventory([2, 2], shared_gbps=0.02)
    usual = plan_for(fleet, bed_job(), order="usual")
    for sheet in comparison_sheets(plan, usual, "plan-usual.json"):
        show_sheet(sheet, terminal.out)
    faster = apply_changes(fleet, parse_changes("link:a-b=1Gb/s", fleet))
    outcomes: dict[str, Plan | HolmesError] = {
        "link:a-b=1Gb/s": plan_for(faster, bed_job()),
        "-host:b2": HolmesError("four hosts are needed", ""),
    }
    show_sheet(what_if_sheet(plan, outcomes), terminal.out)


def _ps() -> None:
    plan = bed_plan()
    here = Controller(pid=2**22 + 1, start_ticks=1, host="")
    batch = Controller(pid=1, start_ticks=1, host="login017.example.org")
    runs = (
        finished(plan),
        finished(plan, run_id="20261123-130000-ef01", state="failed", settings=Settings(detached=True)),
        finished(plan, run_id="20261123-140000-2345", state="running", steps_done=7, controller=batch),
        finished(plan, run_id="20261123-150000-6789", state="running", controller=here),
        finished(plan, run_id="20261123-160000-abab", state="running", settings=Settings(detached=True)),
    )
    stored = [StoredRun(HOME / "train" / "runs" / run.run_id, run) for run in runs]
    show_runs([(each, [plan]) for each in stored], STARTED_S + 5000)
    claims = tuple(GpuClaim(f"GPU-{gpu}", gpu, "mary", "20261123-120000-abcd", int(STARTED_S)) for gpu in range(8))
    show_claims([("gpu-a1.example.org", claims), ("gpu-b1.example.org", ()), ("b2", None)], STARTED_S + 5000)


def _status() -> None:
    plan, _ = plan_and_gpu_fleet()
    run = finished(plan, state="running", controller=Controller(pid=1, start_ticks=1, host="node017"))
    nodes = {node.host: "stepping" for node in plan.nodes}
    notices = ["slow link a1-b1: 1.6x longer than planned (0.45 s a message, not 0.28 s)"]
    print_snapshot(RunSnapshot(StoredRun(HOME / "runs" / run.run_id, run), plan, [step(7, plan)], nodes, notices))


def _foreign() -> None:
    brought = (
        TrustedPart("runs before Python", "source /opt/site/env.sh && module load cuda/12.8", ("a1", "a2")),
        TrustedPart("reads the secret", "HF_TOKEN from ~/.cache/huggingface/token", ("here",)),
    )
    with suppress(HolmesError):
        confirm_foreign([ForeignFile(Path("mailed.json"), "ab" * 32, brought)], ())


SCREENS: dict[str, Callable[[], None]] = {
    "plan": _plan,
    "islands": _islands,
    "dry-run": _dry_run,
    "running": _running,
    "failed": _failed,
    "done": _done,
    "preflight": _preflight,
    "probe": _probe,
    "explain": _explain,
    "compare": _compare,
    "ps": _ps,
    "status": _status,
    "islands-status": lambda: islands_status(islands_plan(), finished, step, STARTED_S),
    "checkpoint": checkpoints,
    "foreign": _foreign,
}


@contextmanager
def _captured(width: int, colours: ColorSystem | None) -> Iterator[io.StringIO]:
    """Both consoles write into one text, so many columns wide; with colours as on a terminal."""
    written = io.StringIO()
    before = [(console, console._width, console._color_system) for console in (terminal.out, terminal.err)]
    for console, *_ in before:
        console.file, console.width, console._color_system = written, width, colours
    try:
        yield written
    finally:
        for console, old_width, old_colours in before:
            console.file = None  # type: ignore[assignment]  # whatever standard output is then
            console._width, console._color_system = old_width, old_colours  # None: the terminal's, or that of COLUMNS


def shown(name: str, width: int, colours: ColorSystem | None = None) -> str:
    """The screen of that name."""
    with _captured(width, colours) as written:
        SCREENS[name]()
    return "".join(line.rstrip() + "\n" for line in written.getvalue().splitlines())


def golden(name: str, width: int) -> Path:
    """Where it is kept."""
    return FOLDER / f"{name}-{width}.txt"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for screen in SCREENS:
        for columns in WIDTHS:
            golden(screen, columns).write_text(shown(screen, columns), encoding="utf-8")
