"""Holmes from Python: the functions of docs/api.md, and the records, readers and errors it names."""

from holmes_cli.api import launch, plan, plan_any_mode, probe
from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import HostsFile, read_hosts_file
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.record_file import read_file, read_user_file, write_signed
from holmes_core.records.run import Run, Settings
from launcher.journal.run_events import LogLine, NodeState, Notice, RunEvent, View
from launcher.journal.step_metrics import StepMetrics
from launcher.nodes.preflight import PreflightFailed

__all__ = [
    "HolmesError",
    "HostsFile",
    "Inventory",
    "IslandsPlan",
    "Job",
    "LogLine",
    "NodeState",
    "Notice",
    "Plan",
    "PreflightFailed",
    "Run",
    "RunEvent",
    "Settings",
    "StepMetrics",
    "View",
    "launch",
    "plan",
    "plan_any_mode",
    "probe",
    "read_file",
    "read_hosts_file",
    "read_user_file",
    "write_signed",
]
