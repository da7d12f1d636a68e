"""GPUs from nvidia-smi's human-readable output: `-L`, `nvlink -s`, `topo -m`, `--version` and the plain table."""

from __future__ import annotations

import re

from holmes_core.units import MIB
from prober.asking.commands import Command
from prober.asking.numbers import whole_number
from prober.asking.pci_values import normal_address
from prober.asking.recording import Recorded
from prober.facts.gpu.gpu_query import ANSWERED, UNKNOWN_FIELD
from prober.facts.gpu.partial_gpu import PartialGpu

TABLE = Command("nvidia-smi", limited=True, when=UNKNOWN_FIELD)
LIST = Command("nvidia-smi -L", limited=True, when=ANSWERED)
NVLINKS = Command("nvidia-smi nvlink -s", limited=True, when=ANSWERED)
TOPOLOGY = Command("nvidia-smi topo -m", limited=True, when=ANSWERED)

_GPU_LINE = re.compile(r"^GPU (\d{1,3}): (.+?)(?: \(UUID: ([^)]+)\))?$")


def parse_list(output: Recorded) -> tuple[PartialGpu, ...]:
    """Return the GPUs of `-L` with the number of MIG devices below each."""
    gpus: list[PartialGpu] = []
    for line in output.lines_ending(")", "GB/s", "<inactive>"):
        if match := _gpu_line(line):
            gpus.append(match.model_copy(update={"mig_devices": 0}))
        elif gpus and re.match(r"\s+MIG .*Device\s+\d+:", line):
            gpus[-1] = gpus[-1].model_copy(update={"mig_devices": (gpus[-1].mig_devices or 0) + 1})
    return tuple(gpu if gpu.mig_devices else gpu.model_copy(update={"mig_devices": None}) for gpu in gpus)


def _gpu_line(line: str) -> PartialGpu | None:
    match = _GPU_LINE.match(line.strip())
    if not match or (match.group(3) is None and "(UUID" in line):
        return None
    return PartialGpu(index=int(match.group(1)), name=match.group(2), uuid=match.group(3))


def says_no_nvlink(output: Recorded) -> bool:
    """Return True if `nvlink -s` prints nothing at all: no GPU of the host has NVLink."""
    return output.exit_code in (0, None) and not output.plain.strip()


def parse_nvlinks(output: Recorded) -> tuple[PartialGpu, ...]:
    """Return the GPUs of `nvlink -s` with their links, or without links if a sentence says so."""
    gpus: list[PartialGpu] = []
    for line in output.lines_ending(")", "GB/s", "<inactive>"):
        if found := _gpu_line(line):
            gpus.append(found)
        elif gpus:
            gpus[-1] = _with_link_line(gpus[-1], line.strip())
    return tuple(gpus)


def _with_link_line(gpu: PartialGpu, text: str) -> PartialGpu:
    if match := re.match(r"Link \d{1,2}: (<inactive>|Disabled|[\d.]+ GB/s)", text):
        up = (gpu.nvlinks_up or 0) + match.group(1).endswith("GB/s")
        return gpu.model_copy(update={"nvlinks_up": up, "nvlinks_total": (gpu.nvlinks_total or 0) + 1})
    if "does not have or support Nvlink" in text:
        return gpu.model_copy(update={"nvlinks_up": 0, "nvlinks_total": 0})
    if "all links are inActive" in text:
        return gpu.model_copy(update={"nvlinks_up": 0})
    return gpu


_NEAR = ("LOC", "PIX", "PXB", "PHB", "NODE", "SYS")


def parse_topology(output: Recorded) -> tuple[PartialGpu, ...]:
    """Return the GPUs of `topo -m` with the names of their nearest NICs, CPUs and NUMA node."""
    lines = [line.strip() for line in output.whole_lines]
    legend = dict(re.findall(r"^[ \t]*(NIC\d+): (\S+)$", output.plain, flags=re.MULTILINE))
    columns: list[str] = []
    gpus = []
    for line in lines:
        words = line.split()
        if not columns and words[:1] and re.fullmatch(r"GPU\d+", words[0]) and "Affinity" in words:
            columns = words[: words.index("CPU")] if "CPU" in words else []
        elif columns and words and re.fullmatch(r"GPU\d{1,3}", words[0]) and len(words) > len(columns):
            gpus.append(_topology_row(int(words[0][3:]), columns, words[1:], legend))
    return tuple(gpus)


def _topology_row(index: int, columns: list[str], words: list[str], legend: dict[str, str]) -> PartialGpu:
    cells = dict(zip(columns, words, strict=False))
    rest = words[len(columns) :]
    cpus = rest[0] if rest and re.fullmatch(r"[\d,-]+", rest[0]) else None
    nics = {name: cell for name, cell in cells.items() if not re.fullmatch(r"GPU\d+", name)}
    path = next((near for near in _NEAR if near in nics.values()), None)
    others = [cell for name, cell in cells.items() if re.fullmatch(r"GPU\d+", name) and name != f"GPU{index}"]
    return PartialGpu(
        index=index,
        nvlink_peers=sum(bool(re.fullmatch(r"NV\d+", cell)) for cell in others) if others else None,
        numa_node=whole_number(rest[1]) if cpus and len(rest) > 1 else None,
        cpus=cpus,
        nearest_nics=tuple(legend.get(name, name) for name, cell in nics.items() if path and cell == path),
        nearest_path=path,
    )


_VERSION = re.compile(r"(?:Driver Version|DRIVER version)\s*:\s*([\d.]+\d)(?=\s)", re.IGNORECASE)


def parse_driver_version(output: Recorded) -> str | None:
    """Return the driver's version in `--version` or in the head of the plain table."""
    match = _VERSION.search(output.plain)
    return match.group(1) if match else None


_ROW = re.compile(
    r"^\|\s+(?P<index>\d{1,3})\s+(?P<name>.+?)\s+(?P<persistence>On|Off|N/A)\s*\|\s*(?P<pci>[0-9A-Fa-f]{4,8}:\w\w:\w\w\.\d)"
    r"\s+\S+\s*\|\s*(?P<ecc>\S+)\s*\|"
)
_COMPUTE_MODES = {
    "Default": "Default",
    "E. Process": "Exclusive_Process",
    "E. Thread": "Exclusive_Thread",
    "Prohibited": "Prohibited",
}


def parse_table(output: Recorded) -> tuple[PartialGpu, ...]:
    """Return the GPUs of the plain table. Names that it shortens are not known, so it is the last resort."""
    driver = parse_driver_version(output)
    gpus: list[PartialGpu] = []
    for line in output.lines:
        if match := _ROW.match(line):
            gpus.append(_from_row(match, driver))
        elif gpus and line.startswith("|") and gpus[-1].compute_mode is None:
            gpus[-1] = _with_second_row(gpus[-1], line)
        elif gpus and gpus[-1].mig is None and (match := re.match(r"\|\s+\|\s+\|\s+(Enabled|Disabled)\*? \|", line)):
            gpus[-1] = gpus[-1].model_copy(update={"mig": match.group(1) == "Enabled"})
    return tuple(gpus)


def _from_row(match: re.Match[str], driver: str | None) -> PartialGpu:
    name = match["name"]
    return PartialGpu(
        index=int(match["index"]),
        name=None if name.endswith("...") else name,
        pci_address=normal_address(match["pci"]),
        driver_version=driver,
        persistence_mode={"On": True, "Off": False}.get(match["persistence"]),
        ecc_uncorrected=whole_number(match["ecc"]),
    )


def _with_second_row(gpu: PartialGpu, line: str) -> PartialGpu:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    memory = re.search(r"/\s*(\d{1,9})MiB", cells[1]) if len(cells) > 1 else None
    mode = next((name for text, name in _COMPUTE_MODES.items() if cells[-1].endswith(text)), None)
    memory_bytes = int(memory.group(1)) * MIB if memory else gpu.memory_bytes
    return gpu.model_copy(update={"memory_bytes": memory_bytes, "compute_mode": mode})
