"""Accelerators of other vendors than NVIDIA, from AMD's and Huawei's tools or from lspci."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from prober.asking.commands import Command
from prober.asking.recording import Recorded

ROCM_SMI = Command("rocm-smi --showproductname", limited=True, when="command -v rocm-smi >/dev/null 2>&1")
NPU_SMI = Command("npu-smi info", limited=True, when="command -v npu-smi >/dev/null 2>&1")

_AMD_NAME = re.compile(r"(?:Card series|Device Name|MARKET_NAME):\s*(\S.*?)\s*$", re.IGNORECASE)
_NPU_ROW = re.compile(r"\|\s*\d{1,3}\s+(Ascend\w+|\d{3}\w[\w-]*)\s*\|\s*[A-Za-z]+\s*\|")
_LSPCI_ROW = re.compile(r"^\S+ ([A-Za-z ]+?)(?: \[[0-9a-f]{4}\])?: (Advanced Micro Devices|Huawei|Habana Labs)(.*)$")
_ACCELERATOR = "Processing accelerators"
_ASCEND = re.compile(r"\bAscend\b|\bDevice d\d{3}\b")  # other engines of Huawei's processors have the same class


def read_other_accelerators(outputs: Sequence[Recorded]) -> tuple[str, ...]:
    """Return one name for each accelerator, from the first source that shows any."""
    for tools, parse in (
        (("rocm-smi", "amd-smi"), _amd_names),
        (("npu-smi",), _ascend_names),
        (("lspci",), _lspci_names),
    ):
        for output in outputs:
            if output.tool in tools and (names := tuple(parse(output))):
                return names
    return ()


def _amd_names(output: Recorded) -> Iterator[str]:
    for line in output.whole_lines:
        if match := _AMD_NAME.search(line):
            name = match.group(1)
            yield name if name.startswith("AMD") else f"AMD {name}"


def _ascend_names(output: Recorded) -> Iterator[str]:
    for line in output.whole_lines:
        if match := _NPU_ROW.match(line.strip()):
            yield f"Huawei Ascend {match.group(1).removeprefix('Ascend')}"


def _lspci_names(output: Recorded) -> Iterator[str]:
    for line in output.whole_lines:
        if match := _LSPCI_ROW.match(line):
            kind, maker, rest = match.groups()
            if maker == "Habana Labs" and kind == _ACCELERATOR:
                yield "Intel Gaudi"
            elif maker == "Huawei" and kind == _ACCELERATOR and _ASCEND.search(rest):
                yield "Huawei Ascend"
            elif maker == "Advanced Micro Devices" and (name := re.search(r"\[(?:AMD )?(Instinct [^\]]+)\]", rest)):
                yield f"AMD {name.group(1)}"
