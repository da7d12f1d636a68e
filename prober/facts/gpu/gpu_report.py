"""GPUs from `nvidia-smi -q`, whole or cut by grep: names and values, indented by four blanks per level."""

from __future__ import annotations

import re
from collections.abc import Mapping

from prober.asking.commands import Command
from prober.asking.numbers import mebibytes, whole_number
from prober.asking.pci_values import normal_address
from prober.asking.recording import Recorded
from prober.facts.gpu.gpu_query import ANSWERED, flag
from prober.facts.gpu.partial_gpu import PartialGpu

# Only this report has the NVLink fabric, with its health in up to 14 lines. The whole report is 60 kB for eight GPUs.
REPORT = Command("nvidia-smi -q | grep -A14 -e '^GPU ' -e '^    Fabric$'", limited=True, when=ANSWERED)

Path = tuple[str, ...]


def parse_report(output: Recorded) -> tuple[PartialGpu, ...]:
    """Return the GPUs in order of their indices, or with `-i` the one GPU of that index."""
    named = re.search(r"(?:-i|--id)[ =](\d{1,3})\b", output.call)
    driver: str | None = None
    gpus: list[tuple[str | None, dict[Path, str]]] = []
    path: list[str] = []
    headed = bool(re.search(r"^GPU [0-9A-Fa-f]{4,8}:", output.plain, flags=re.MULTILINE))
    for line in output.whole_lines:
        key, _, value = (part.strip() for part in line.partition(" : "))
        if match := re.fullmatch(r"GPU ([0-9A-Fa-f]{4,8}(?::\w\w){2}\.\d)", line.rstrip()):
            gpus.append((match.group(1), {}))
        elif key == "Product Name" and value and not headed:  # grep removed the first line of a GPU
            gpus.append((None, {("Product Name",): value}))
        elif key == "Driver Version":
            driver = value
        elif gpus and line.startswith("    ") and key:
            depth = (len(line) - len(line.lstrip())) // 4
            path = [*path[: depth - 1], key]
            if value and value != "N/A":
                gpus[-1][1][tuple(path)] = value
    first = int(named.group(1)) if named else 0
    if named and len(gpus) != 1:
        return ()
    return tuple(_facts(first + at, address, about, driver) for at, (address, about) in enumerate(gpus))


def _facts(index: int, address: str | None, about: Mapping[Path, str], driver: str | None) -> PartialGpu:
    def lanes(text: str | None) -> int | None:
        return whole_number((text or "").removesuffix("x"))

    uuid = about.get(("Fabric", "ClusterUUID"), "")
    return PartialGpu(
        index=index,
        name=about.get(("Product Name",)),
        uuid=about.get(("GPU UUID",)),
        memory_bytes=mebibytes(about.get(("FB Memory Usage", "Total"))),
        pci_address=normal_address(address) if address else None,
        driver_version=driver,
        mig=flag(about.get(("MIG Mode", "Current"))),
        compute_mode=about.get(("Compute Mode",)),
        persistence_mode=flag(about.get(("Persistence Mode",))),
        ecc_uncorrected=_uncorrected(about),
        row_remap_pending=flag(about.get(("Remapped Rows", "Pending"))),
        row_remap_failure=flag(about.get(("Remapped Rows", "Remapping Failure Occurred"))),
        throttle_reasons=_throttle_reasons(about),
        pci_gen=whole_number(about.get(("PCI", "GPU Link Info", "PCIe Generation", "Current"))),
        pci_gen_max=whole_number(about.get(("PCI", "GPU Link Info", "PCIe Generation", "Max"))),
        pci_width=lanes(about.get(("PCI", "GPU Link Info", "Link Width", "Current"))),
        pci_width_max=lanes(about.get(("PCI", "GPU Link Info", "Link Width", "Max"))),
        fabric_state=about.get(("Fabric", "State")),
        fabric_status=about.get(("Fabric", "Status")),
        fabric_faults=_fabric_faults(about),
        nvlink_cluster=uuid if re.search(r"[1-9a-f]", uuid.lower()) else None,  # zeros: no other host shares its fabric
        nvlink_clique=whole_number(about.get(("Fabric", "CliqueId"))),
    )


_HEALTHY = ("Healthy", "Full", "False", "None", "Not Supported", "NotSupported", "No", "N/A", "[N/A]", "Unknown")


def _fabric_faults(about: Mapping[Path, str]) -> tuple[str, ...]:
    """Return the lines of the fabric's health that report a fault, as printed by driver 570 and later."""
    lines = {path[-1]: value for path, value in about.items() if path[:2] == ("Fabric", "Health")}
    return tuple(f"{name}: {value}" for name, value in lines.items() if value not in _HEALTHY)


def _uncorrected(about: Mapping[Path, str]) -> int | None:
    """Return the uncorrected errors of SRAM and DRAM since the driver was loaded."""
    counts = [
        whole_number(value)
        for path, value in about.items()
        if path[:2] == ("ECC Errors", "Volatile")
        and ("Uncorrectable" in path[-1] or path[2:] == ("Double Bit", "Total"))
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _throttle_reasons(about: Mapping[Path, str]) -> tuple[str, ...]:
    """Return the active reasons by their names in `--query-gpu`, such as `hw_thermal_slowdown`."""
    reasons = []
    for path, value in about.items():
        if path[0] in ("Clocks Event Reasons", "Clocks Throttle Reasons") and value == "Active":
            reasons.append(path[-1].lower().replace(" ", "_"))
    return tuple(reason for reason in reasons if reason not in ("idle", "gpu_idle"))
