"""Job: what to train, and what the user wants fixed. All else is the planner's."""

from __future__ import annotations

import posixpath
from typing import Annotated, ClassVar, Literal

from pydantic import (
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from holmes_core.records.access import LaunchSettings
from holmes_core.records.islands import IslandsSection
from holmes_core.records.model import Model, Positive, RopeScaling
from holmes_core.records.record import FileRecord, Record
from holmes_core.records.rooted_path import RootedPath

__all__ = ["Model", "RopeScaling"]  # of job.yaml too, so that they are imported from here as well
Seconds = Annotated[float, Field(ge=0)]
Precision = Literal["fp32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]
Device = Literal["cuda", "cpu"]
Codec = Literal["none", "bf16", "int8", "int4"]
Zero = Literal[1, 3]
"""The stage of ZeRO: 1 shards optimizer states over replicas; 3 also weights and gradients, inside a cluster."""
ScheduleName = Literal["gpipe", "1f1b", "eager", "interleaved", "zero-bubble"]
EngineName = Literal["holmes", "megatron-2020", "megatron-2021", "megatron-deepspeed", "megatron-2024", "sailor"]


class Source(Record):
    """One file or folder of a blend."""

    path: RootedPath
    weight: Annotated[float, Field(gt=0)]  # its share of the samples is this over the sum of all weights


class Data(Record):
    """Text or tokens to train on, at the same path on every host: a file, or a folder and a file pattern.

    Read as: .bin with its .idx beside it (Megatron tokens), .jsonl (the field "text"), else raw text.
    """

    path: Annotated[
        Annotated[RootedPath, Tag("path")] | Annotated[tuple[Source, ...], Tag("blend")],
        Discriminator(lambda path: "path" if isinstance(path, str) else "blend"),
    ]
    """One, or several to be blended by weight. A blend is the same under every plan: of its first n samples, for any
    n, each source has its share to within one."""
    pattern: str = "*"  # of the files in a folder
    tokenizer: RootedPath | None = None  # a `tokenizers` JSON file; without one, text becomes bytes
    documents: Literal["joined", "separate"] = "joined"
    """separate: attention stays inside a document, and positions count from where it begins in the sample. Documents
    are those of an .idx, the lines of a .jsonl, and else whole files."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0  # the last part of each, kept for evaluation

    @field_validator("path")
    @classmethod
    def _each_once(cls, path: str | tuple[Source, ...]) -> str | tuple[Source, ...]:
        paths = [path] if isinstance(path, str) else [posixpath.normpath(source.path) for source in path]
        if not paths:
            raise ValueError("it names no file or folder")
        twice = next((each for each in paths if paths.count(each) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is listed twice: add up its weights")
        return path


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

    path: RootedPath  # a folder that all hosts share, or one on the disk of each
    every_steps: Positive
    keep_last: Positive = 2  # how many checkpoints to keep
    copies: Positive = 2  # of hosts' own folders: how many hold each piece, of other clusters where there are any


class Profile(Record):
    """Steps whose predicted and measured times are laid side by side in runs/ID/profile.json.gz, for Perfetto."""

    steps: Positive = 3
    after: Annotated[int, Field(ge=0)] = 5  # steps of an attempt before them: compiling and connecting takes the first


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
    zero: Zero | None = None
    optimizer_offload: bool | None = None
    """Masters and moments in host memory, where the CPU updates them; None for only where nothing fits otherwise."""


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
    memory_margin: Annotated[float, Field(ge=0)] | None = None
    """By how much of it a GPU's memory exceeds what training is counted to take; None where the run did not tell."""


class Overheads(Record):
    """What a step costs a slot beside FLOPs and bytes on links, as `holmes calibrate` measures it."""

    action_s: Seconds
    """Of each forward and backward of a stage in a pipeline beside computing it: the schedule and its messages."""
    update_bytes_per_s: Annotated[float, Field(gt=0)]  # of memory, in what a step does to the slot's parameters
    split_factor: Annotated[float, Field(ge=1)] | None = None
    """How many times as long a backward takes in the two halves of zero-bubble; None for the planner's own constant."""


class Compute(Record):
    """Speed of one training slot: a GPU, or a CPU process that has its threads_per_slot cores to itself."""

    flops_per_s: Annotated[float, Field(gt=0)] | None = None  # achieved, measured
    overheads: Overheads | None = None  # None for the planner's own constants
    emulate: Emulation | None = None
    calibration: Calibration | None = None


class Job(FileRecord):
    """job.yaml: what to train, on what, how long, and what the user wants fixed."""

    KIND: ClassVar[str] = "job"
    RENEW: ClassVar[str] = "your editor"

    schema_version: Literal[1] = 1
    model: Model
    weights: RootedPath | None = None
    """A published model's folder (config.json and .safetensors), at the same path on every host, whose weights training
    starts from; None starts from random ones. A run that resumes goes on from its checkpoint."""
    data: Data
    steps: Positive
    global_batch_size: Annotated[int, Field(ge=1, le=2**20)]  # sequences a step
    seed: int = 0
    precision: Precision | None = None
    """None for bf16 on GPUs and fp32 on CPUs; masters, moments and gradient sums are always fp32."""
    compile: bool | None = None
    """Whether torch.compile makes the layers; None for compiled on GPUs, and as they are on CPUs."""
    optimizer: OptimizerSettings = OptimizerSettings()
    evaluation: Evaluation | None = None
    checkpoint: Checkpointing | None = None
    profile: Profile | None = None
    engine: EngineName = "holmes"
    """What trains: the bundled runtime, or other software, whose plans are predictions and not launched; see
    docs/cost-model.md."""
    device: Device = "cuda"
    slots_per_host: Positive = 1  # on CPUs, whatever GPUs the host has
    threads_per_slot: Positive = 1
    compute: Compute = Compute()
    parallel: Parallel = Parallel()
    wire: Wire = Wire()
    islands: IslandsSection | None = None
    """None: clusters do not train apart, which changes what is trained. In a plan, whose job is one island's."""
    launch: LaunchSettings = LaunchSettings()
    master_port: Annotated[int, Field(ge=1024, le=65535)] = 29500  # of the rendezvous; the next free one from there
    timeout_s: Annotated[float, Field(gt=0)] = 600.0  # how long a rank waits for another

    @property
    def is_launched(self) -> bool:
        """Whether the bundled runtime trains, and not software of which only predictions are made."""
        return self.engine == "holmes"

    @property
    def value_type(self) -> Precision:
        """The precision of weights, activations and what travels between stages."""
        return self.precision or ("bf16" if self.device == "cuda" else "fp32")

    @property
    def compiles(self) -> bool:
        """Whether layers are compiled. A rehearsal has none, and a model of one's own decides by what is said alone."""
        if self.compute.emulate is not None:
            return False
        return self.compile if self.compile is not None else self.device == "cuda" and self.model.factory is None

    @model_serializer(mode="wrap")
    def _islands_only_where_they_are(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        fields: dict[str, object] = serialize(self)
        if self.islands is None:
            fields.pop("islands", None)
        return fields

    @model_validator(mode="after")
    def _islands_fit_the_job(self) -> Job:
        if self.islands is not None and not self.is_launched:
            raise ValueError(f"islands with engine {self.engine}: training apart is the bundled runtime's own")
        if self.islands is not None and self.islands.inner_steps > self.steps:
            raise ValueError(
                f"islands.inner_steps is {self.islands.inner_steps}, the job has only {self.steps} steps: no round "
                "would end"
            )
        return self

    @model_validator(mode="after")
    def _profile_is_within_the_run(self) -> Job:
        profile = self.profile
        if profile is not None and profile.after + profile.steps > self.steps:
            raise ValueError(
                f"profile of {profile.steps} steps after {profile.after}: the job has only {self.steps}; set "
                "profile.after and profile.steps so that they are within"
            )
        return self

    @model_validator(mode="after")
    def _code_is_that_of_the_model(self) -> Job:
        file, code = (self.model.factory or "").rpartition(":")[0], self.launch.code
        if code is not None and (not file or file.startswith("/")):
            hint = "name model.factory, FILE.py:FUNCTION in that folder"
            raise ValueError(f"launch.code is {code!r}, and nothing imports from it: {hint}")
        if code is None and "/" in file and not file.startswith("/"):
            raise ValueError(
                f"model.factory {file} is in a folder: name that folder by launch.code, or put the file beside job.yaml"
            )
        return self

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
        self._check_batch()
        if self.evaluation is not None and self.data.validation_fraction == 0:
            raise ValueError("evaluation is asked for, data.validation_fraction is 0: there is nothing to evaluate on")
        if self.data.documents == "separate" and self.model.factory is not None:
            raise ValueError("data.documents is separate, which a model of one's own (model.factory) is not told of")
        if self.weights is not None and self.model.factory is not None:
            raise ValueError("weights are read by the names of the built-in families, and model.factory has its own")
        return self

    def _check_batch(self) -> None:
        """Replicas run whole micro-batches, one at least; under ZeRO-3 and interleaved equally many."""
        fixed, batch = self.parallel, self.global_batch_size
        samples = (fixed.dp or 1) * (fixed.micro_batch_size or 1)
        if batch % (fixed.micro_batch_size or 1):
            raise ValueError(
                f"global_batch_size {batch} is not a multiple of micro_batch_size {fixed.micro_batch_size}"
            )
        if batch < samples:
            raise ValueError(f"global_batch_size {batch} is less than dp x micro_batch_size = {samples}")
        interleaved = fixed.schedule == "interleaved" or (fixed.chunks or 1) > 1
        for alike, name in ((fixed.zero == 3, "zero 3"), (interleaved, "schedule interleaved")):
            if alike and batch % samples:
                raise ValueError(
                    f"global_batch_size {batch} is not a multiple of dp x micro_batch_size = {samples}, and under "
                    f"parallel.{name} all replicas run as many micro-batches"
                )
