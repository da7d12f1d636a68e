"""GPUs, merged by index from all outputs of nvidia-smi, or from lspci if nvidia-smi shows none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from holmes_core.records.devices import Gpu
from holmes_core.records.inventory import Conflict, ImpossibleValue
from holmes_core.units import MIB
from prober.asking.merge import by_key, filled, merged, updated
from prober.asking.plausible_values import Bounds, possible
from prober.asking.recording import Recorded
from prober.facts.gpu.gpu_query import parse_query
from prober.facts.gpu.gpu_report import parse_report
from prober.facts.gpu.gpu_text import (
    parse_driver_version,
    parse_list,
    parse_nvlinks,
    parse_table,
    parse_topology,
    says_no_nvlink,
)
from prober.facts.gpu.partial_gpu import PartialGpu

_FAILURES = (
    "Failed to initialize NVML",
    "NVIDIA-SMI has failed",
    "Unable to determine the device handle",
    "No devices were found",
    "couldn't communicate with the NVIDIA driver",
    "couldn't find libnvidia-ml.so",
)
_BOUNDS: Bounds = {
    "memory_bytes": (MIB, 2**44),
    "mig_devices": (0, 64),
    "nvlinks_up": (0, 64),
    "nvlinks_total": (0, 64),
    "ecc_uncorrected": (0, 2**32),
    "pci_gen": (0, 9),
    "pci_gen_max": (0, 9),
    "pci_width": (0, 32),
    "pci_width_max": (0, 32),
    "numa_node": (0, 4096),
}
_NO_NVLINK = {"nvlinks_up": 0, "nvlinks_total": 0}


@dataclass(frozen=True)
class GpuReading:
    """The GPUs of a host, the state of nvidia-smi, and conflicting and impossible values."""

    gpus: tuple[PartialGpu, ...]
    driver_version: str | None
    failure: str | None
    conflicts: tuple[Conflict, ...]
    impossible: tuple[ImpossibleValue, ...]


def read_gpus(outputs: Sequence[Recorded], from_lspci: Sequence[PartialGpu]) -> GpuReading:
    """Return the GPUs by index. The GPUs of lspci count only if nvidia-smi was not asked or did not fail."""
    asked = [output for output in outputs if output.tool == "nvidia-smi"]
    failure = read_failure(asked)
    known, conflicts = _by_index(asked)
    missing = any(output.tool_missing for output in asked)
    if not known and failure is None and not missing:
        known = {gpu.index: gpu for gpu in from_lspci}
    if any(_kind(output) == "nvlink" and says_no_nvlink(output) for output in asked):
        known = {
            index: gpu if gpu.nvlinks_total is not None else gpu.model_copy(update=_NO_NVLINK)
            for index, gpu in known.items()
        }
    versions = [gpu.driver_version for gpu in known.values() if gpu.driver_version]
    versions += [version for output in asked if (version := parse_driver_version(output))]
    readings = [possible("nvidia-smi", f"GPU{index}", known[index], _BOUNDS) for index in sorted(known)]
    return GpuReading(
        gpus=tuple(gpu for gpu, _ in readings),
        driver_version=versions[0] if versions else None,
        failure=failure,
        conflicts=tuple(conflicts),
        impossible=tuple(each for _, found in readings for each in found),
    )


def read_failure(outputs: Sequence[Recorded]) -> str | None:
    """Return the message of an nvidia-smi that failed as a whole, or None if it did not fail or was not asked."""
    asked = (output for output in outputs if output.tool == "nvidia-smi")
    return next((text for output in asked if (text := _failure(output))), None)


_COMPARED = ("name", "uuid", "pci_address", "memory_bytes")


def _by_index(asked: Sequence[Recorded]) -> tuple[dict[int, PartialGpu], list[Conflict]]:
    """Return the facts of each GPU from the latest output of each kind, and their conflicts."""
    collected: dict[int, list[tuple[str, PartialGpu]]] = {}
    for kind, parse in _PARSERS.items():
        shown = (gpu for output in asked if _kind(output) == kind for gpu in parse(output))
        for index, gpu in by_key(shown, attrgetter("index"), updated).items():
            collected.setdefault(index, []).append((f"nvidia-smi ({kind})", gpu))
    readings = {index: merged(f"GPU{index}", sources, _COMPARED) for index, sources in collected.items()}
    conflicts = [conflict for _, found in readings.values() for conflict in found]
    return {index: gpu for index, (gpu, _) in readings.items()}, conflicts


_PARSERS = {
    "query": parse_query,
    "report": parse_report,
    "list": parse_list,
    "nvlink": parse_nvlinks,
    "topology": parse_topology,
    "table": parse_table,
}


def _kind(output: Recorded) -> str:
    words = output.words[1:]
    if any(word.startswith("--query-gpu") for word in words):
        return "query"
    if any(word.startswith("--query-") for word in words):
        return "other"
    if "nvlink" in words:
        return "nvlink"
    if "topo" in words:
        return "topology"
    if "-L" in words or "--list-gpus" in words:
        return "list"
    return "version" if "--version" in words else "report" if {"-q", "--query"} & set(words) else "table"


def _failure(output: Recorded) -> str | None:
    """Return the message of a whole failure of nvidia-smi. An unknown field or subcommand is no such failure."""
    messages = [line.strip() for line in output.lines if any(text in line for text in _FAILURES)]
    if messages or output.exit_code in (9, 15, 18):
        first = messages[0] if messages else (output.plain.strip().split("\n")[0] or "no output")
        return f"exit {output.exit_code}: {first}"[:200] if output.exit_code else first[:200]
    return None


def gpu_records(
    facts: Sequence[PartialGpu], nearest: dict[str, tuple[str | None, tuple[str, ...]]], numa: dict[str, int]
) -> tuple[Gpu, ...]:
    """Return the records. `nearest` (path, NIC names) and `numa`, by PCI address, fill the gaps of `topo -m`."""
    gpus = []
    for gpu in facts:
        path, nics = nearest.get(gpu.pci_address or "", (None, ()))
        numa_node = numa.get(gpu.pci_address or "")
        near = PartialGpu(index=gpu.index, nearest_nics=nics, nearest_path=path, numa_node=numa_node)
        gpus.append(Gpu(**vars(filled(gpu, near))))
    return tuple(gpus)
