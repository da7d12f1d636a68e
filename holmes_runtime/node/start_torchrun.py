"""How the agent starts torchrun: its arguments, its environment, and the socket of the rendezvous."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from holmes_runtime.config.node_config import NodeConfig
from holmes_runtime.node.process_tree import die_with_parent

TEMPORARY_LINK = "tmp"
FAILURES_FILE = "failures.jsonl"
TORCHRUN_LOG = "torchrun.log"


def start_torchrun(
    config: NodeConfig, folder: Path, master_port: int, rendezvous: int | None
) -> subprocess.Popen[bytes]:
    """The process. `rendezvous`: the descriptor of the listening socket it takes over, None but on node 0.

    Ranks' output goes to logs/RUN/attempt_0/LOCAL_RANK/{stdout,stderr}.log in the node's `folder`.
    """
    (folder / "logs").mkdir()
    environment = _environment(config, folder)
    if rendezvous is not None:
        environment["HOLMES_LISTENER"] = str(rendezvous)
    arguments = _arguments(config, folder, master_port)
    with open(folder / TORCHRUN_LOG, "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "holmes_runtime.node.lean_start", "holmes_runtime.node.torchrun", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            preexec_fn=die_with_parent,
            pass_fds=() if rendezvous is None else (rendezvous,),
        )


def _arguments(config: NodeConfig, folder: Path, master_port: int) -> list[str]:
    return [
        *("--nnodes", str(config.num_nodes), "--nproc-per-node", str(config.num_ranks)),
        *("--rdzv-backend", "holmes", "--rdzv-endpoint", f"{config.master_address}:{master_port}"),
        *("--rdzv-conf", f"rank={config.node_rank}", "--rdzv-id", config.run_id),
        *("--max-restarts", "0", "--monitor-interval", "0.1"),
        *("--log-dir", str(folder / "logs"), "--redirects", "3"),
        *("-m", "holmes_runtime.node.lean_start", "holmes_runtime.train", str(folder / "run_config.json")),
    ]


def _environment(config: NodeConfig, folder: Path) -> dict[str, str]:
    """Ours, then the plan's and the user's, then secrets, then what torchrun and the ranks have to know."""
    environment = {**os.environ, **config.environment, "PYTHONUNBUFFERED": "1"}
    for name in config.secrets:
        environment[name] = (folder / f"secret-{name}").read_text(encoding="utf-8").rstrip("\n")
    environment["TMPDIR"] = _make_temporary_folder(folder)
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.parents[2] / "inductor"))
    environment["HOLMES_FAILURES_FILE"] = str(folder / FAILURES_FILE)
    environment["HOLMES_METRICS_DIR"] = str(folder)
    return environment


def _make_temporary_folder(folder: Path) -> str:
    """Where torch leaves temporary files; a link leads whoever cleans up to it. Short, as names of sockets must be."""
    temporary = tempfile.mkdtemp(prefix="holmes-")
    (folder / TEMPORARY_LINK).symlink_to(temporary)
    return temporary
