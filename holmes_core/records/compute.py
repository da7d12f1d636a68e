"""Speed of a job's training slots: stated, measured or emulated, and the factors that correct it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from holmes_core.records.record import Record
from holmes_runtime.config.field_limits import AboveZero, NotNegative
from holmes_runtime.config.run_settings import EmulationSettings


class Calibration(Record):
    """Factors that correct the planner's cost model, as `holmes plan --calibrate` found them in a run."""

    run: str
    """Folder of that run. Example: runs/20261125-080000-abcd"""
    compute_factor: AboveZero
    """Measured seconds of compute over the seconds that the cost model predicts. Example: 1.1"""
    network_efficiency: Annotated[float, Field(gt=0, le=1)]
    """Fraction of the inventory's bandwidths that traffic gets. Example: 0.9"""
    memory_margin: NotNegative | None = None
    """Memory that a GPU takes beyond the planner's count, as a fraction of that count; not set: the run did not measure
    it. Example: 0.05"""


class Overheads(Record):
    """Costs of a step for a slot in addition to FLOPs and bytes on links, as `holmes calibrate` measures them."""

    action_s: NotNegative
    """Seconds of each forward and backward of a stage beyond its compute: the schedule and its messages.
    Example: 0.0002"""
    update_bytes_per_s: AboveZero
    """Rate of reading and writing memory when a step updates the slot's parameters. Example: 8.0e+9"""
    split_factor: Annotated[float, Field(ge=1)] | None = None
    """Seconds of a backward in the two halves of zero-bubble over its seconds in one piece; not set: the planner's own
    constant. Example: 1.1"""


class Compute(Record):
    """Speed of one training slot: a GPU, or a CPU process that has its threads_per_slot cores to itself."""

    flops_per_s: AboveZero | None = None
    """FLOP/s of a slot, as `holmes calibrate` measures them; not set: the known speed of the GPU, or an
    assumed speed of a CPU. Example: 2.0e+10"""
    overheads: Overheads | None = None
    emulate: EmulationSettings | None = None
    calibration: Calibration | None = None
