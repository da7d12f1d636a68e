"""GPUs and networks by their names in sketches, and the name nearest to an unknown one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from holmes_core.units import GIB, MIB
from planner.cost.gpu_speeds import MEMORY_MIB
from planner.cost.slot import named_board, usual_nvlinks

SketchedKind = Literal["InfiniBand", "RoCE", "EFA", "Ethernet"]
FABRICS: Mapping[str, SketchedKind] = {
    **{"IB": "InfiniBand", "InfiniBand": "InfiniBand", "RoCE": "RoCE", "EFA": "EFA", "Ethernet": "Ethernet"},
}
SHORT: Mapping[SketchedKind, str] = {"InfiniBand": "IB"}
"""Kinds that have a shorter name in a sketch than in an inventory."""
PCIE_TOO = ("A100", "A100 40GB", "A800")  # sold on SXM boards and as PCI Express cards, under one name
PCI_GENERATIONS = {3: ("V100", "T4"), 5: ("H", "B", "G", "RTX 5090")}  # by prefix of a product; else 4: data sheets
NEAR_SIZE = 0.05  # a GPU's name has the size of its data sheet, and nvidia-smi shows a little less
_NO_PART_OF_A_NAME = re.compile(r"nvidia|tesla|geforce|sxm\d?|hbm3e?")


class KnownGpu(NamedTuple):
    """A GPU that can be bought: its name in CUDA, its memory as nvidia-smi shows it, and its links to others."""

    cuda_name: str
    memory_bytes: int
    nvlinks: int
    pci_generation: int


def _known_gpus() -> Mapping[str, KnownGpu]:
    found = {}
    for product, mib in MEMORY_MIB.items():
        generations = (number for number, begins in PCI_GENERATIONS.items() if product.startswith(begins))
        generation = next(generations, 4)
        found[product] = KnownGpu(named_board(product), mib * MIB, usual_nvlinks(product), generation)
        if product in PCIE_TOO:
            card = f"NVIDIA {product} PCIe"
            found[f"{product} PCIe"] = KnownGpu(card, mib * MIB, 0, generation)
    # Its speed is not known. Of its 128 GB, which the CPU shares, about 120 are left: NVIDIA, DGX Spark.
    spark = {"GB10": KnownGpu("NVIDIA GB10", 120 * 10**9, 0, 5)}
    return found | {"V100 16GB": found["V100"]._replace(memory_bytes=16 * GIB)} | spark


GPUS = _known_gpus()
"""GPUs by the name in a sketch, which is the product's name in `gpu_peaks.py`."""


def known_gpu(text: str) -> str:
    """Return the name in `GPUS` of a GPU that is written in a usual form: `A100-80`, `H100 SXM 80GB`.

    Raises:
        ValueError: No such GPU, or not with that memory. The message has the nearest and all known names.
    """
    words = [_size(word) for word in re.split(r"[\s_-]+", text.strip().lower())]
    words = [word for word in words if not _NO_PART_OF_A_NAME.fullmatch(word)]
    names = {frozenset(name.lower().split()): name for name in GPUS}
    if frozenset(words) in names:
        return names[frozenset(words)]
    sizes = [word for word in words if re.fullmatch(r"\d+gb", word)]
    bare = names.get(frozenset(words) - set(sizes))
    if bare is None or len(sizes) != 1:
        raise ValueError(_not_known("GPU", text, " ".join(words), GPUS))
    size, memory_bytes = int(sizes[0].removesuffix("gb")), GPUS[bare].memory_bytes
    if min(abs(size * unit / memory_bytes - 1) for unit in (10**9, GIB)) >= NEAR_SIZE:
        others = ", ".join(name for name in GPUS if name.split()[0] == bare.split()[0])
        known = f"{memory_bytes / GIB:.0f} GiB"
        raise ValueError(f"no {bare} with {sizes[0].upper()} is known: it has {known} (there are {others})")
    return bare


def known_fabric(text: object) -> SketchedKind:
    """Return the kind of a network by its name, in any case.

    Raises:
        ValueError: No such network. The message has the nearest and all known names.
    """
    if not isinstance(text, str):
        raise ValueError(f"must be the name of a network ({', '.join(FABRICS)})")
    for name, kind in FABRICS.items():
        if name.lower() == text.strip().lower():
            return kind
    raise ValueError(_not_known("network", text, text.strip().lower(), FABRICS))


def _size(word: str) -> str:
    """Return `80gb` for `80`, `80g`, `80gb` and `80gib`; any other word unchanged."""
    found = re.fullmatch(r"(\d{2,3})(?:gi?b?)?", word)
    return f"{found[1]}gb" if found else word


def _not_known(what: str, text: str, normal: str, known: Iterable[str]) -> str:
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(normal, names, n=1, cutoff=0.4)
    nearest = f"; did you mean {names[near[0]]}?" if near else ""
    return f"no {what} {text.strip()!r} is known{nearest} (known: {', '.join(names.values())})"
