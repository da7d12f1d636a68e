"""Processes that compute on a GPU, from `nvidia-smi --query-compute-apps`, the plain table or `nvidia-smi -q`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from holmes_core.records.devices import Gpu, GpuProcess
from prober.asking.commands import Command
from prober.asking.numbers import mebibytes, whole_number
from prober.asking.pci_values import normal_address
from prober.asking.recording import Recorded
from prober.facts.gpu.gpu_query import ANSWERED

PROCESSES = Command(
    "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory,process_name --format=csv", limited=True, when=ANSWERED
)

_FIELDS = {"name": "process_name", "used_gpu_memory": "used_memory"}  # nvidia-smi takes both names


def read_gpu_processes(outputs: Sequence[Recorded], gpus: Sequence[Gpu]) -> tuple[GpuProcess, ...] | None:
    """Return the processes in the newest answer of the best kind, or None without one. `gpus` gives their GPUs."""
    asked = [output for output in reversed(outputs) if output.tool == "nvidia-smi"]
    for parse in (_from_query, _from_table, _from_report):
        for output in asked:
            found = parse(output, gpus)
            if found is not None:
                return found
    return None


def _from_query(output: Recorded, gpus: Sequence[Gpu]) -> tuple[GpuProcess, ...] | None:
    asked = re.search(r"--query-compute-apps=([a-z_,]+)", output.call)
    if not asked or output.exit_code not in (0, None):
        return None
    fields = [_FIELDS.get(name, name) for name in asked.group(1).split(",")]
    rows = [line.split(", ") for line in output.whole_lines if line.strip()]
    if not rows and output.exit_code is None:
        return None
    processes = []
    for row in rows:
        if fields[-1] == "process_name":
            row = [*row[: len(fields) - 1], ", ".join(row[len(fields) - 1 :])]
        cells = {name: cell.strip() for name, cell in zip(fields, row, strict=False) if not cell.startswith("[")}
        pid = whole_number(cells.get("pid"))
        if len(row) == len(fields) and pid is not None:
            processes.append(
                GpuProcess(
                    pid=pid,
                    gpu=_index(gpus, cells.get("gpu_uuid"), cells.get("gpu_bus_id")),
                    name=cells.get("process_name"),
                    memory_bytes=mebibytes(cells.get("used_memory")),
                )
            )
    return tuple(processes)


def _index(gpus: Sequence[Gpu], uuid: str | None, bus_id: str | None) -> int | None:
    address = normal_address(bus_id) if bus_id and ":" in bus_id else None
    for gpu in gpus:
        if (uuid is not None and gpu.uuid == uuid) or (address is not None and gpu.pci_address == address):
            return gpu.index
    return None


_TABLE_ROW = re.compile(
    r"^\|\s+(?P<gpu>\d{1,3})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d{1,10})\s+(?:M\+)?C(?:\+G)?\s+"
    r"(?P<name>.+?)\s+(?P<memory>\d{1,9}MiB|N/A)\s*\|$"
)


def _from_table(output: Recorded, _gpus: Sequence[Gpu]) -> tuple[GpuProcess, ...] | None:
    """Read rows of type C, which compute; type G is graphics. Long names stay shortened."""
    table = output.plain.partition("| Processes:")[2]
    if "==" not in table:
        return None
    rows = [match for line in table.split("\n") if (match := _TABLE_ROW.match(line.strip()))]
    return tuple(
        GpuProcess(pid=int(row["pid"]), gpu=int(row["gpu"]), name=row["name"], memory_bytes=mebibytes(row["memory"]))
        for row in rows
    )


def _from_report(output: Recorded, gpus: Sequence[Gpu]) -> tuple[GpuProcess, ...] | None:
    if not re.search(r"^ {4}Processes\b", output.plain, flags=re.MULTILINE):
        return None
    return tuple(_report_processes(output, gpus))


def _report_processes(output: Recorded, gpus: Sequence[Gpu]) -> Iterator[GpuProcess]:
    """Yield the processes of `nvidia-smi -q`: a line with the id, and below it lines with type, name and memory."""
    gpu: int | None = None
    about: dict[str, str] = {}
    for line in [*output.whole_lines, "GPU end"]:
        key, _, value = (part.strip() for part in line.partition(" : "))
        if line.startswith("GPU ") or key == "Process ID":
            pid = whole_number(about.get("Process ID"))
            if pid is not None and "C" in about.get("Type", ""):
                memory = mebibytes(about.get("Used GPU Memory"))
                yield GpuProcess(pid=pid, gpu=gpu, name=about.get("Name") or None, memory_bytes=memory)
            about = {}
        if line.startswith("GPU "):
            gpu = _index(gpus, None, line.removeprefix("GPU "))
        about[key] = value
