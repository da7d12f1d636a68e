"""A published row as what `holmes plan` reads: the sketch of where it was measured, and a job with all it fixed.

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
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import EngineName, Job
from holmes_core.records.record_file import write_signed
from holmes_runtime.config.model_shape import ModelShape
from planner.cost.gpu_speeds import DEEPSPEED_FACTOR
from planner.sketch.sketch import Sketch
from planner.sketch.sketched_inventory import sketched_inventory


@dataclass(frozen=True)
class Site:
    """The machine of a table, in one cluster on one fabric, as the cluster of a sketch; and the engine.

    `compute_factor`: seconds of compute there over the planned ones, where two publications of one engine and GPU
    differ.
    """

    engine: EngineName
    gpu: str
    fabric: str
    gpus_per_host: int = 8
    nvlinks: int | None = None
    compute_factor: float = 1.0


SELENE = Site("megatron-2021", "A100-80", "IB 8x200")
SELENE_2020 = replace(SELENE, engine="megatron-2020", gpu="A100-40")
EOS = Site("megatron-2024", "H100", "IB 8x400")
ALPS = Site("sailor", "GH200", "IB 4x200", gpus_per_host=4, nvlinks=6)  # its ports are Slingshot's
SITES = {
    "V1": SELENE,
    "V2": SELENE,
    "V3": SELENE,
    "V4": Site("megatron-deepspeed", "A100-80", "IB 4x200", compute_factor=1 / DEEPSPEED_FACTOR),
    "V5": ALPS,
    "V6": replace(EOS, compute_factor=1.19),
    "V7": SELENE_2020,
    "V8": EOS,
    "V9": EOS,
    "V10": Site("megatron-deepspeed", "A100-80", "IB 4x100"),  # four Omni-Path ports
    "V11": replace(EOS, engine="fsdp"),
    "V12": replace(SELENE, engine="fsdp"),
    "V13": replace(SELENE_2020, engine="fsdp"),
    "V14": Site("fsdp", "H100 HBM2e", "IB 8x400"),
    "V15": replace(SELENE, engine="fsdp"),
    "V16": ALPS,
    "V17": replace(EOS, engine="megatron"),
    "V18": replace(EOS, engine="megatron", gpu="H800"),
    "V19": replace(EOS, engine="megatron"),
}


def inventory_of(row: Measurement, knows_memory: bool = True) -> Inventory:
    """As many hosts as the row's GPUs fill; without `knows_memory` the planner takes everything to fit."""
    site = SITES[row.table]
    cluster = {
        "name": "n",
        "hosts": -(-row.tp * row.pp * row.dp * row.cp // site.gpus_per_host),
        "gpus_per_host": site.gpus_per_host,
        "gpu": site.gpu,
        "nvlinks": site.nvlinks,
        "fabric": site.fabric,
    }
    inventory = sketched_inventory(Sketch.model_validate({"clusters": [cluster]}))
    return inventory if knows_memory else _without_memory(inventory)


def _without_memory(inventory: Inventory) -> Inventory:
    gpus = tuple(gpu.model_copy(update={"memory_bytes": None}) for gpu in inventory.hosts[0].gpus)
    hosts = tuple(host.model_copy(update={"gpus": gpus}) for host in inventory.hosts)
    return inventory.model_copy(update={"hosts": hosts})


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
        **({"etp": row.etp} if row.etp > 1 else {}),
        **({"cp": row.cp} if row.cp > 1 else {}),
        **({"micro_batch_size": row.micro_batch_size} if row.micro_batch_size is not None else {}),
    }
    return {
        "model": TypeAdapter(ModelShape).dump_python(row.model, exclude_defaults=True),
        "steps": 1,
        "global_batch_size": row.global_batch_size,
        **_software(row, site),
        "precision": "fp32" if row.gpu == "GH200" else "bf16",
        **({"compute": {"calibration": _calibration(site.compute_factor)}} if site.compute_factor != 1 else {}),
        "parallel": parallel,
    }


def _software(row: Measurement, site: Site) -> dict[str, object]:
    """The engine, and what its command says of how tokens are sent to experts."""
    if not row.sends_once:
        return {"data": {"path": "/data"}, "engine": site.engine, "compile": row.compiles}
    command = ["pretrain_gpt.py", "--moe-token-dispatcher-type", "flex"]
    return {"trainer": {"engine": site.engine, "command": command}}


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
