"""A published row as what `holmes plan` reads: the inventory of where it was measured, and a job with all it fixed.

`python -m benchmarks.published_steps.row_files V4 12 FOLDER` writes both of the twelfth row of a table into FOLDER, for
`holmes plan job.yaml` there. What the row's software does differently is the job's `engine`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from benchmarks.published_steps.measurements import Measurement, measurements
from holmes_core.records.access import Access
from holmes_core.records.devices import Gpu, Netdev, Nic
from holmes_core.records.inventory import Cluster, Host, Inventory, Network, NetworkPort
from holmes_core.records.job import EngineName, Job
from holmes_core.records.record_file import write_signed
from holmes_runtime.config.model_shape import ModelShape
from planner.cost.gpu_speeds import DEEPSPEED_FACTOR


@dataclass(frozen=True)
class Site:
    """The machine of a table, in one cluster on one fabric: GPUs of a host, its NICs together, and the engine.

    `nvlinks` None: as many as the GPU's data sheet says. `compute_factor`: seconds of compute there over the planned
    ones, where two publications of one engine and GPU differ.
    """

    engine: EngineName
    gpu_name: str
    gpus_per_host: int
    memory_bytes: int
    host_bytes_per_s: float
    nvlinks: int | None = None
    compute_factor: float = 1.0


A100_BYTES, H100_BYTES = 81920 * 2**20, 81559 * 2**20  # nvidia-smi's totals for cards of 80 GB
SELENE = Site(
    "megatron-2021", "NVIDIA A100-SXM4-80GB", 8, A100_BYTES, 200e9
)  # eight HDR InfiniBand ports of 200 Gbit/s
SELENE_2020 = replace(SELENE, engine="megatron-2020", gpu_name="NVIDIA A100-SXM4-40GB", memory_bytes=40 * 10**9)
EOS = Site("megatron-2024", "NVIDIA H100 80GB HBM3", 8, H100_BYTES, 400e9)  # eight NDR ports of 400 Gbit/s
ALPS = Site("sailor", "NVIDIA GH200 120GB", 4, 96 * 10**9, 100e9, nvlinks=6)  # four Slingshot ports of 200 Gbit/s
SITES = {
    "V1": SELENE,
    "V2": SELENE,
    "V3": SELENE,
    "V4": Site(
        "megatron-deepspeed", "NVIDIA A100-SXM4-80GB", 8, A100_BYTES, 100e9, compute_factor=1 / DEEPSPEED_FACTOR
    ),
    "V5": ALPS,
    "V6": replace(EOS, compute_factor=1.19),
    "V7": SELENE_2020,
    "V8": EOS,
    "V9": EOS,
    "V10": Site("megatron-deepspeed", "NVIDIA A100-SXM4-80GB", 8, A100_BYTES, 50e9),  # four Omni-Path ports
    "V11": replace(EOS, engine="fsdp"),
    "V12": replace(SELENE, engine="fsdp"),
    "V13": replace(SELENE_2020, engine="fsdp"),
    "V14": Site("fsdp", "NVIDIA H100 96GB HBM2e", 8, 96 * 10**9, 400e9),
    "V15": replace(SELENE, engine="fsdp"),
    "V16": ALPS,
    "V17": replace(EOS, engine="megatron"),
}


def inventory_of(row: Measurement, knows_memory: bool = True) -> Inventory:
    """As many hosts as the row's GPUs fill; without `knows_memory` the planner takes everything to fit."""
    site = SITES[row.table]
    names = [f"n{number}" for number in range(1, -(-row.tp * row.pp * row.dp // site.gpus_per_host) + 1)]
    gpus = tuple(
        Gpu(
            index=index,
            name=site.gpu_name,
            uuid=f"GPU-{index}",
            memory_bytes=site.memory_bytes if knows_memory else None,
            nvlinks_up=site.nvlinks,
            pci_address=f"0000:{16 + index:02x}:00.0",
        )
        for index in range(site.gpus_per_host)
    )
    rate_gbps = site.host_bytes_per_s * 8e-9
    nic = Nic(
        device="mlx5_0",
        port=1,
        kind="InfiniBand",
        rate_gbps=rate_gbps,
        state="Active",
        phys_state="LinkUp",
        netdev="ib0",
        subnet_prefix=None,
        sm_lid=None,
        usable_by_nccl_ib=True,
        why="active",
    )
    hosts = tuple(
        Host(
            name=name,
            access=Access(),
            reachable=True,
            hostname=name,
            gpus=gpus,
            nics=(nic,),
            netdevs=(
                Netdev(name="ib0", up=True, mtu=4092, addresses=(f"{_address(number)}/16",), speed_bytes_per_s=None),
            ),
        )
        for number, name in enumerate(names)
    )
    ports = tuple(
        NetworkPort(
            host=name,
            netdev="ib0",
            address=_address(number),
            bandwidth_bytes_per_s=site.host_bytes_per_s,
            hcas=("mlx5_0:1",),
            rdma_bandwidth_bytes_per_s=site.host_bytes_per_s,
        )
        for number, name in enumerate(names)
    )
    fabric = Network(name="a", kind="InfiniBand", subnet="10.0.0.0/16", ports=ports)
    cluster = Cluster(name="a", hosts=tuple(names), fabric=fabric)
    return Inventory(hosts=hosts, clusters=(cluster,), shared=None, findings=())


def _address(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}"


def job_of(row: Measurement) -> Job:
    """Everything as the row has it; a micro-batch size that is not published is left to the planner."""
    return Job.model_validate(job_data(row))


def job_data(row: Measurement) -> dict[str, object]:
    """What job.yaml says of the row."""
    site = SITES[row.table]
    parallel = {
        "tp": row.tp,
        "pp": row.pp,
        "dp": row.dp,
        "schedule": "interleaved" if row.chunks > 1 else "1f1b",
        "chunks": row.chunks,
        "recompute": row.recompute,
        "layers": cut(row),
        "zero": row.zero,
        **({"ep": row.ep} if row.ep > 1 else {}),
        **({"micro_batch_size": row.micro_batch_size} if row.micro_batch_size is not None else {}),
    }
    return {
        "model": TypeAdapter(ModelShape).dump_python(row.model, exclude_defaults=True),
        "data": {"path": "/data"},
        "steps": 1,
        "global_batch_size": row.global_batch_size,
        "engine": site.engine,
        "precision": "fp32" if row.gpu == "GH200" else "bf16",
        "compile": row.compiles,
        **({"compute": {"calibration": _calibration(site.compute_factor)}} if site.compute_factor != 1 else {}),
        "parallel": parallel,
    }


def _calibration(compute_factor: float) -> dict[str, object]:
    """The factors that `--calibrate` would have found there."""
    return {"run": "published", "compute_factor": compute_factor, "network_efficiency": 1.0, "memory_margin": 0.0}


def cut(row: Measurement) -> list[int]:
    """Layers of each stage: as published, else even, the remainder on the first ones."""
    if row.layers:
        return list(row.layers)
    stages = row.pp * row.chunks
    share, rest = divmod(row.model.num_layers, stages)
    return [share + (stage < rest) for stage in range(stages)]


def write_row(row: Measurement, folder: Path) -> None:
    """Writes the inventory and the job of a row into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_signed(folder / "inventory.json", inventory_of(row))
    (folder / "job.yaml").write_text(yaml.safe_dump(job_data(row)), encoding="utf-8")


def main() -> None:
    """Write the files of one row."""
    table, number, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    row = [row for row in measurements() if row.table == table][number - 1]
    write_row(row, folder)
    print(f"{row.name}: published {row.step_s:.3f} s a step; now: cd {folder} && holmes plan job.yaml")


if __name__ == "__main__":
    main()
