"""Findings on GPUs that the job leaves out, and on GPUs of hosts.yaml that do not exist."""

from __future__ import annotations

from collections.abc import Iterable

from holmes_core.records.inventory import Finding, Host
from holmes_core.units import format_memory
from prober.facts.gpu.job_gpus import NOT_STATED
from prober.rule_text import RuleText

LEFT_OUT = RuleText(
    "GPU-LEFT-OUT",
    "I",
    "a display card, or a GPU with less than a quarter of the memory of others in the host, is there",
    "the plan and the run do not use it",
    "nothing; to use other GPUs name theirs by `gpus:` in hosts.yaml, such as [0, 1, 2, 4]",
    "Holmes, docs/probe.md (which GPUs the job uses)",
)
STATED_IN_VAIN = RuleText(
    "GPU-LEFT-OUT",
    "F",
    "`gpus:` of hosts.yaml names a GPU that nvidia-smi does not show",
    "the job would have fewer GPUs than hosts.yaml says",
    "correct `gpus:` in hosts.yaml by `nvidia-smi -L`; a GPU that should be there: `dmesg | grep -i xid`",
    "Holmes, docs/probe.md (which GPUs the job uses)",
)
TEXTS = (LEFT_OUT, STATED_IN_VAIN)


def gpu_choice_findings(host: Host) -> Iterable[Finding]:
    """Yield a finding on GPUs that the probe left out, and one on GPUs in hosts.yaml that do not exist."""
    out = [gpu for gpu in host.gpus if gpu.left_out not in (None, NOT_STATED)]
    if out:
        shown = [f"GPU {gpu.index} ({gpu.name}, {format_memory(gpu.memory_bytes)}): {gpu.left_out}" for gpu in out]
        yield LEFT_OUT.finding((host.name,), "; ".join(shown))
    missing = sorted(set(host.gpus_stated or ()) - {gpu.index for gpu in host.gpus})
    if missing and "nvidia-smi" in host.sources:
        there = ", ".join(str(gpu.index) for gpu in host.gpus) or "none"
        listed = ", ".join(map(str, missing))
        yield STATED_IN_VAIN.finding((host.name,), f"`gpus:` names {listed}; nvidia-smi shows {there}")
