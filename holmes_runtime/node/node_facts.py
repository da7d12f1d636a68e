"""Facts about this node that a launch relies on: software, interfaces, ports, GPUs, limits, NCCL settings.

Standard library only, and fast: torch is not imported, its version is read from its files.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from holmes_runtime.config.messages import (
    NodeCheckpointFolder,
    NodeFacts,
    NodeGpu,
    NodeGpuProcess,
    NodeInterface,
    NodeNcclSetting,
)
from holmes_runtime.config.node_config import NodeConfig
from holmes_runtime.config.rooted_path import CACHE_PARTS
from holmes_runtime.node.checkpoint_files.checkpoint_folder import names_in, newest_in, steps_of
from holmes_runtime.node.checkpoint_files.mounts import mount_of
from holmes_runtime.node.compiler import missing_for_compile, missing_for_fp8
from holmes_runtime.node.nccl_conf import conf_files, settings_in

RUN_CONFIG_FILE = "run_config.json"
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 1
_FILES = ("~/.bashrc", "~/.profile", "~/.bash_profile", "~/.zshenv", "/etc/environment")
_TOOL_TIMEOUT_S = 20.0
MAX_CHECKPOINTS = 1000  # limit of checkpoints whose steps are sent
CACHE = Path(*CACHE_PARTS)  # in the home folder: files sent, and the folders of runs while they last


def read_facts(config: NodeConfig, folder: Path) -> NodeFacts:
    """Return all facts about this node except who has its GPUs. `folder` is the node's own."""
    gpus, gpus_failure = _nvidia_smi("--query-gpu=index,uuid,name,driver_version") if config.gpus else ([], None)
    planned = (*config.addresses.values(), config.tunnel and config.tunnel.endpoints[config.node_rank])
    return NodeFacts(
        python=sys.version.split()[0],
        executable=sys.executable,
        torch=_of_torch("__version__") or ("version not known" if _torch_file() else None),
        torch_cuda=_of_torch("cuda"),
        driver=gpus[0][-1] if gpus else None,
        nccl=_nccl_version(),
        interfaces=_interfaces(),
        local_addresses=tuple(address for address in planned if address and _is_local(address)),
        rdma_ports=_rdma_ports(),
        net_plugin_there=_net_plugin_there(config.environment.get("NCCL_NET_PLUGIN", "")),
        gpus=None if gpus is None else _gpus(gpus),
        gpus_failure=gpus_failure,
        gpu_processes=_gpu_processes() if config.gpus else (),
        free_bytes=shutil.disk_usage(folder).free,
        shm_free_bytes=_free_bytes("/dev/shm"),
        checkpoint=_checkpoint(config.checkpoint_path),
        missing_inputs=_unreadable(folder, config.inputs),
        wrong_inputs=_wrong_inputs(folder / RUN_CONFIG_FILE),
        compile_lacks=missing_for_compile(bool(config.gpus), {**os.environ, **config.environment}),
        fp8_lacks=missing_for_fp8(),
        memlock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        memory_bytes=_available_memory_bytes(Path("/proc/meminfo")),
        nccl_settings=_nccl_settings(config.environment),
        gpus_taken=(),
    )


def _torch_file() -> Path | None:
    """Return the path of torch/version.py, None without torch."""
    spec = importlib.util.find_spec("torch")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("version.py")


def _of_torch(name: str) -> str | None:
    """Return the value of `name` in torch/version.py; None if it is None or missing."""
    file = _torch_file()
    with contextlib.suppress(OSError):
        text = "" if file is None else file.read_text(encoding="utf-8")
        found = re.search(rf"^{name}\s*(?::[^=]*)?=\s*['\"](.+)['\"]", text, re.MULTILINE)
        return found.group(1) if found else None
    return None


def _nccl_version() -> str | None:
    """Return the version of the installed NCCL package; None if torch has its own or there is none."""
    for folder in map(Path, sys.path):
        for found in folder.glob("nvidia_nccl_*.dist-info"):
            return found.stem.split("-")[1]
    return None


def _interfaces() -> dict[str, NodeInterface]:
    """Return every interface, if it is up, and its first IPv4 address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            flags = _ask(asker, _SIOCGIFFLAGS, name)
            address = _ask(asker, _SIOCGIFADDR, name)
            found[name] = NodeInterface(
                up=bool(flags and struct.unpack_from("H", flags, 16)[0] & _IFF_UP),
                address=socket.inet_ntoa(address[20:24]) if address else None,
            )
    return found


def _ask(asker: socket.socket, question: int, interface: str) -> bytes | None:
    with contextlib.suppress(OSError):
        return fcntl.ioctl(asker.fileno(), question, struct.pack("256s", interface.encode()[:15]))
    return None


def _is_local(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _rdma_ports() -> dict[str, str]:
    """Return the state of each RDMA port from the kernel: `mlx5_0:1` -> `ACTIVE`."""
    states = {}
    for file in sorted(Path("/sys/class/infiniband").glob("*/ports/*/state")):
        parts = file.parts
        with contextlib.suppress(OSError):
            states[f"{parts[4]}:{parts[6]}"] = file.read_text(encoding="utf-8").split(":")[-1].strip()
    return states


def _net_plugin_there(value: str) -> bool | None:
    """Return True if the file exists; None for the suffix of a library's name, for which NCCL searches."""
    return Path(value).is_file() if value.startswith("/") else None


def _gpus(rows: list[list[str]]) -> tuple[NodeGpu, ...]:
    """Return the GPUs that have an index. A GPU that fell off the bus has none."""
    return tuple(NodeGpu(int(row[0]), row[1], row[2]) for row in rows if row[0].isdecimal() and len(row) == 4)


def _gpu_processes() -> tuple[NodeGpuProcess, ...] | None:
    rows, _ = _nvidia_smi("--query-compute-apps=gpu_uuid,pid,process_name")
    if rows is None:
        return None
    return tuple(NodeGpuProcess(row[0], row[1], ", ".join(row[2:])) for row in rows if len(row) > 1)


def _nvidia_smi(query: str) -> tuple[list[list[str]] | None, str | None]:
    """Return the rows of the answer (None without one), and its message about a lost GPU, or why it failed."""
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
    lost = next((line for line in lines if "Unable to determine the device handle" in line), None)
    if done.returncode != 0:
        return None, lost or lines[-1]
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()], lost


def _free_bytes(path: str) -> int | None:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(path).free
    return None


def _unreadable(folder: Path, inputs: Sequence[str]) -> tuple[str, ...]:
    paths = (folder / Path(name).expanduser() for name in inputs)
    return tuple(str(path) for path in paths if not os.access(path, os.R_OK))


def _wrong_inputs(run_config: Path) -> tuple[str, ...]:
    """Return why the run cannot use the files on this node. Missing files are reported elsewhere."""
    if not run_config.is_file():
        return ()
    from holmes_runtime.node.data_files.check_inputs import wrong_inputs  # imports dataclasses, which is slow
    from holmes_runtime.node.published_files.check_published import wrong_weights

    text = run_config.read_text(encoding="utf-8")
    return (*wrong_weights(text), *wrong_inputs(text))


def _available_memory_bytes(meminfo: Path) -> int | None:
    """Return the memory that processes can still get without swapping, as estimated by the kernel."""
    with contextlib.suppress(OSError):
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="utf-8"), re.MULTILINE)
        return int(found[1]) * 1024 if found else None
    return None


def _checkpoint(path: str | None) -> NodeCheckpointFolder | None:
    if path is None:
        return None
    folder, newest = Path(path).expanduser(), None
    steps: tuple[int, ...] = ()
    in_cache = folder.resolve().is_relative_to((Path.home() / CACHE).resolve())
    with contextlib.suppress(OSError, ValueError):
        newest = newest_in(folder)
        steps = tuple(each.steps for each in names_in(folder) if newest and each.steps <= steps_of(newest))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return NodeCheckpointFolder(
        folder=str(folder),
        writable=os.access(folder, os.W_OK),
        free_bytes=_free_bytes(str(folder)),
        newest=newest.name if newest else None,
        in_cache=in_cache,
        mount_point=mount_of(folder).point,
        steps=steps[-MAX_CHECKPOINTS:],
    )


def _nccl_settings(environment: Mapping[str, str]) -> tuple[NodeNcclSetting, ...]:
    """Return the NCCL settings of the agent's environment, of files, and of `environment`, which ranks also get."""
    found = [NodeNcclSetting("the environment", *item) for item in os.environ.items() if item[0].startswith("NCCL_")]
    shells = [*(Path(name).expanduser() for name in _FILES), *sorted(Path("/etc/profile.d").glob("*.sh"))]
    for file in (*conf_files({**os.environ, **environment}), *shells):
        found += [NodeNcclSetting(str(file), *setting) for setting in settings_in(file)]
    return tuple(found)


def oom_kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory since boot, 0 if unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
