"""What commands show at 80 and 120 columns, kept in tests/data/screens. `python -m tests.cli.screens` writes it anew.

Read the diff before accepting it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from holmes_cli.screen import terminal
from holmes_cli.screen.change_tables import mode_sheets
from holmes_cli.screen.run_view import RunView
from holmes_cli.screen.show_bundles import show_bundles
from holmes_cli.screen.show_plan import islands_sheet, show_islands, show_plan
from holmes_cli.screen.show_preflight import show_preflight
from holmes_cli.screen.show_run import show_run
from holmes_core.records.access import LaunchSettings
from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import IslandsSection
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.run import Failure, MeasuredTraffic, Run
from launcher.journal.run_events import LogLine, NodeState, Notice
from launcher.journal.step_metrics import StepMetrics, StepTraffic, by_interface
from launcher.nodes.preflight import Fault, Preflight
from launcher.prepare.bundle import Parcel
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from planner.islands.joined_alike import joined_alike
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.planner.islands_jobs import planned_mode

FOLDER = Path(__file__).parent.parent / "data" / "screens"
WIDTHS = (80, 120)
FIXED = {"pp": 2, "dp": 32, "micro_batch_size": 1, "schedule": "1f1b", "recompute": "none"}
RUNS = Path("runs")
STARTED_S = 1.7e9


def gpu_plan() -> tuple[Plan, Inventory]:
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
    show_plan(*gpu_plan())


def _islands() -> None:
    """The bed's clusters at 2 Mbit/s."""
    far = joined_alike(cpu_inventory([2, 2]), 0.002 * GBPS, 0.02)
    plan = planned_mode(far, bed_job(parallel={}, steps=100, islands=IslandsSection(inner_steps=20)))
    assert isinstance(plan, IslandsPlan)
    show_islands(plan, (islands_sheet(plan), *mode_sheets(plan.modes)))


def _dry_run() -> None:
    plan, _ = gpu_plan()
    job = plan.job.model_copy(update={"launch": LaunchSettings(environment={"HF_HOME": "/data/hf"})})
    plan = plan.model_copy(update={"job": job})
    parcels = Parcel({"runtime.py": "x" * 700_000}), Parcel({"run_config.json": "x" * 40_000, "plan.json": "x"})
    bundles = prepare(plan, Attempt("dry-run"), UserVariables({"HF_HOME": "/data/hf"}, {}))
    show_bundles([replace(bundle, parcels=parcels) for bundle in bundles], plan)


def _running() -> None:
    plan, _ = gpu_plan()
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


SCREENS: dict[str, Callable[[], None]] = {
    "plan": _plan,
    "islands": _islands,
    "dry-run": _dry_run,
    "running": _running,
    "failed": _failed,
    "done": _done,
    "preflight": _preflight,
}


@contextmanager
def _captured(width: int) -> Iterator[io.StringIO]:
    """Both consoles write into one text, so many columns wide."""
    written = io.StringIO()
    before = [(console, console.width) for console in (terminal.out, terminal.err)]
    for console, _ in before:
        console.file, console.width = written, width
    try:
        yield written
    finally:
        for console, old in before:
            console.file, console.width = None, old  # type: ignore[assignment]  # whatever standard output is then


def shown(name: str, width: int) -> str:
    """The screen of that name."""
    with _captured(width) as written:
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
