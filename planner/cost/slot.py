"""One training slot of a host in the cost model: its speed, and the path inside its tensor group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from holmes_core.errors import HolmesError
from holmes_core.records.compute import Overheads
from holmes_core.records.devices import Gpu
from holmes_core.records.inventory import Host
from holmes_core.records.job import Job
from holmes_runtime.config.codec import Device
from holmes_runtime.config.model_shape import ModelShape, expert_parameters
from planner.cost.collectives import (
    PassTimes,
    Path,
    Peers,
    context_parallel_s,
    expert_exchange_part,
    expert_parallel_s,
    tensor_parallel_s,
)
from planner.cost.compute_time import NO_TIME, attention_core_s, head_s, layer_s, offloaded_update_s, optimizer_s
from planner.cost.counts import Execution
from planner.cost.engines import ENGINES, engine_of
from planner.cost.fp8 import check_fp8_gpus
from planner.cost.gpu_speeds import FP8_PRODUCTS_SPEED_UP, Speed, constant_speed, gpu_speed
from planner.cost.trained import backward_share, layers_of

NVLINK_BYTES_PER_S = 25e9  # one link, one direction, NVLink 2 to 4: NVIDIA's V100, A100 and H100 data sheets
NVLINK5_BYTES_PER_S = 50e9  # B200 and later: NVIDIA's GB200 NVL72 data sheet, 1.8 TB/s per GPU in both directions
NVLINK5_CHIPS = ("B200", "B300")
# The same data sheets, and NVIDIA's H20: 900 GB/s both ways.
NVLINKS_OF_SXM = {"V100": 6, "A100": 12, "A800": 8, "H100": 18, "H800": 8, "H200": 18, "H20": 18}
NVLINKS5 = 18  # per chip in NVLINK5_CHIPS: the same data sheet
# nvidia-smi calls an H100 on an SXM board "H100 80GB HBM3", others "PCIe" or "NVL". The 96 GB HBM2e version is on an
# SXM board too: torchtitan, benchmarks/llama3_h100_202412_torchtitan.md.
SXM_NAMES = ("SXM", "HBM3", "HBM2e")
SAY_THEIR_LINKS = ("SXM", "HBM3", "PCIe", "PCIE")
WITH_NVLINK = (*NVLINKS_OF_SXM, *NVLINK5_CHIPS)
PCIE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9}  # one lane, one direction: PCI Express base specifications
PCIE_UNKNOWN = (3, 16)  # generation and lanes assumed if nvidia-smi did not report them
INSIDE_EFFICIENCY = ENGINES["holmes"].inside_share  # of these rates; also for copies and NVLink between hosts
# Defaults for job.yaml. CPU: one thread, measured on the model of `make demo` with torch 2.13 on 2026-11-22: an action
# by `holmes calibrate`, the update as CPU time inside a step, 10 ms for 1.8 M parameters and dp 2.
# GPU: assumptions, not measured: Python's work for an action overlaps the kernels of the previous action, and
# the update runs at the rate of a GPU's memory.
OVERHEADS: dict[Device, Overheads] = {
    "cpu": Overheads(action_s=8e-4, update_bytes_per_s=3e9),
    "cuda": Overheads(action_s=0.0, update_bytes_per_s=1e12),
}
# AdamW on CPUs, all ranks of a host together. Assumption: a fourth of the 410 GB/s of two sockets with eight channels
# of DDR4-3200 each (data sheets of Intel's and AMD's servers of 2021).
HOST_UPDATE_BYTES_PER_S = 100e9
LOOPBACK_BYTES_PER_S = 2e9  # assumption: Gloo between processes of one host


class HostShare(NamedTuple):
    """One GPU's share of its host: PCI Express in one direction, and host memory while all GPUs update at once."""

    copy_bytes_per_s: float
    update_bytes_per_s: float


class Cores(NamedTuple):
    """The cores of a machine: the number of slots that share them, and the threads per core that each slot adds."""

    num_slots: int
    threads_per_core: float


@dataclass(frozen=True)
class Slot:
    """A training slot. `speed` is None for emulated compute, whose seconds are multiplied by `slowdown`.

    `action_s` is the overhead of a forward or backward in a pipeline. `update_bytes_per_s` is the rate of the update if
    `speed` has none. All hold while `threads_per_core` threads share each core. `cores` is None if there are enough for
    all slots. `host` is None on CPUs, where optimizer states are in host memory anyway.
    """

    speed: Speed | None
    inside: Path
    slowdown: float = 1.0
    action_s: float = 0.0
    update_bytes_per_s: float | None = None
    threads_per_core: float = 1.0
    host: HostShare | None = None
    cores: Cores | None = None
    peers: Peers | None = None  # if ranks share experts or sequences

    def among(self, num_ranks: int) -> Slot:
        """Return the slot while `num_ranks` ranks compute, this one included, as many on its machine as fit there.

        The slot must have its cores to itself.
        """
        assert self.threads_per_core == 1
        if self.cores is None:
            return self
        threads = max(1.0, min(num_ranks, self.cores.num_slots) * self.cores.threads_per_core)
        return replace(
            self,
            speed=self.speed and self.speed.slowed(threads),
            action_s=self.action_s * threads,
            update_bytes_per_s=self.update_bytes_per_s and self.update_bytes_per_s / threads,
            threads_per_core=threads,
        )


def read_slot(host: Host, cluster: str, job: Job, cores: Cores | None = None) -> Slot:
    """Return the slowest slot of `host` in `cluster` with its cores to itself.

    Raises:
        HolmesError: Its speed is not known.
    """
    emulate = job.compute.emulate
    slowdown = emulate.slowdown.get(cluster, 1.0) if emulate is not None else 1.0
    factor = job.compute.calibration.compute_factor if job.compute.calibration is not None else 1.0
    overheads = job.compute.overheads or OVERHEADS[job.device]
    return Slot(
        None if emulate is not None else _speed(host, job).slowed(factor),
        inside_path(host, job),
        slowdown,
        overheads.action_s,
        overheads.update_bytes_per_s,
        host=_host_rates(host) if job.device == "cuda" and host.gpus else None,
        cores=cores,
    )


def inside_path(host: Host, job: Job) -> Path:
    """Return the path between the GPUs of `host`: NVLink or else PCI Express; for CPU slots, the loopback interface."""
    if job.device == "cpu":
        return Path(LOOPBACK_BYTES_PER_S)
    kinds = {(gpu.name, gpu.nvlinks_up, gpu.pci_gen, gpu.pci_width) for gpu in host.gpus}
    rates = [_nvlink_bytes_per_s(name, links) or _pcie_bytes_per_s(*pci) for name, links, *pci in kinds]
    engine = engine_of(job)
    return Path(engine.inside_share * min(rates, default=_pcie_bytes_per_s(None, None)), engine.inside_latency_s)


def assumed_links(gpu: Gpu) -> str | None:
    """Return the links that `inside_path` assumes for a GPU that may have NVLink; None if they are known."""
    name = gpu.name or ""
    if gpu.nvlinks_up is not None or any(word in name for word in SAY_THEIR_LINKS):
        return None
    if not any(chip in name for chip in WITH_NVLINK):
        return None
    rate = _nvlink_bytes_per_s(name, None)
    return "PCI Express" if rate is None else f"NVLink at {rate / 1e9:.0f} GB/s a direction"


def named_board(product: str) -> str:
    """Return a GPU name as CUDA reports it for that product, on an SXM board if there is one."""
    is_sxm = product in NVLINKS_OF_SXM or product == "A100 40GB"
    return f"NVIDIA {product}{' SXM' * is_sxm}"


def usual_nvlinks(product: str) -> int:
    """Return the number of NVLinks per GPU on the board that the product is mostly sold on; 0 if it has none.

    Bridges between two cards do not count.
    """
    if any(chip in product for chip in NVLINK5_CHIPS):
        return NVLINKS5
    return NVLINKS_OF_SXM.get(product.removesuffix(" 40GB").removesuffix(" HBM2e"), 0)


def nvlink_bytes_per_s(host: Host) -> float | None:
    """Return the bytes/s of collectives on the slowest GPU's NVLinks, in one direction; None if any GPU has none.

    This is the same share of the links' rate as inside a host. For NVLink between hosts it was not measured.
    """
    rates = [_nvlink_bytes_per_s(gpu.name, gpu.nvlinks_up) for gpu in host.gpus]
    known = [rate for rate in rates if rate is not None]
    return INSIDE_EFFICIENCY * min(known) if known and len(known) == len(rates) else None


def layer_parts_s(job: Job, execution: Execution, slot: Slot) -> tuple[PassTimes, PassTimes]:
    """Return the seconds of one layer and micro-batch on one shard: its compute, and its collectives for tp, ep and cp.

    Frozen first layers have no backward and lower the mean. Emulated seconds are already the mean.
    """
    emulate = job.compute.emulate
    if emulate is not None:
        forward_s, backward_s = emulate.forward_s_per_layer, emulate.backward_s_per_layer
        factor = slot.slowdown * execution.micro_batch_size
        return PassTimes(forward_s * factor, backward_s * factor), NO_TIME
    assert slot.speed is not None
    alone, exposed = tensor_parallel_s(job.model, execution, slot.inside), engine_of(job).exposed_tp
    collectives = PassTimes(alone.forward_s * exposed, alone.backward_s * exposed)
    if execution.ep > 1:
        collectives += expert_parallel_s(job.model, execution, slot.inside, slot.peers)
    speed, share = slot.speed.slowed(execution.slowdown), backward_share(job.model, job.trainable)
    if execution.cp > 1:
        core_s = attention_core_s(job.model, execution, speed)
        collectives += context_parallel_s(job.model, execution, slot.inside, slot.peers, core_s)
    compute = layer_s(job.model, execution, speed, collectives)
    return compute.with_backwards(share), collectives.with_backwards(share)


def dense_parts_s(job: Job, execution: Execution, slot: Slot) -> tuple[PassTimes, PassTimes]:
    """Return `layer_parts_s` for a layer without experts."""
    return layer_parts_s(job.model_copy(update={"model": job.model.dense}), execution.dense, slot)


def dense_layer_s(job: Job, execution: Execution, slot: Slot) -> PassTimes:
    """Return the seconds of one layer without experts, for one micro-batch on one shard."""
    layer, sums = dense_parts_s(job, execution, slot)
    return layer + sums


def first_dense(job: Job, pp: int) -> int:
    """Return the number of layers without experts that the search assumes on the first stage: all, or none.

    It is none if the first stage of an even or fixed cut has no room for all of them. Then every layer counts as the
    faster kind, so that bounds stay valid.
    """
    fixed, number = job.parallel, job.model.first_dense_layers
    held = job.model.num_layers // (pp * (fixed.chunks or 1)) if fixed.layers is None else fixed.layers[0]
    return number if number <= held else 0


def prices_all_cuts(job: Job, pp: int) -> bool:
    """Return True if the search prices every cut of the job's layers exactly: all are alike, or the cut is given.

    Otherwise the best plan with `pp` stages may not be optimal: a cut that was not priced may be faster.
    """
    number, fixed = job.model.first_dense_layers, job.parallel
    return not number or (first_dense(job, pp) == number and (fixed.layers is not None or fixed.pp == 1))


def exchanged_parameters(model: ModelShape, execution: Execution, slot: Slot) -> int:
    """Return a layer's trained parameters on one shard, each weighted by its part in the exchange of gradients."""
    size = layers_of(model, execution.trainable, 1, execution.tp, execution.ep).trained
    if model.experts is None or execution.trainable is not None:
        return size
    return size - round(expert_parameters(model, execution.ep) * (1 - expert_exchange_part(execution, slot.peers)))


def head_parts_s(job: Job, execution: Execution, slot: Slot) -> PassTimes:
    """Return the seconds of the head and the loss for one micro-batch on one shard; 0 for an emulated head."""
    return NO_TIME if slot.speed is None else head_s(job.model, execution, slot.speed.slowed(execution.slowdown))


def update_s(parameters: int, execution: Execution, slot: Slot) -> float:
    """Return the seconds of a step's update of a rank's parameters. A rehearsal runs most of it too."""
    if execution.optimizer_offload and slot.host is not None:
        return offloaded_update_s(parameters, execution, *slot.host)
    return optimizer_s(parameters, execution, slot.speed or constant_speed(1.0, slot.update_bytes_per_s))


def _host_rates(host: Host) -> HostShare:
    copies = min(_pcie_bytes_per_s(gpu.pci_gen, gpu.pci_width) for gpu in host.gpus)
    return HostShare(INSIDE_EFFICIENCY * copies, HOST_UPDATE_BYTES_PER_S / len(host.gpus))


def _speed(host: Host, job: Job) -> Speed:
    """Return the speed of the slowest slot: from job.yaml, else from published runs or the data sheet of the GPU."""
    check_fp8_gpus(host, job)
    if job.compute.flops_per_s is not None:
        overheads = job.compute.overheads or OVERHEADS[job.device]
        return constant_speed(job.compute.flops_per_s, overheads.update_bytes_per_s)
    if job.device == "cpu":
        raise _unknown_speed(host.name, "CPU slots")
    speeds = []
    for gpu in {gpu.name: gpu for gpu in reversed(host.gpus)}.values():  # the first of each name
        speed = gpu_speed(gpu.name, job.value_type, job.engine) if gpu.name else None
        if speed is None:
            what = f"GPU {gpu.index} ({gpu.name or 'name not known'}) in {job.value_type}"
            has_fp16 = gpu.name is not None and gpu_speed(gpu.name, "fp16") is not None
            raise _unknown_speed(host.name, what, "set `precision: fp16`, or " if has_fp16 else "")
        if job.fp8 and job.compiles:  # FP8 was not measured on eager layers
            speed = replace(speed, layer_speed_up=FP8_PRODUCTS_SPEED_UP)
        speeds.append(speed)
    return min(speeds, key=lambda speed: speed.matrix_flops_per_s)


def _nvlink_bytes_per_s(name: str | None, links: int | None) -> float | None:
    seen = name or ""
    if links is None and any(word in seen for word in SXM_NAMES):
        links = next((count for chip, count in NVLINKS_OF_SXM.items() if chip in seen), None)
    one = NVLINK5_BYTES_PER_S if any(chip in seen for chip in NVLINK5_CHIPS) else NVLINK_BYTES_PER_S
    return links * one if links else None


def _pcie_bytes_per_s(generation: int | None, lanes: int | None) -> float:
    known = generation if generation in PCIE_BYTES_PER_S else PCIE_UNKNOWN[0]
    return PCIE_BYTES_PER_S[known] * (lanes or PCIE_UNKNOWN[1])


def _unknown_speed(host: str, what: str, before: str = "") -> HolmesError:
    return HolmesError(
        f"host {host}: the speed of its {what} is not known",
        f"{before}set compute.flops_per_s in job.yaml; on a probed host `holmes calibrate --host {host}` measures it",
    )
