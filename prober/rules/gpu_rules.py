"""Rules on GPUs: all are there, each accepts a process, and none is in use."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holmes_core.records.inventory import Host
from holmes_core.units import format_memory
from prober.rule_text import FIELD, EvidenceLine
from prober.rules.kernel_log_rules import init_cause
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, below, differing, distinct, together

BAD_THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
LOST_GPU = "Unable to determine the device handle"
_VERSIONS_DIFFER = ("exit 18", "version mismatch")
OTHER_DRIVERS = {"amdgpu": "AMD", "habanalabs": "Intel Gaudi", "drv_davinci_intf_host": "Ascend"}  # by kernel module


def has_module(host: Host, name: str) -> bool:
    """Return True if a kernel module is known to be loaded."""
    return name in (host.kernel_modules or ())


def _gpu_none(host: Host) -> Evidence:
    if host.gpus_stated == ():
        return
    if host.access.transport == "local" or host.gpus or (host.other_accelerators and not host.gpu_count_lspci):
        return
    if host.nvidia_smi_failure:
        if not any(text in host.nvidia_smi_failure for text in (*_VERSIONS_DIFFER, LOST_GPU)):
            yield _nvidia_smi_failed(host, host.nvidia_smi_failure)
        return
    without_driver = host.kernel_modules_complete and not has_module(host, "nvidia")
    other = next((maker for module, maker in OTHER_DRIVERS.items() if has_module(host, module)), None)
    if other and (without_driver or not host.gpu_count_lspci):
        yield EvidenceLine(f"no NVIDIA GPU; the driver of an {other} card is loaded", _OTHER_MAKER)
    elif host.gpu_count_lspci == 0:
        yield EvidenceLine("no NVIDIA GPU in lspci", "leave the host out, or use `device: cpu` in job.yaml")
    elif without_driver:
        yield "no NVIDIA driver is loaded"


def _nvidia_smi_failed(host: Host, failure: str) -> str | EvidenceLine:
    """Return the failure, with the remedy of its cause."""
    seen = f"nvidia-smi: {failure}"
    if "No devices were found" in failure:
        if cause := init_cause(host):
            return EvidenceLine(f"{seen}; {cause[0]}", cause[1])
        return EvidenceLine(seen, _NOT_STARTED) if has_module(host, "nvidia") else seen
    if "libnvidia-ml.so" in failure:
        return EvidenceLine(seen, _NO_LIBRARY)
    if "Failed to initialize NVML" not in failure:
        return EvidenceLine(seen, _NO_DRIVER)
    if "Insufficient Permissions" in failure:
        return EvidenceLine(seen, _NO_RIGHTS)
    lost = "Unknown Error" in failure or is_given_a_part(host) or has_module(host, "nvidia")
    return EvidenceLine(seen, _LOST_DEVICES if lost else _NO_DRIVER)


def _missing_gpus(host: Host) -> str | None:
    if host.nvidia_smi_failure and LOST_GPU in host.nvidia_smi_failure:
        return None  # which says more
    count = host.gpu_count_lspci
    if count and host.gpus and "nvidia-smi" in host.sources and len(host.gpus) < count:
        return f"lspci lists {count} GPUs, nvidia-smi {len(host.gpus)}"
    return None


def is_given_a_part(host: Host) -> bool:
    """Return True in a container or a Slurm job, which sees only its own GPUs while /sys shows the machine's."""
    return host.container not in (None, "none") or host.slurm_job_id is not None


def _gpu_lost(host: Host) -> Evidence:
    """Yield evidence from nvidia-smi, or more device files than GPUs: the driver makes one for each that it takes."""
    if (failure := host.nvidia_smi_failure) and LOST_GPU in failure:
        yield f"nvidia-smi: {failure}"
        return
    seen = _missing_gpus(host)
    sure = host.container == "none" and (host.gpu_device_files or 0) > len(host.gpus)
    if seen and sure and not is_given_a_part(host):
        yield f"{seen}, and there are {host.gpu_device_files} files /dev/nvidia0 and on"


def _gpu_unexplained(host: Host) -> Evidence:
    seen = _missing_gpus(host)
    if seen and not is_given_a_part(host) and (host.gpu_device_files or 0) <= len(host.gpus):
        yield seen


def _gpu_given(host: Host) -> Evidence:
    seen = _missing_gpus(host)
    if seen and is_given_a_part(host):
        where = f"Slurm job {host.slurm_job_id}" if host.slurm_job_id else f"container ({host.container})"
        yield f"{seen}: the probe ran in a {where}"


def _mig(host: Host) -> Evidence:
    for gpu in host.gpus:
        if gpu.mig:
            yield EvidenceLine(
                f"GPU {gpu.index} is in MIG mode",
                f"`nvidia-smi -i {gpu.index} -mig 0`, or name the others by `gpus:` in hosts.yaml",
            )


def _compute_mode(host: Host) -> Evidence:
    for gpu in host.gpus:
        mode = gpu.compute_mode or ""
        if "exclusive" in mode.lower() or "prohibited" in mode.lower() or mode.startswith("E."):
            yield EvidenceLine(f"GPU {gpu.index}: compute mode {mode}", f"`nvidia-smi -i {gpu.index} -c 0`")


def _throttle(host: Host) -> Evidence:
    for gpu in host.gpus:
        bad = [reason for reason in gpu.throttle_reasons if reason in BAD_THROTTLES]
        if bad:
            yield f"GPU {gpu.index}: {', '.join(bad)}"


def _busy(host: Host) -> Evidence:
    for process in host.gpu_processes or ():
        gpu = "a GPU" if process.gpu is None else f"GPU {process.gpu}"
        held = "" if process.memory_bytes is None else f", {format_memory(process.memory_bytes)}"
        yield f"{gpu}: process {process.pid} ({process.name or 'name not known'}){held}"


def _imex_off(host: Host) -> Evidence:
    is_tray = any(re.search(r"\bGB\d{3}\b", gpu.name or "") for gpu in host.gpus)
    if is_tray and host.imex not in (None, "active"):
        yield f"nvidia-imex is {host.imex}"


def _fewer_gpus(peers: Sequence[Host]) -> PeerEvidence:
    """Compare whole machines only, because a part of a machine has the GPUs that it was given."""
    whole = [host for host in peers if not is_given_a_part(host) and host.gpus_stated is None]
    yield from below(whole, "GPUs", lambda host: len(host.gpus) or None, "{:g}".format)


_NOT_STARTED = (
    "the driver is loaded and starts no GPU: `dmesg | grep -e NVRM -e Xid` says why; in a container, start it with its "
    "GPUs (`--gpus all`, or CDI)"
)
_NO_LIBRARY = (
    "in a container: install nvidia-container-toolkit on the host and start the container with `--gpus all`; else "
    "install the driver's libraries of the version that is loaded"
)
_NO_DRIVER = (
    "`modprobe nvidia` and its message in `dmesg`: after a new kernel build the module again (`dkms autoinstall`), and "
    "sign it where Secure Boot is on; a host without a GPU: `device: cpu` in job.yaml, or leave it out"
)
_NO_RIGHTS = (
    "let this user open /dev/nvidia* (mode 0666 by default, NVreg_DeviceFileMode), or ask the scheduler for GPUs"
)
_LOST_DEVICES = (
    "in a container: start it anew, as its device cgroup lost /dev/nvidia* (a reload of systemd does that); CDI or the "
    "cgroupfs driver keeps them; on the host itself: `dmesg | grep -i xid`, then reboot"
)
_OTHER_MAKER = "Holmes trains on NVIDIA GPUs (CUDA and NCCL): leave the host out, or use `device: cpu` in job.yaml"
_LOST = (
    "`dmesg | grep -i xid` and `lspci -d 10de:` tell which one; a GPU reset or a power cycle brings it back, "
    "or it is broken"
)

HOST_RULES = (
    Rule(
        "GPU-NONE",
        "F",
        "no NVIDIA GPU is visible, its driver is not loaded, or nvidia-smi fails as a whole",
        "nothing to train on",
        "`modprobe nvidia`, or use `device: cpu` in job.yaml",
        "NVIDIA driver installation guide; NVIDIA container toolkit, troubleshooting; NVIDIA/nvidia-docker#1671",
        _gpu_none,
    ),
    Rule(
        "GPU-COUNT",
        "F",
        "nvidia-smi cannot determine a GPU's device handle, or shows fewer GPUs of a machine of its own than it has "
        "device files and PCI devices",
        "a GPU has fallen off the bus, or its driver",
        _LOST,
        "NVIDIA GPU debug guidelines; NVIDIA Xid catalogue (79)",
        _gpu_lost,
    ),
    Rule(
        "GPU-COUNT",
        "W",
        "nvidia-smi shows fewer GPUs than lspci, and it cannot be told whether the host was given only a part",
        "the run has only the GPUs that nvidia-smi shows",
        f"right where the others are kept from this user or bound to vfio; else {_LOST}",
        "NVIDIA GPU debug guidelines; " + FIELD,
        _gpu_unexplained,
    ),
    Rule(
        "GPU-COUNT",
        "I",
        "a container or a Slurm job sees only some of the machine's GPUs",
        "the run has the GPUs that nvidia-smi shows",
        "nothing, unless you requested more",
        "Linux, Documentation/admin-guide/cgroup-v2.rst (device controller); Slurm, cgroup.conf (ConstrainDevices)",
        _gpu_given,
    ),
    Rule(
        "GPU-DRIVER-MISMATCH",
        "F",
        "nvidia-smi says that driver and library have different versions",
        "no GPU can be used",
        "the driver was updated under a running kernel module: reboot, or stop all its users and "
        "`modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia && modprobe nvidia`; pin the packages",
        "nvidia-smi, exit code 18; anderskm/gputil#55",
        lambda host: (
            f"nvidia-smi: {failure}"
            for failure in [host.nvidia_smi_failure or ""]
            if any(text in failure for text in _VERSIONS_DIFFER)
        ),
    ),
    Rule(
        "GPU-MIG-ENABLED",
        "F",
        "a GPU is in MIG mode",
        "NCCL has no path between instances of one GPU",
        "`nvidia-smi -i GPU -mig 0`, or leave the GPU out: name the others by `gpus:` in hosts.yaml",
        "NVIDIA Multi-Instance GPU user guide (no GPU-to-GPU peer transfers)",
        _mig,
    ),
    Rule(
        "GPU-COMPUTE-MODE",
        "W",
        "a GPU accepts only one process, or none",
        "a second process on the GPU fails; with Prohibited the first does too",
        "`nvidia-smi -i GPU -c 0`",
        "nvidia-smi(1), --compute-mode",
        _compute_mode,
    ),
    Rule(
        "GPU-THROTTLE",
        "W",
        "a GPU's clock is held down by hardware or heat",
        "a slow GPU that all others wait for",
        "cooling and power supply of this host",
        "nvidia-smi(1), clocks event reasons",
        _throttle,
    ),
    Rule(
        "GPU-PERSISTENCE-OFF",
        "I",
        "persistence mode is off",
        "slow first use",
        "`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` until the next boot",
        "NVIDIA driver persistence documentation",
        lambda host: together("GPU {}", (str(gpu.index) for gpu in host.gpus if gpu.persistence_mode is False)),
    ),
    Rule(
        "GPU-BUSY",
        "W",
        "processes compute on a GPU while the probe runs",
        "less memory, and a slow rank that all others wait for",
        "wait, or choose other GPUs with `gpus:` in hosts.yaml",
        "nvidia-smi(1), --query-compute-apps",
        _busy,
    ),
    Rule(
        "GPU-IMEX",
        "W",
        "a compute tray of GB200 or GB300 runs no nvidia-imex",
        "NCCL has no NVLink to GPUs of other trays, and goes by the NICs",
        "list the trays in /etc/nvidia-imex/nodes_config.cfg and `systemctl start nvidia-imex`",
        "NVIDIA IMEX service guide; NVIDIA MNNVL user guide (Internode Memory Exchange Service)",
        _imex_off,
    ),
)

PEER_RULES = (
    PeerRule(
        "GPU-DRIVER-DIFFERS",
        "W",
        "the GPU driver's version differs between hosts of the job",
        "hosts behave differently",
        "one driver version",
        FIELD,
        lambda hosts: differing(hosts, "GPU driver", lambda host: host.gpu_driver_version),
        scope="job",
    ),
    PeerRule(
        "GPU-COUNT-DIFFERS",
        "W",
        "a host has fewer GPUs than most hosts of its cluster",
        "a GPU disappeared without a trace; the plan uses the remaining ones",
        _LOST,
        "NVIDIA GPU debug guidelines; Azure/azurehpc-health-checks (expected counts by machine)",
        _fewer_gpus,
    ),
    PeerRule(
        "GPU-MODEL-DIFFERS",
        "I",
        "hosts of a cluster have GPUs of different models",
        "the plan gives each model its own share of the work",
        "nothing, unless one model was ordered",
        "docs/planning.md of this project",
        lambda hosts: differing(hosts, "GPU", lambda host: distinct(gpu.name or None for gpu in host.gpus)),
    ),
)
