"""Job: what to train, and what the user wants fixed. All else is the planner's."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from holmes_core.record import FileRecord, Record

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


class Model(Record):
    """A GPT: its shape in the field's words. The output head is not tied to the embedding."""

    num_layers: Positive
    hidden_size: Positive
    num_heads: Positive
    seq_length: Positive
    vocab_size: Positive = 256

    @model_validator(mode="after")
    def _heads_divide_hidden_size(self) -> Model:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        return self


class Data(Record):
    """Text to train on, byte level, at the same path on every host: a file, or a folder and a file pattern."""

    path: str
    pattern: str = "*"


class OptimizerSettings(Record):
    """AdamW."""

    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    grad_clip: Annotated[float, Field(gt=0)] | None = 1.0


class Parallel(Record):
    """What the user fixes; None leaves it to the planner. `layers` are the layers of each stage in order."""

    tp: Positive | None = None
    pp: Positive | None = None
    dp: Positive | None = None
    micro_batch_size: Positive | None = None
    layers: tuple[Positive, ...] | None = None


class Emulation(Record):
    """Rehearse on the real network without the GPUs: a layer's compute is a sleep of this many seconds."""

    forward_s_per_layer: Seconds
    backward_s_per_layer: Seconds


class Compute(Record):
    """Speed of one training slot (a GPU, or a CPU process): achieved FLOP/s, measured; or emulated seconds."""

    flops_per_s: Annotated[float, Field(gt=0)] | None = None
    emulate: Emulation | None = None


class Job(FileRecord):
    """job.yaml. `device: cpu` gives every host `slots_per_host` training slots whatever GPUs it has."""

    KIND: ClassVar[str] = "job"
    RENEW: ClassVar[str] = "your editor"

    schema_version: Literal[1] = 1
    model: Model
    data: Data
    steps: Positive
    global_batch_size: Positive
    seed: int = 0
    optimizer: OptimizerSettings = OptimizerSettings()
    device: Literal["cuda", "cpu"] = "cuda"
    slots_per_host: Positive = 1
    threads_per_slot: Positive = 1
    compute: Compute = Compute()
    parallel: Parallel = Parallel()
    master_port: Annotated[int, Field(ge=1024, le=65535)] = 29500
    timeout_s: Annotated[float, Field(gt=0)] = 600.0

    @model_validator(mode="after")
    def _fixed_values_fit_together(self) -> Job:
        fixed = self.parallel
        if fixed.layers is not None:
            total, wanted = sum(fixed.layers), self.model.num_layers
            if total != wanted:
                raise ValueError(f"parallel.layers add up to {total}, num_layers is {wanted}")
            if fixed.pp is not None and len(fixed.layers) != fixed.pp:
                raise ValueError(f"parallel.layers has {len(fixed.layers)} stages, parallel.pp is {fixed.pp}")
        samples, batch = (fixed.dp or 1) * (fixed.micro_batch_size or 1), self.global_batch_size
        if batch % samples:
            raise ValueError(f"global_batch_size {batch} is not a multiple of dp x micro_batch_size = {samples}")
        return self
