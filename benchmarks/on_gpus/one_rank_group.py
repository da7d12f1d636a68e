"""`python -m benchmarks.on_gpus.one_rank_group --device cuda`: a communicator of one rank, under all that Holmes sets.

Every variable that a plan may set for NCCL and torch, with a value as a plan would give it, and the fields of the
communicator's own configuration. Prints one line of JSON: which variables NCCL's log names, and its warnings.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from holmes_core.node_settings import CONSTANT
from holmes_runtime.comm.group_opening import Calls, nccl_fields
from holmes_runtime.comm.nccl_log import parse_nccl_log
from holmes_runtime.config.rank_grid import Group

EDGE = Group("edge", "pp_forward", (0, 1), ("lo", "lo"), "Socket", 1, "none")
LEFT_OUT = {
    "NCCL_NET_PLUGIN": "a library that this machine may not have",
    "NCCL_IB_HCA": "ports that this machine may not have",
}


def settings(interface: str = "lo") -> dict[str, str]:
    """Each variable that a plan may set for NCCL or torch on GPUs, but those of `LEFT_OUT`, with a value of a plan."""
    return {setting.name: setting.value for setting in CONSTANT} | {
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_SOCKET_NTHREADS": "4",
        "NCCL_NSOCKS_PERTHREAD": "4",
        "NCCL_CROSS_NIC": "0",
        "NCCL_IB_QPS_PER_CONNECTION": "2",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_IB_PKEY": "1",
        "NCCL_IB_ADDR_FAMILY": "AF_INET6",
    }


def open_group(device: torch.device, folder: Path, calls: Calls) -> float:
    """What the sum over the group of a tensor of ones is, 1.0 where it works; `folder` is for what ranks meet by."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    values = torch.ones(1024, device=device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options = calls.nccl_options()
        for field, value in nccl_fields(EDGE).items():
            setattr(options.config, field, value)
        group = calls.new_group([0], backend="nccl", pg_options=options, device_id=device)
    else:
        group = calls.new_group([0], backend="gloo")
    dist.all_reduce(values, group=group)
    mean = values.mean().item()
    dist.destroy_process_group()
    return mean


def main() -> None:
    """Sets everything, opens the group and prints what NCCL said."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "nccl.log"
        logs = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET", "NCCL_DEBUG_FILE": str(log)}
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        os.environ.update(settings(loopback) | logs)
        mean = open_group(torch.device(given.device, 0), Path(name), Calls())
        text = log.read_text(errors="replace") if log.exists() else ""
    named = sorted(set(re.findall(r"(NCCL_\w+) set by environment", text)))
    print(json.dumps({"mean": mean, "named": named, "warnings": parse_nccl_log(text).warnings}))


if __name__ == "__main__":
    main()
