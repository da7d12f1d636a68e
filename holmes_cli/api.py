"""Holmes from Python: `probe`, `plan` and `launch`, the functions behind the commands of these names.

All three take and return the records of `holmes_core` and raise HolmesError for errors the user can act on; output goes
only to `tell` and `view`. Imports happen inside the functions: planning needs no SSH.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import IslandsPlan, Node, Order, Plan, SourceFile
from holmes_core.records.run import Run, Settings
from holmes_core.units import format_seconds

if TYPE_CHECKING:
    from holmes_core.hosts.hosts_file import HostsFile
    from launcher.journal.run_events import View
    from launcher.launch import Launch
    from launcher.launch_islands import IslandsView, LaunchIslands
    from prober.fabrics.placing import Placing
    from prober.fabrics.settle import RdmaVerdict

Tell = Callable[[str], None]
"""Takes a line for each thing that is begun or done."""


def _silent(_: str) -> None:
    """Discard the line."""


def probe(hosts: HostsFile, links: bool = False, record: Path | None = None, tell: Tell = _silent) -> Inventory:
    """Return the inventory of `hosts`; `links` also measures the links between them. `record` keeps all raw outputs.

    A host that cannot be reached stays in the inventory with a finding. Raises HolmesError if `record` is in use.
    """
    from prober.links.rdma_trials import try_open_pairs
    from prober.probe import probe as ask_hosts

    count, done = len(hosts.hosts), 0

    def progress(host: str, state: str) -> None:
        nonlocal done
        done += 1
        tell(f"{done} of {count} hosts answered; {host}: {state}")

    def tried(inventory: Inventory, placing: Placing) -> Sequence[RdmaVerdict]:
        """Try RDMA between pairs that the facts leave undecided."""
        return try_open_pairs(inventory, placing, lambda pair, verdict: tell(f"{pair}: RDMA {verdict}"))

    tell(f"asking {count} hosts")
    inventory = ask_hosts(hosts, progress, record, tried if links else None)
    return _with_links(inventory, tell) if links else inventory


def _with_links(inventory: Inventory, tell: Tell) -> Inventory:
    """Return the inventory with measured links and trunks, and their findings."""
    from prober.findings.audit import joined
    from prober.findings.stated_trunks import with_measured
    from prober.links.link_audit import audit_links
    from prober.links.links import measure_links

    tell("measuring links")
    measured = measure_links(inventory, lambda pair, state: tell(f"{pair}: {state}"))
    now = {"measured_at_s": round(time.time())}
    links = [link.model_copy(update=now) for link in measured.links]
    inventory = with_measured(inventory, [trunk.model_copy(update=now) for trunk in measured.trunks])
    found = (*inventory.findings, *measured.problems, *audit_links(inventory, links))
    return inventory.model_copy(update={"links": tuple(links), "findings": joined(found)})


def plan(
    inventory: Inventory,
    job: Job,
    inventory_source: SourceFile | None = None,
    job_source: SourceFile | None = None,
    order: Order = "holmes",
    time_limit_s: float | None = None,
    lp: Path | None = None,
    tell: Tell = _silent,
) -> Plan:
    """Return the fastest plan of `job` on the reachable hosts of `inventory`, verified without the solver.

    The sources are the paths that the plan records; by default inventory.json and job.yaml in the plan's folder.
    `order` "usual" is that of other launchers, to compare with. After `time_limit_s` the best so far is taken, with its
    gap; the default is that of `holmes plan`. `lp` is written with the integer program of the plan's degrees. Raises
    HolmesError if there is no plan, with the failed limit and a change that would make it fit; and if the job allows
    islands.
    """
    from planner.make_plan import TIME_LIMIT_S, make_plan

    _refuse_other_files(job)
    if job.islands is not None:
        raise HolmesError("the job allows islands, and this plans all hosts as one", "call `plan_any_mode`")

    def progress(settled: int, total: int, best_s: float | None) -> None:
        best = f", best step so far {format_seconds(best_s)}" if best_s is not None else ""
        tell(f"{settled} of {total} placements settled{best}")

    return make_plan(
        inventory,
        job,
        *_sources(inventory, job, inventory_source, job_source),
        order,
        progress,
        TIME_LIMIT_S if time_limit_s is None else time_limit_s,
        lp,
    )


def plan_any_mode(
    inventory: Inventory,
    job: Job,
    inventory_source: SourceFile | None = None,
    job_source: SourceFile | None = None,
    time_limit_s: float | None = None,
    lp: Path | None = None,
    tell: Tell = _silent,
) -> Plan | IslandsPlan:
    """Return the plan of a job that allows islands: of islands if they are fastest, with the prices of all modes.

    All else is as for `plan`.
    """
    from planner.islands.plan_mode import plan_mode
    from planner.make_plan import TIME_LIMIT_S

    _refuse_other_files(job)
    sources = _sources(inventory, job, inventory_source, job_source)

    def make(together: Job, within_s: float) -> Plan:
        return plan(inventory, together, *sources, time_limit_s=within_s, lp=lp, tell=tell)

    return plan_mode(inventory, job, sources, make, TIME_LIMIT_S if time_limit_s is None else time_limit_s, tell)


def _refuse_other_files(job: Job) -> None:
    """Raise HolmesError if `weights` or first adapters lie on this machine, too, and do not fit the job's model.

    If they lie on the hosts alone, the hosts make the same comparison before ranks start.
    """
    if not job.is_bundled or job.compute.emulate is not None:
        return
    key, hint = "", ""
    try:
        if job.weights is not None:
            from holmes_runtime.node.published_files.architectures import CONFIG_FILE
            from holmes_runtime.node.published_files.check_published import check_config, read_tensors

            folder, key = Path(job.weights).expanduser(), "weights"
            hint = f"put into job.yaml what `holmes model {folder}` prints, or name another model's folder"
            if os.access(folder / CONFIG_FILE, os.R_OK):
                check_config(folder, job.model)
                with contextlib.suppress(FileNotFoundError):  # config.json alone may lie here
                    read_tensors(folder, job.model)
        lora = None if job.trainable is None else job.trainable.lora
        if lora is not None and lora.adapters is not None:
            from holmes_runtime.node.published_files.check_adapters import SETTINGS_FILE, check_adapters

            folder, key = Path(lora.adapters).expanduser(), "trainable.lora.adapters"
            hint = "set rank, alpha and targets as they are there, or name another folder"
            if os.access(folder / SETTINGS_FILE, os.R_OK):
                check_adapters(folder, job.model, lora)
    except (OSError, ValueError) as error:
        raise HolmesError(f"job.yaml: {key}: {error}", hint) from None


def _sources(
    inventory: Inventory, job: Job, inventory_source: SourceFile | None, job_source: SourceFile | None
) -> tuple[SourceFile, SourceFile]:
    return (
        inventory_source or SourceFile(path="inventory.json", digest=inventory.source_digest()),
        job_source or SourceFile(path="job.yaml", digest=job.source_digest()),
    )


def launch(
    plan: Plan,
    inventory: Inventory | None = None,
    runs: Path = Path("runs"),
    job_folder: Path = Path(),
    settings: Settings | None = None,
    forced: frozenset[str] = frozenset(),
    view: View | None = None,
) -> Run:
    """Run `plan` to its end, and return how it ended; its folder is `runs` / `run_id`.

    Ctrl-C, SIGTERM and SIGHUP end it everywhere; a second one does so without a checkpoint.

    Checks compare the hosts with `inventory`, and a new plan is made from it when a host is lost or slow. `job_folder`
    is the base of file names in the job. `forced` checks do not refuse the start. `view` receives all events. A
    detached run is returned as it starts, and continues without this process. Raises PreflightFailed or another
    HolmesError if it does not start; then nothing is left on any host.
    """
    from holmes_cli.replan import Replanner
    from launcher.journal.prometheus import exports_folder
    from launcher.journal.run_events import Silent
    from launcher.journal.run_folder import new_folder
    from launcher.launch import Launch
    from launcher.nodes.interrupts import Interrupts, signals_call
    from launcher.prepare.user_variables import read_user_variables

    settings = settings or Settings()
    _refuse_settings(settings, plan.nodes)
    _refuse_missing_commands(plan.job)
    variables = read_user_variables(plan.job, os.environ, job_folder)
    exports, folder = exports_folder(os.environ), new_folder(runs)
    planner = Replanner(inventory) if inventory is not None else None
    interrupts = Interrupts()
    with signals_call(interrupts.take_signal):
        run = Launch(folder, plan, settings, variables, view or Silent(), interrupts, planner, exports)
        run.start(inventory, forced)
        if settings.detached:
            return _left(run)
        ended = run.run_to_end()
    keep_profile_of(plan, folder.path)
    return ended


def keep_profile_of(plan: Plan, folder: Path) -> None:
    """Join the recordings of an ended run's ranks, if its job has a profile."""
    if plan.job.profile is not None:
        from holmes_cli.pages.profile_trace import keep_profile  # slow to import: it brings the planner

        keep_profile(folder)


def launch_islands(
    plan: IslandsPlan,
    inventory: Inventory | None,
    runs: Path,
    job_folder: Path,
    settings: Settings,
    forced: frozenset[str],
    view: IslandsView,
) -> Run:
    """Run a plan of islands like `launch`. The run is done when all islands that were not lost are done."""
    from launcher.journal.prometheus import exports_folder
    from launcher.journal.run_folder import new_folder
    from launcher.launch_islands import LaunchIslands
    from launcher.nodes.interrupts import signals_call
    from launcher.prepare.user_variables import read_user_variables

    _refuse_settings(settings, [node for nodes in plan.tunnel_nodes for node in nodes])
    _refuse_missing_commands(plan.job)
    variables = read_user_variables(plan.job, os.environ, job_folder)
    run = LaunchIslands(new_folder(runs), plan, settings, variables, view, exports_folder(os.environ))
    with signals_call(run.take_signal):
        run.start(inventory, forced)
        return _left(run) if settings.detached else run.run_to_end()


def _left(run: Launch | LaunchIslands) -> Run:
    """Leave a run that has just started to a process in the background, and return its record."""
    from holmes_cli.watch_in_background import watch_in_background
    from launcher.journal.run_folder import read_run

    run.leave()
    watch_in_background(run.folder.path)
    return read_run(run.folder.path)


def _refuse_settings(settings: Settings, nodes: Sequence[Node]) -> None:
    """Raise HolmesError for going back where nothing is resumed, and for Slurm steps that are to outlive us."""
    if settings.resume_step is not None and not settings.resume:
        raise HolmesError(f"resume_step={settings.resume_step}: nothing is resumed", "pass resume=True too")
    if settings.detached and any(node.access.transport == "slurm" for node in nodes):
        raise HolmesError(
            "--detach: steps of a Slurm job end with the process that starts them",
            "leave it out: a batch script with `holmes launch` continues without a shell",
        )


def _refuse_missing_commands(job: Job) -> None:
    """Raise HolmesError for a command of the job's that this machine does not have."""
    from launcher.supervise.hook_command import cannot_run

    for name, words in (("on_end", job.launch.on_end), ("on_verdict", job.launch.on_verdict)):
        if words and (why := cannot_run(words)):
            raise HolmesError(f"launch.{name}: {why}", "install it, name it by its whole path, or leave it out")
