"""Two ranks of an unchanged script on one GPU under the hook, as if on two hosts: NCCL takes what the hook says.

NCCL_HOSTID makes NCCL take them for two hosts, which may share a GPU and talk over a network, here the loopback.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.on_gpus.machine import Device
from holmes_runtime.comm.nccl_log import parse_nccl_log
from holmes_runtime.config.node_config import TRAINER_VARIABLE
from holmes_runtime.config.rank_grid import NetName
from holmes_runtime.config.rank_metrics import GROUPS_FILE
from holmes_runtime.config.trainer_config import HOOK_FOLDER, SHARED, TrainerConfig, TrainerNetwork, TrainerRank

ROOT = Path(__file__).parents[2]
RANKS = 2
LIMIT_S = 120.0


class HookedRun(NamedTuple):
    """The ends of both ranks, the losses, NCCL's networks by its log, and the groups that rank 0 told of."""

    exit_codes: tuple[int, ...]
    losses: tuple[str, ...]
    networks: tuple[str, ...]
    groups: tuple[dict[str, object], ...]
    errors: str


def run_hooked(
    folder: Path, device: Device, net_name: NetName | None, hooked: bool = True, eager: bool = False
) -> HookedRun:
    """Run the script; its groups are between hosts, on a network that NCCL is told to reach by `net_name`."""
    folder.mkdir(parents=True)
    interface = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    ranks = tuple(TrainerRank(f"host-{rank}", 0, {SHARED: interface}) for rank in range(RANKS))
    config = TrainerConfig(("python",), "~/", (TrainerNetwork(SHARED, net_name),), ranks)
    (folder / "trainer.json").write_text(config.to_json(), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [_start(folder, device, rank, port, interface, hooked, eager) for rank in range(RANKS)]
    said = []
    for process in started:
        try:
            said.append(process.communicate(timeout=LIMIT_S))
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(process.communicate())
    logs = [parse_nccl_log(file.read_text(errors="replace")) for file in sorted(folder.glob("nccl-*.log"))]
    groups = folder / GROUPS_FILE.format(rank=0)
    lines = groups.read_text(encoding="utf-8").splitlines() if groups.exists() else []
    return HookedRun(
        tuple(process.returncode for process in started),
        tuple(re.findall(r"loss (\S+)", said[0][0])),
        tuple(sorted({log.network for log in logs if log.network is not None})),
        tuple(json.loads(line) for line in lines),
        "\n".join([*(errors[-1500:] for _, errors in said), *(warning for log in logs for warning in log.warnings)]),
    )


def _start(
    folder: Path, device: Device, rank: int, port: int, interface: str, hooked: bool, eager: bool
) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **{"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        **{"NCCL_HOSTID": f"host-{rank}", "NCCL_SOCKET_IFNAME": f"={interface}", "NCCL_DEBUG": "INFO"},
        **{"NCCL_DEBUG_FILE": str(folder / f"nccl-{rank}.log"), "GLOO_SOCKET_IFNAME": interface},
        **({"EAGER": "1"} if eager else {}),
    }
    if hooked:
        environment |= {TRAINER_VARIABLE: str(folder / "trainer.json"), "HOLMES_METRICS_DIR": str(folder)}
        paths = [str(ROOT / HOOK_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    script = str(Path(__file__).with_name("plain_script.py"))
    return subprocess.Popen(
        [sys.executable, script, device],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
