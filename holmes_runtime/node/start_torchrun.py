"""Starting torchrun from the agent: its arguments, its environment, and the path to the store."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from holmes_runtime.config.islands.rendezvous_messages import MEETING
from holmes_runtime.config.node_config import (
    COMPILED_FOLDER,
    HOST_VARIABLE,
    KEY_VARIABLE,
    MEMORY_VARIABLE,
    TRAINER_FILE,
    TRAINER_VARIABLE,
    NodeConfig,
    memory_folder,
)
from holmes_runtime.node.admission.rendezvous_gate import RendezvousGate
from holmes_runtime.node.admission.store_gate import GATE_ADDRESS, StoreGate
from holmes_runtime.node.private_folder import is_private_folder
from holmes_runtime.node.process_tree import die_with_parent

TEMPORARY_LINK = "tmp"
FAILURES_FILE = "failures.jsonl"
# Defaults on GPUs unless the plan or job.yaml sets them. For torch 2.13: the recorder keeps this many operations
# (FlightRecorder.hpp), and torch does not warn that messages of one group are sent in order, as they should be.
ON_GPUS = {
    "TORCH_FR_BUFFER_SIZE": "20000",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
}
TORCHRUN_LOG = "torchrun.log"


def start_torchrun(
    config: NodeConfig, folder: Path, gate: StoreGate, meeting: RendezvousGate | None, key: bytes
) -> subprocess.Popen[bytes]:
    """Start torchrun and return its process. It and the ranks reach the store through `gate`; node 0 serves the store.

    Ranks of an island reach the others' through `meeting`; all have `key` in common. The ranks' output goes to
    logs/RUN/attempt_0/LOCAL_RANK/{stdout,stderr}.log in the node's `folder`.
    """
    (folder / "logs").mkdir()
    environment = rank_environment(config, folder)
    environment[KEY_VARIABLE] = key.hex()
    if meeting is not None:
        environment[MEETING] = f"{GATE_ADDRESS}:{meeting.port}"
    descriptor = gate.store_descriptor
    if descriptor is not None:
        environment["HOLMES_LISTENER"] = str(descriptor)
    arguments = [
        *("--nnodes", str(len(config.node_addresses)), "--nproc-per-node", str(config.num_ranks)),
        *("--rdzv-backend", "holmes", "--rdzv-endpoint", f"{GATE_ADDRESS}:{gate.port}"),
        *("--rdzv-conf", f"rank={config.node_rank}", "--rdzv-id", config.run_id),
        *("--max-restarts", "0", "--monitor-interval", "0.1"),
        *("--log-dir", str(folder / "logs"), "--redirects", "3"),
        *rank_words(folder),
    ]
    with open(folder / TORCHRUN_LOG, "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "holmes_runtime.node.lean_start", "holmes_runtime.torchrun", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            preexec_fn=die_with_parent,
            pass_fds=() if descriptor is None else (descriptor,),
        )


def rank_words(folder: Path) -> tuple[str, ...]:
    """Return the words after `python` that start a rank, of the bundled runtime or of a trainer's command."""
    if (folder / TRAINER_FILE).exists():
        return "-m", "holmes_runtime.node.start_trainer"
    return "-m", "holmes_runtime.node.lean_start", "holmes_runtime.train", str(folder / "run_config.json")


def rank_environment(config: NodeConfig, folder: Path) -> dict[str, str]:
    """Return our variables, then the plan's and the user's, then secrets, then those that torchrun and ranks need."""
    environment = {**os.environ, **config.environment, "PYTHONUNBUFFERED": "1"}
    for name in config.secrets:
        environment[name] = (folder / f"secret-{name}").read_text(encoding="utf-8").rstrip("\n")
    environment["TMPDIR"] = _make_temporary_folder(folder)
    environment = {**compile_caches(folder.parents[2], os.uname().nodename), **environment}
    if config.gpus:
        environment.update(gpu_environment(environment, folder))
    environment["HOLMES_FAILURES_FILE"] = str(folder / FAILURES_FILE)
    environment["HOLMES_METRICS_DIR"] = str(folder)
    environment |= {HOST_VARIABLE: config.host, TRAINER_VARIABLE: str(folder / TRAINER_FILE)}
    if config.checkpoint_path is not None:
        environment[MEMORY_VARIABLE] = memory_folder(config.run_id, config.host)
    return environment


def compile_caches(cache: Path, machine: str, local: str = COMPILED_FOLDER) -> dict[str, str]:
    """Return the variables for the folders where torch's compiler and Triton keep compiled code for the next run.

    Homes may be on one NFS, where machines compete for files and locks. So the folders are on the machine's own disk,
    in a folder private to one user, as their content is executed: `local` and the user's number. If that cannot be
    used, they are in the machine's folder in `cache`, Holmes's folder in the home. Hosts on one machine share them.
    """
    folder = Path(f"{local}{os.geteuid()}")
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not is_private_folder(folder) or not os.access(folder, os.W_OK):
        folder = cache / "compiled" / (re.sub(r"[^A-Za-z0-9_-]", "-", machine) or "unnamed")
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}


def gpu_environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return `environment` with the defaults for ranks on GPUs. NCCL's log goes to `folder`."""
    return {**ON_GPUS, **_nccl_log(environment, folder), **environment}


def _nccl_log(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return variables that make NCCL log its setup, one file per process; none if the user configured the log."""
    if any(name.startswith("NCCL_DEBUG") for name in environment):
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": str(folder / "nccl-%h-%p.log"),
    }


def _make_temporary_folder(folder: Path) -> str:
    """Create the folder for torch's temporary files, and a link to it for removal. Socket names need a short path."""
    temporary = tempfile.mkdtemp(prefix="holmes-")
    (folder / TEMPORARY_LINK).symlink_to(temporary)
    return temporary
