"""Findings on tools that are missing, fail, hang, are cut off, or that Holmes does not read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holmes_core.records.inventory import Finding
from prober.asking.recording import CUT_OFF, TIMED_OUT, Recorded
from prober.facts.gpu.gpu_query import lacks_field_names
from prober.facts.gpu.gpus import read_failure, read_gpus
from prober.rule_text import RuleText
from prober.rules.gpu_rules import LOST_GPU
from prober.rules.reported_rules import (
    NO_PERMISSION,
    TOOL_FAILED,
    TOOL_MISSING,
    TOOL_UNREAD,
    TRUNCATED,
)

READ_TOOLS = frozenset(
    (
        *("cat", "date", "dcb", "df", "dmesg", "env", "ethtool", "find", "getent", "grep", "head", "hostname"),
        *("ibdev2netdev", "ibstat", "ibstatus", "ibv_devices", "ibv_devinfo", "id", "ifconfig", "ip", "iptables"),
        *("journalctl", "ldconfig", "ls", "lsmod"),
        *("lspci", "mlnx_qos", "mlxlink", "nproc", "nvidia-smi", "ofed_info", "printenv", "rdma", "show_gids"),
        *("amd-smi", "fi_info", "npu-smi", "opainfo", "rocm-smi", "sminfo", "ss"),
        *("sh", "systemctl", "tail", "test", "ulimit", "uname"),
    )
)
_RDMA_TOOLS = ("ibstat", "ibstatus", "ibv_devinfo", "rdma", "ibdev2netdev", "show_gids")
_FAILURE_MATTERS = (*_RDMA_TOOLS, "ip", "lspci", "mlnx_qos")
_REFUSED = re.compile(
    r"<access denied>|operation not permitted|permission denied|insufficient permissions|must be root|root privileges",
    re.IGNORECASE,
)
_UNKNOWN_OPTION = re.compile(r"is unknown|(?:unrecognized|invalid) option")  # iproute2, busybox
_NO_DEVICE = re.compile(r"No IB devices found|sys files not found")  # of ibv_devinfo and ibstatus, and no failure
_DYING_WORDS = ("ibpanic:", "Segmentation fault", "core dumped", "Traceback (most recent call last)")


def tool_findings(name: str, outputs: Sequence[Recorded]) -> list[Finding]:
    """Return the findings about host `name`, which name each tool once."""
    return [
        *_missing(name, outputs),
        *_unread(name, outputs),
        *_no_permission(name, outputs),
        *_gpu_tool(name, outputs),
        *_broken_tools(name, outputs),
    ]


def _missing(name: str, outputs: Iterable[Recorded]) -> Iterable[Finding]:
    missing = sorted({output.tool for output in outputs if output.tool_missing and not output.asks_python})
    if missing:
        yield TOOL_MISSING.finding((name,), f"not found: {', '.join(missing)}")


def _unread(name: str, outputs: Iterable[Recorded]) -> Iterable[Finding]:
    foreign = sorted({output.tool for output in outputs if output.tool not in READ_TOOLS and not output.asks_python})
    if foreign:
        yield TOOL_UNREAD.finding((name,), f"outputs of {', '.join(foreign)} are not read")


def _no_permission(name: str, outputs: Iterable[Recorded]) -> Iterable[Finding]:
    refusals: dict[str, str] = {}
    for output in outputs:
        refused = next((line.strip() for line in output.lines if _REFUSED.search(line)), None)
        if refused is not None and output.tool in READ_TOOLS:
            refusals.setdefault(output.tool, refused[:100])
    if refusals:
        shown = "; ".join(f"{tool}: {line}" for tool, line in sorted(refusals.items()))
        yield NO_PERMISSION.finding((name,), shown)


def _gpu_tool(name: str, outputs: Sequence[Recorded]) -> Iterable[Finding]:
    failure = read_failure(outputs)
    # Without a GPU, GPU-NONE, GPU-DRIVER-MISMATCH or GPU-COUNT reports the failure.
    if failure is not None and LOST_GPU not in failure and read_gpus(outputs, ()).gpus:
        yield TOOL_FAILED.finding((name,), f"nvidia-smi: {failure}")


def _broken_tools(name: str, outputs: Sequence[Recorded]) -> Iterable[Finding]:
    """Yield failed tools, without RDMA tools on a host without RDMA devices, where they have to fail."""
    without_rdma = any(
        output.tool == "ls" and "/sys/class/infiniband" in output.words and "No such file" in output.text
        for output in outputs
    )
    named: set[str] = set()
    for output in outputs:
        tool = output.tool
        fault = _fault(output)
        if fault is None or tool in named or (without_rdma and tool in _RDMA_TOOLS and fault[0] is TOOL_FAILED):
            continue
        named.add(tool)
        about, seen = fault
        yield about.finding((name,), f"{tool}: {seen}")


_BLOCK = re.compile(r"^[ \t]*Port \d+:$|^[ \t]*port:|^Infiniband device", re.MULTILINE)  # ibstat, ibv_devinfo, ibstatus
_CLOSING = re.compile(r"^[ \t]*link[ _]layer:[ \t]*\w", re.MULTILINE | re.IGNORECASE)


def _cut_block(output: Recorded) -> str | None:
    """Return the fault of an RDMA tool's blocks. Old versions print no link layer at all."""
    if output.tool not in ("ibstat", "ibv_devinfo", "ibstatus"):
        return None
    device, *blocks = _BLOCK.split(output.plain)
    if _lacks_device(output, device, blocks):
        return "a port without the line that names its device; whose port it is cannot be told"
    if output.filtered:
        return None
    closed = [bool(_CLOSING.search(block)) for block in blocks]
    if blocks and not closed[-1] and (any(closed) or not output.plain.endswith("\n")):
        return "its last block has no link layer: the rest was cut off"
    return None


def _lacks_device(output: Recorded, before: str, blocks: Sequence[str]) -> bool:
    if output.tool == "ibv_devinfo":
        return bool(blocks) and "hca_id" not in before and "-d" not in output.words
    options = [word for word in output.words[1:] if not word.startswith("-")]
    has_card = re.search(r"^[ \t]*CA:? '", before, re.MULTILINE) is not None
    return output.tool == "ibstat" and bool(blocks) and not has_card and not options


def _fault(output: Recorded) -> tuple[RuleText, str] | None:
    if output.exit_code == CUT_OFF:
        return TRUNCATED, f"its answer was cut off: {_last_line(output)}"
    if output.exit_code in (TIMED_OUT, 137) and output.tool in READ_TOOLS:
        return TRUNCATED, "it did not end in time"
    if _NO_DEVICE.search(output.text):
        return None
    if output.tool == "nvidia-smi" and lacks_field_names(output):
        return TRUNCATED, "rows without the names of their fields: no header, and the command does not say"
    if cut := _cut_block(output):
        return TRUNCATED, cut
    if output.tool == "ip" and "-j" in output.words and _UNKNOWN_OPTION.search(output.text):
        return None
    if output.tool in _FAILURE_MATTERS and output.exit_code not in (None, 0, 127) and not output.filtered:
        return TOOL_FAILED, f"exit {output.exit_code}: {_last_line(output)}"
    dying = [line.strip() for line in output.lines if any(word in line for word in _DYING_WORDS)]
    if dying and output.tool in _FAILURE_MATTERS:
        return TOOL_FAILED, dying[0][:200]
    return None


def _last_line(output: Recorded) -> str:
    lines = output.plain.strip().splitlines()
    return lines[-1].strip()[:200] if lines else "no output"
