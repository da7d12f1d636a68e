"""The kernel: its release, modules, command line and machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from prober.asking.commands import Command
from prober.asking.numbers import whole_number
from prober.asking.recording import Recorded
from prober.asking.sysfs_tree import Tree

UNAME = Command("uname -a")
LSMOD = Command("lsmod")
MODULES = Command("cat /proc/modules", when='[ "$code" = 127 ]')
FILES = Command(
    "grep -Hs . /proc/cmdline /proc/driver/nvidia/version /sys/class/dmi/id/sys_vendor /sys/class/dmi/id/product_name "
    "/sys/hypervisor/type /sys/module/mlx5_core/version /sys/module/nvidia/version "
    "/sys/module/nvidia_peermem/version /sys/kernel/mm/memory_peers/*/version /proc/sys/kernel/random/boot_id"
)
MEMORY = Command(
    "grep -Hs -e MemTotal: -e HugePages_Total: -e CapEff: -e '^ *0 ' /proc/meminfo /proc/self/status /proc/self/uid_map"
)
CPUS = Command("nproc")
IOMMU = Command("ls /sys/kernel/iommu_groups")
IOMMU_TYPES = Command("cat /sys/kernel/iommu_groups/*/type | sort -u", when="has /sys/kernel/iommu_groups/*/type")
VIRTUAL = Command("grep -Hsm1 -ow hypervisor /proc/cpuinfo")
SERVICES = Command(
    "systemctl is-active nvidia-fabricmanager nvidia-imex", limited=True, when="command -v nvidia-smi >/dev/null 2>&1"
)

_VIRTUAL_MAKERS = ("QEMU", "KVM", "VMware", "Xen", "Amazon EC2", "Google Compute Engine", "Microsoft Corporation")


@dataclass(frozen=True)
class Kernel:
    """Facts about the kernel, with the field names of `Host`. None is not known."""

    hostname: str | None
    kernel: str | None
    kernel_modules: tuple[str, ...] | None
    kernel_modules_complete: bool
    peermem: bool | None
    open_gpu_driver: bool | None
    iommu_groups: int | None
    iommu_group_types: tuple[str, ...] | None
    kernel_command_line: str | None
    virtual_machine: bool | None
    boot_id: str | None
    cpu_count: int | None
    memory_bytes: int | None
    hugepages: int | None
    fabric_manager: str | None
    imex: str | None


def read_kernel(outputs: Sequence[Recorded], tree: Tree) -> Kernel:
    """Return the kernel's facts in the outputs of uname, lsmod, nproc and systemctl, and in files."""
    hostname, release = _uname(outputs)
    modules, complete = _modules(outputs)
    driver = tree.value("/proc/driver/nvidia/version")
    memory = dict(re.findall(r"(\w+):\s*(\d{1,12})", "\n".join(tree.values.get("/proc/meminfo", []))))
    return Kernel(
        hostname=hostname,
        kernel=release,
        kernel_modules=modules,
        kernel_modules_complete=complete,
        peermem=_peermem(tree, modules, complete),
        open_gpu_driver=None if driver is None else "Open Kernel Module" in driver,
        iommu_groups=_iommu_groups(outputs, tree),
        iommu_group_types=_iommu_group_types(outputs, tree),
        kernel_command_line=tree.value("/proc/cmdline"),
        virtual_machine=_virtual_machine(outputs, tree),
        boot_id=tree.value("/proc/sys/kernel/random/boot_id"),
        cpu_count=next((whole_number(output.plain) for output in outputs if output.tool == "nproc"), None),
        memory_bytes=int(memory["MemTotal"]) * 1024 if "MemTotal" in memory else None,
        hugepages=int(memory["HugePages_Total"]) if "HugePages_Total" in memory else None,
        fabric_manager=_service(outputs, "nvidia-fabricmanager"),
        imex=_service(outputs, "nvidia-imex"),
    )


def _uname(outputs: Sequence[Recorded]) -> tuple[str | None, str | None]:
    hostname = release = None
    for output in outputs:
        words = output.plain.split()
        if output.exit_code not in (0, None) or output.tool not in ("uname", "hostname"):
            continue
        if words[:1] == ["Linux"] and len(words) > 3 and "-a" in output.words:
            hostname, release = hostname or words[1], release or words[2]
        elif len(words) == 1 and (output.tool == "hostname" or "-n" in output.words):
            hostname = hostname or words[0]
        elif len(words) == 1 and "-r" in output.words:
            release = release or words[0]
    return hostname, release


def _modules(outputs: Sequence[Recorded]) -> tuple[tuple[str, ...] | None, bool]:
    """Return the modules that lsmod lists, also as users of others, and True if the list is complete."""
    names: set[str] = set()
    read = complete = False
    for output in outputs:
        from_proc = output.tool == "cat" and "/proc/modules" in output.words
        if not (output.tool == "lsmod" or from_proc) or output.exit_code not in (0, None):
            continue
        for line in output.whole_lines:
            match = re.match(r"(\w+)\s+(\d+)\s+\d+\s*([\w,]*)-?\s*(?:(?:Live|Loading|Unloading) .*)?$", line)
            if match:
                read = True
                names |= {match.group(1), *filter(None, match.group(3).split(","))}
        complete = complete or (not output.filtered and (from_proc or output.plain.startswith("Module ")))
    return (tuple(sorted(names)), complete) if read or complete else (None, False)


def _peermem(tree: Tree, modules: tuple[str, ...] | None, complete: bool) -> bool | None:
    names = ("nvidia_peermem", "nv_peer_mem")
    if modules is not None and any(name in modules for name in names):
        return True
    if any(True for _ in tree.matching(r"/sys/kernel/mm/memory_peers/nv_mem(_nc)?/version")):
        return True
    return False if modules is not None and complete else None


def gpu_driver_version(tree: Tree) -> str | None:
    """Return the version of the loaded kernel module of NVIDIA."""
    banner = re.search(r"Kernel Module.*?\s(\d{3}\.\d+(?:\.\d+)?)\s", tree.value("/proc/driver/nvidia/version") or "")
    return tree.value("/sys/module/nvidia/version") or (banner.group(1) if banner else None)


def _iommu_groups(outputs: Sequence[Recorded], tree: Tree) -> int | None:
    folder = "/sys/kernel/iommu_groups"
    asked = [output for output in outputs if output.tool == "ls" and folder in output.words]
    if folder in tree.absent:
        return 0
    return len(tree.listed.get(folder, [])) if asked and asked[-1].exit_code == 0 else None


_IOMMU_TYPES = ("blocked", "identity", "unmanaged", "DMA", "DMA-FQ")  # Source: Linux, drivers/iommu/iommu.c


def _iommu_group_types(outputs: Sequence[Recorded], tree: Tree) -> tuple[str, ...] | None:
    """Return each type once, from files with their paths and from those that cat printed together."""
    root = "/sys/kernel/iommu_groups/"
    found = {value for _, value in tree.matching(rf"{root}\d+/type")}
    for output in outputs:
        if output.tool == "cat" and any(word.startswith(root) for word in output.words):
            found |= set(output.whole_lines)
    return tuple(sorted(found.intersection(_IOMMU_TYPES))) or None


def _virtual_machine(outputs: Sequence[Recorded], tree: Tree) -> bool | None:
    maker = f"{tree.value('/sys/class/dmi/id/sys_vendor')} {tree.value('/sys/class/dmi/id/product_name')}"
    if tree.value("/proc/cpuinfo") == "hypervisor" or tree.value("/sys/hypervisor/type"):
        return True
    if any(name in maker for name in _VIRTUAL_MAKERS) and "Surface" not in maker:
        return True
    asked = [output for output in outputs if output.tool == "grep" and "/proc/cpuinfo" in output.words]
    return False if asked and asked[-1].exit_code == 1 else None


_SERVICE_STATES = r"active|inactive|failed|activating|deactivating|unknown"


def _service(outputs: Sequence[Recorded], name: str) -> str | None:
    """Return the state of a service from its `systemctl status`, or from `is-active`, which prints a line per unit."""
    for output in outputs:
        asked = [word.removesuffix(".service") for word in output.words[2:] if not word.startswith("-")]
        if output.tool == "systemctl" and name in asked:
            status = re.search(r"^[ \t]*Active: (\w+)", output.plain, flags=re.MULTILINE) if len(asked) == 1 else None
            lines = [line.strip() for line in output.lines if line.strip()]
            word = status.group(1) if status else lines[asked.index(name)] if len(lines) == len(asked) else ""
            return word if re.fullmatch(_SERVICE_STATES, word) else None
    return None
