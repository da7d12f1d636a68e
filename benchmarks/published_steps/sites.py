"""Where and with which software the published steps were measured, and the constants fitted to each site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.published_steps.measurements import Measurement
from planner.cost.collectives import Path
from planner.cost.gpu_speeds import A100, GH200_FP32, H100, Speed


@dataclass(frozen=True)
class Site:
    """Where and with which software rows were measured.

    `inside` joins the GPUs of a host; `host_bytes_per_s` is what all NICs of a host carry in one direction.
    `edge_efficiency` and `sync_efficiency` are what messages and collectives reach of it. Gradients travel in
    `gradient_bytes`, and weights are gathered in `gather_bytes` (0: all-reduced instead, `overlap` or not). Matrix
    products hide all but `exposed_tp` of the tensor parallel collectives. Memory: what the framework keeps for itself,
    bytes for each parameter beside weight, gradient and optimizer states, and activations over the runtime's.
    """

    speed: Speed
    gpus_per_host: int
    memory_bytes: int
    inside: Path
    host_bytes_per_s: float
    edge_efficiency: float
    sync_efficiency: float
    value_bytes: int
    gradient_bytes: int
    gather_bytes: int
    overlap: bool
    sequence_parallel: Callable[[Measurement], bool]
    fused_attention: bool
    sharded_states: bool
    exposed_tp: float = 1.0
    reserve_bytes: float = 0.0
    extra_state_bytes: float = 0.0
    activation_factor: float = 1.0


SELENE = Site(
    speed=A100,
    gpus_per_host=8,
    memory_bytes=80 * 10**9,
    inside=Path(240e9, 3.4e-6),
    host_bytes_per_s=200e9,  # eight HDR InfiniBand ports of 200 Gbit/s
    edge_efficiency=1.0,
    sync_efficiency=0.88,
    value_bytes=2,
    gradient_bytes=4,
    gather_bytes=0,
    overlap=False,
    sequence_parallel=lambda row: row.recompute == "selective",
    fused_attention=False,
    sharded_states=False,
)
VTRAIN = replace(
    SELENE,
    host_bytes_per_s=100e9,
    edge_efficiency=0.186,
    sync_efficiency=0.767,
    gradient_bytes=2,
    sequence_parallel=lambda _: False,
)
EOS = replace(
    SELENE,
    speed=H100,
    inside=Path(324e9, 3.4e-6),
    host_bytes_per_s=400e9,  # eight NDR InfiniBand ports of 400 Gbit/s
    sync_efficiency=0.62,
    gather_bytes=2,
    overlap=True,
    sequence_parallel=lambda _: True,
    fused_attention=True,
    sharded_states=True,
    exposed_tp=0.22,
)
ALPS = replace(
    SELENE,
    speed=GH200_FP32,
    gpus_per_host=4,
    memory_bytes=96 * 10**9,
    inside=Path(100e9, 10.6e-6),
    host_bytes_per_s=100e9,  # four Slingshot ports of 200 Gbit/s
    edge_efficiency=0.757,
    sync_efficiency=0.703,
    value_bytes=4,
    fused_attention=True,
    sequence_parallel=lambda _: False,
    reserve_bytes=4.9e9,
    extra_state_bytes=4.0,
    activation_factor=1.74,
)
SITES = {"V7": SELENE, "V1": SELENE, "V2": SELENE, "V3": SELENE, "V4": VTRAIN, "V5": ALPS, "V6": EOS}
