"""GPUs from `nvidia-smi --query-gpu` with any fields."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping

from prober.asking.commands import Command
from prober.asking.numbers import mebibytes, whole_number
from prober.asking.pci_values import normal_address
from prober.asking.recording import Recorded
from prober.facts.gpu.partial_gpu import PartialGpu

_SAFE = "index,name,uuid,memory.total,pci.bus_id,driver_version,persistence_mode,compute_mode"
_LINKS = "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"
_HEALTH = "ecc.errors.uncorrected.volatile.total,mig.mode.current"
_REMAPPED = "remapped_rows.pending,remapped_rows.failure"
_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap")


def _query(*fields: str, when: str | None = None) -> Command:
    return Command(f"nvidia-smi --query-gpu={','.join(fields)} --format=csv", limited=True, when=when)


def _reasons(prefix: str) -> str:
    return ",".join(f"{prefix}.{reason}" for reason in _REASONS)


# A driver that does not know one of the fields prints none, so the next list is tried: drivers before 535 have the
# reasons under their old name, and drivers before 450 have no remapped rows.
UNKNOWN_FIELD = "case $code in 0|9|15|18|124|127|137) false;; esac"
ANSWERED = "case $code in 9|15|18|124|127|137) false;; esac"  # a driver is loaded, and nvidia-smi does not hang
QUERY = _query(_SAFE, _LINKS, _HEALTH, _REMAPPED, _reasons("clocks_event_reasons"))
OTHER_QUERIES = (
    _query(_SAFE, _LINKS, _HEALTH, _REMAPPED, _reasons("clocks_throttle_reasons"), when=UNKNOWN_FIELD),
    _query(_SAFE, _LINKS, _HEALTH, when=UNKNOWN_FIELD),
    _query(_SAFE, when=UNKNOWN_FIELD),
)


MAX_ROW = 1 << 16  # characters; 25 fields take some hundred
_HEADINGS = {"index", "name", "uuid", "pci.bus_id", "driver_version"}


def parse_query(output: Recorded) -> tuple[PartialGpu, ...]:
    """Return the GPUs of a `--query-gpu` answer, without other lines such as warnings or a cut end."""
    fields = _asked_fields(output)
    named = re.search(r"\s(?:-i|--id)[ =]([0-9]{1,3})(?=\s|$)", output.call)
    first = int(named.group(1)) if named else 0
    gpus: list[PartialGpu] = []
    *lines, last = _comma_separated(output)
    if "," in last:  # its last cell may be cut, unless another row ends with the same
        before, _, cell = last.rpartition(",")
        lines.append(last if any(line.endswith(f",{cell}") for line in lines) else f"{before}, [not known]")
    for row in csv.reader((line for line in lines if len(line) <= MAX_ROW), skipinitialspace=True):
        cells = [cell.strip() for cell in row]
        names = [re.sub(r" \[[^\]]*\]$", "", cell) for cell in cells]
        if _HEADINGS & set(names):
            fields = names
        elif cells and len(cells) == len(fields) and (len(cells) > 1 or _is_one_cell_row(output, fields[0], cells[0])):
            known = {name: cell for name, cell in zip(fields, cells, strict=True) if _is_known(cell)}
            if dict(zip(fields, cells, strict=True)).get("mig.mode.current") in ("[N/A]", "[Not Supported]"):
                known["mig.mode.current"] = "Disabled"
            index = whole_number(known.get("index", str(first + len(gpus))))
            if index is not None and 0 <= index < 1024:
                gpus.append(_facts(index, known))
    return tuple(gpus)


def lacks_field_names(output: Recorded) -> bool:
    """Return True if neither the command nor a header names the fields of the rows."""
    rows = [{cell.strip() for cell in line.split(",")} for line in _comma_separated(output) if "," in line]
    asks = any(word.startswith("--query-gpu") for word in output.words)
    return asks and bool(rows) and not _asked_fields(output) and not any(_HEADINGS & row for row in rows)


def _comma_separated(output: Recorded) -> list[str]:
    """Return the lines, with the commas that `column -t -s,` removes."""
    if "column" not in output.command or "," in output.plain:
        return output.lines
    return [re.sub(r" {2,}", ", ", line.strip()) for line in output.lines]


def _asked_fields(output: Recorded) -> list[str]:
    """Return the fields that the command names. It names none in `--query-gpu=<every field>`."""
    option = next((word for word in output.words if word.startswith("--query-gpu")), "")
    names = [name.strip() for name in option.partition("=")[2].split(",")]
    return names if all(re.fullmatch(r"[A-Za-z0-9_.]+", name) for name in names) else []


def _is_one_cell_row(output: Recorded, field: str, cell: str) -> bool:
    """Return True if the line is a row of a query for one field, and not a sentence of a failing nvidia-smi."""
    if field in ("name", "gpu_name"):
        return output.exit_code in (0, None) and bool(cell) and not re.search(r"[:.!]|WARNING|NVML| found$", cell)
    return field in ("uuid", "gpu_uuid") and cell.startswith("GPU-")


def _is_known(cell: str) -> bool:
    return bool(cell) and not cell.startswith("[") and cell not in ("N/A", "ERR!")


def _facts(index: int, cells: Mapping[str, str]) -> PartialGpu:
    mode = cells.get("mig.mode.current")
    bus_id = cells.get("pci.bus_id")
    return PartialGpu(
        index=index,
        name=cells.get("name", cells.get("gpu_name")),
        uuid=cells.get("uuid", cells.get("gpu_uuid")),
        memory_bytes=mebibytes(cells.get("memory.total")),
        pci_address=normal_address(bus_id)
        if bus_id and re.fullmatch(r"[0-9A-Fa-f]{4,8}(:\w\w){2}\.\d", bus_id)
        else None,
        driver_version=cells.get("driver_version"),
        mig=flag(mode),
        compute_mode=cells.get("compute_mode"),
        persistence_mode=flag(cells.get("persistence_mode")),
        ecc_uncorrected=whole_number(cells.get("ecc.errors.uncorrected.volatile.total")),
        row_remap_pending=flag(cells.get("remapped_rows.pending")),
        row_remap_failure=flag(cells.get("remapped_rows.failure")),
        throttle_reasons=_throttle_reasons(cells),
        pci_gen=whole_number(cells.get("pcie.link.gen.current")),
        pci_gen_max=whole_number(cells.get("pcie.link.gen.max")),
        pci_width=whole_number(cells.get("pcie.link.width.current")),
        pci_width_max=whole_number(cells.get("pcie.link.width.max")),
        fabric_state=cells.get("fabric.state"),
        fabric_status=cells.get("fabric.status"),
    )


def flag(text: str | None) -> bool | None:
    """Return True for `Yes`, `Enabled` and `1`, False for their opposites, and None for other text."""
    return {"yes": True, "enabled": True, "1": True, "no": False, "disabled": False, "0": False}.get(
        (text or "").lower()
    )


def _throttle_reasons(cells: Mapping[str, str]) -> tuple[str, ...]:
    reasons = []
    for name, cell in cells.items():
        match = re.fullmatch(r"clocks_(?:event|throttle)_reasons\.(\w+)", name)
        if match and cell == "Active" and match.group(1) != "gpu_idle":
            reasons.append(match.group(1))
    return tuple(reasons)
