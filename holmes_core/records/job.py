"""Job: what to train, and what the user wants fixed. All else is the planner's."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from holmes_core.records.access import OneLine
from holmes_core.records.presets import PRESETS
from holmes_core.records.record import FileRecord, Record

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]
Precision = Literal["fp32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]
Device = Literal["cuda", "cpu"]
Codec = Literal["none", "bf16", "int8", "int4"]
ScheduleName = Literal["gpipe", "1f1b", "eager", "interleaved", "zero-bubble"]


class Model(Record):
    """A decoder of one family: its shape in the field's words. The output head is not tied to the embedding."""

    preset: str | None = None  # a published shape (presets.py), which other keys override
    family: Literal["gpt", "llama"] = "gpt"
    """gpt: learned positions, LayerNorm, GELU, biases. llama: rotary positions, RMSNorm, SwiGLU, grouped-query
    attention, no biases."""
    num_layers: Positive
    hidden_size: Positive
    num_heads: Positive
    num_kv_heads: Positive | None = None  # None for as many as num_heads
    ffn_hidden_size: Positive | None = None  # None for 4 hidden_size
    seq_length: Positive  # tokens
    vocab_size: Positive = 256
    rope_theta: Annotated[float, Field(gt=0)] = 10000.0
    factory: Annotated[str, Field(pattern=r"^(/[^:]*|[^/:]+)\.py:[A-Za-z_]\w*$")] | None = None
    """FILE.py:FUNCTION, a model of the user's own, FILE being beside job.yaml or, if absolute, on every host. The shape
    must still describe it, since the planner prices the shape."""

    @property
    def kv_heads(self) -> int:
        """Key and value heads: as many as query heads unless given."""
        return self.num_kv_heads or self.num_heads

    @property
    def kv_size(self) -> int:
        """Width of the keys, and of the values, of all their heads."""
        return self.hidden_size // self.num_heads * self.kv_heads

    @property
    def ffn_size(self) -> int:
        """Width of the feed-forward network: 4 h unless given."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @model_validator(mode="before")
    @classmethod
    def _preset_fills_in(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("preset") is None:
            return data
        name = data["preset"]
        if name not in PRESETS:
            raise ValueError(f"preset {name!r} is not known; there are {', '.join(PRESETS)}")
        return {**PRESETS[name], **data}

    @model_validator(mode="after")
    def _heads_divide(self) -> Model:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.num_heads % self.kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.family == "llama" and (self.hidden_size // self.num_heads) % 2:
            raise ValueError(f"hidden_size / num_heads is {self.hidden_size // self.num_heads}: rotation needs it even")
        if self.family == "gpt" and self.kv_heads != self.num_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads}: a gpt has as many as num_heads {self.num_heads}")
        return self


class Data(Record):
    """Text or tokens to train on, at the same path on every host: a file, or a folder and a file pattern.

    Read as: .bin with its .idx beside it (Megatron tokens), .jsonl (the field "text"), else raw text.
    """

    path: str
    pattern: str = "*"  # of the files in a folder
    tokenizer: str | None = None  # a `tokenizers` JSON file; without one, text becomes bytes
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0  # the last part, kept for evaluation


class Evaluation(Record):
    """How often the loss on the validation split is computed, and on how much of it."""

    every_steps: Positive
    num_batches: Positive = 1  # global batches


class OptimizerSettings(Record):
    """AdamW."""

    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0  # at the last step
    warmup_steps: Annotated[int, Field(ge=0)] = 0  # over which the rate rises linearly
    decay: Literal["constant", "linear", "cosine"] = "constant"  # of the rate after that
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    grad_clip: Annotated[float, Field(gt=0)] | None = 1.0  # the greatest norm of a gradient


class Checkpointing(Record):
    """Where and how often to save. The last step is always saved."""

    path: str  # a folder that all hosts share
    every_steps: Positive
    keep_last: Positive = 2  # how many checkpoints to keep


class Parallel(Record):
    """What the user fixes; None leaves it to the planner."""

    tp: Positive | None = None
    pp: Positive | None = None
    dp: Positive | None = None
    micro_batch_size: Positive | None = None
    layers: tuple[Positive, ...] | None = None  # of each stage in order
    schedule: ScheduleName | None = None
    chunks: Positive | None = None  # stages that a pipeline rank holds, for the schedule "interleaved"
    recompute: Recompute | None = None


class Wire(Record):
    """What the user allows the planner to do to what crosses the network."""

    edges: Codec = "none"
    """The lossiest codec of activations and their gradients between stages: none (values as they are), bf16, int8 or
    int4 (blocks of integers with a scale, stochastically rounded). The plan uses it, or one before it in this list,
    where the time saved is worth it. Nothing makes up for what a codec loses of an activation later on (no error
    feedback): no sample comes twice."""


class Emulation(Record):
    """Rehearse on the real network without the GPUs: a layer's compute is a sleep of so many seconds a sample."""

    forward_s_per_layer: Seconds
    backward_s_per_layer: Seconds
    slowdown: dict[str, Annotated[float, Field(gt=0)]] = {}  # by cluster, how many times as long its hosts sleep


class Calibration(Record):
    """What a run measured against the planner's cost model, as `holmes plan --calibrate` found it."""

    run: str  # its folder
    compute_factor: Annotated[float, Field(gt=0)]  # by which compute takes longer than the model says
    network_efficiency: Annotated[float, Field(gt=0, le=1)]  # what traffic gets of the inventory's bandwidths


class Overheads(Record):
    """What a step costs a slot beside FLOPs and bytes on links, as `python -m holmes_runtime.calibrate` measures it."""

    action_s: Seconds
    """Of each forward and backward of a stage in a pipeline beside computing it: the schedule and its messages."""
    update_bytes_per_s: Annotated[float, Field(gt=0)]  # of memory, in what a step does to the slot's parameters


class Compute(Record):
    """Speed of one training slot: a GPU, or a CPU process that has its threads_per_slot cores to itself."""

    flops_per_s: Annotated[float, Field(gt=0)] | None = None  # achieved, measured
    overheads: Overheads | None = None  # None for the planner's own constants
    emulate: Emulation | None = None
    calibration: Calibration | None = None


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class LaunchSettings(Record):
    """What travels to the ranks besides the plan. Nothing of the launching shell does unless it is named here."""

    environment: dict[VariableName, OneLine | None] = {}
    """Variables; one without a value takes it from the shell that runs `holmes launch`."""
    secrets: dict[VariableName, str] = {}
    """Variables whose value is the text of this file on the controller. It goes into a private file on each node,
    never onto a command line or into the dry run."""

    @model_validator(mode="after")
    def _leaves_the_network_alone(self) -> LaunchSettings:
        for name in (*self.environment, *self.secrets):
            if name == "NCCL_NET":
                raise ValueError("NCCL_NET would override the network of every process group of the plan")
            if name in self.environment and name in self.secrets:
                raise ValueError(f"{name} is both in environment and in secrets")
        return self


class Job(FileRecord):
    """job.yaml: what to train, on what, how long, and what the user wants fixed."""

    KIND: ClassVar[str] = "job"
    RENEW: ClassVar[str] = "your editor"

    schema_version: Literal[1] = 1
    model: Model
    data: Data
    steps: Positive
    global_batch_size: Positive  # sequences a step
    seed: int = 0
    precision: Precision | None = None
    """None for bf16 on GPUs and fp32 on CPUs; masters, moments and gradient sums are always fp32."""
    compile: bool = False  # by torch.compile
    optimizer: OptimizerSettings = OptimizerSettings()
    evaluation: Evaluation | None = None
    checkpoint: Checkpointing | None = None
    device: Device = "cuda"
    slots_per_host: Positive = 1  # on CPUs, whatever GPUs the host has
    threads_per_slot: Positive = 1
    compute: Compute = Compute()
    parallel: Parallel = Parallel()
    wire: Wire = Wire()
    launch: LaunchSettings = LaunchSettings()
    master_port: Annotated[int, Field(ge=1024, le=65535)] = 29500  # of the rendezvous; the next free one from there
    timeout_s: Annotated[float, Field(gt=0)] = 600.0  # how long a rank waits for another

    @property
    def value_type(self) -> Precision:
        """The precision of weights, activations and what travels between stages."""
        return self.precision or ("bf16" if self.device == "cuda" else "fp32")

    @model_validator(mode="after")
    def _fixed_values_fit_together(self) -> Job:
        fixed = self.parallel
        if fixed.layers is not None:
            total, wanted = sum(fixed.layers), self.model.num_layers
            if total != wanted:
                raise ValueError(f"parallel.layers add up to {total}, num_layers is {wanted}")
            if fixed.pp is not None and len(fixed.layers) != fixed.pp * (fixed.chunks or 1):
                raise ValueError(f"parallel.layers has {len(fixed.layers)} stages, parallel.pp is {fixed.pp}")
        if fixed.chunks is not None and fixed.chunks > 1 and fixed.schedule not in (None, "interleaved"):
            raise ValueError(
                f"parallel.chunks {fixed.chunks} needs parallel.schedule interleaved, not {fixed.schedule}"
            )
        samples, batch = (fixed.dp or 1) * (fixed.micro_batch_size or 1), self.global_batch_size
        if batch % samples:
            raise ValueError(f"global_batch_size {batch} is not a multiple of dp x micro_batch_size = {samples}")
        if self.evaluation is not None and self.data.validation_fraction == 0:
            raise ValueError("evaluation is asked for, data.validation_fraction is 0: there is nothing to evaluate on")
        return self
