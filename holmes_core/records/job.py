"""Job: what to train, and the choices that the user fixes. The planner makes all others."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from holmes_core.records.access import LaunchSettings
from holmes_core.records.compute import Compute
from holmes_core.records.model import Model
from holmes_core.records.record import FileRecord, Record
from holmes_core.records.trainer_settings import WITH_ISLANDS, PublishedName, TrainerName, TrainerSettings
from holmes_runtime.config.codec import Codec, Device
from holmes_runtime.config.field_limits import AboveZero, Positive
from holmes_runtime.config.layer_kinds import LAYER_KEYS
from holmes_runtime.config.rooted_path import RootedPath
from holmes_runtime.config.run_settings import (
    CheckpointSettings,
    DataSettings,
    EvaluationSettings,
    IslandsSettings,
    OptimizerSettings,
    Precision,
    ProfileSettings,
    Recompute,
    Zero,
)
from holmes_runtime.config.schedule import ScheduleName
from holmes_runtime.config.trainable import Trainable

TEXT_SUFFIXES = (".txt", ".text", ".md", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow")
BYTES_VOCABULARY = 4096
"""The largest vocabulary of bytes with some extra tokens; published tokenizers have several times as many."""
EngineName = Literal["holmes"] | TrainerName | PublishedName
ALWAYS_SHARDED: tuple[EngineName, ...] = ("fsdp", "torchtitan")  # weights, by FSDP
BUNDLED_ALONE = (
    "weights", "data", "seed", "fp8", "compile", "optimizer", "evaluation", "checkpoint", "profile", "wire"
)  # fmt: skip
"""Keys of a job that the bundled runtime reads, and a trainer's command does not."""


class Parallel(Record):
    """Fixed parts of the plan; the planner chooses the keys that are left out."""

    tp: Positive | None = None
    """Tensor parallel size: ranks, on one host, that share each layer. Example: 2"""
    pp: Positive | None = None
    """Pipeline parallel size: ranks, one behind the other, that share the layers. Example: 4"""
    dp: Positive | None = None
    """Data parallel size: replicas of the model. Example: 2"""
    ep: Positive | None = None
    """Expert parallel size: parts into which the ranks of a stage, on neighbouring replicas and all of their tensor
    shards, divide the experts of each layer; a divisor of `model.experts`, and times `etp` a multiple of tp.
    Example: 8"""
    etp: Positive | None = None
    """Expert tensor parallel size, for `trainer.engine` megatron: ranks that share each expert; 1 or tp. Not set: 1.
    Example: 4"""
    cp: Positive | None = None
    """Context parallel size: neighbouring ranks of a stage that share each sequence, and the weights as replicas do; dp
    does not count them. Not set: 1, or for sequences of 16,384 tokens and more the fastest. Example: 4"""
    micro_batch_size: Positive | None = None
    """Sequences that pass through a stage at once. Example: 1"""
    layers: tuple[Positive, ...] | None = None
    """Layers of each stage, in order; they add up to `model.num_layers`. Example: [3, 5]"""
    schedule: ScheduleName | None = None
    """Order of forwards and backwards in the pipeline. Example: 1f1b"""
    chunks: Positive | None = None
    """Stages that a pipeline rank holds, for the schedule `interleaved`. Example: 2"""
    recompute: Recompute | None = None
    """Activations that are computed again in the backward instead of kept: none, attention's and the ones between
    matrices (selective), or all of a layer (full). Example: selective"""
    zero: Zero | None = None
    """Stage of ZeRO: 1 shards optimizer states over replicas; 3 also weights and gradients, inside a cluster. For
    `trainer.engine` torch and accelerate, 3 is FSDP and 1 is DDP; not set: DDP for torch, FSDP for accelerate.
    Example: 3"""
    optimizer_offload: bool | None = None
    """Keep masters and moments in host memory, where the CPU updates them; not set: only if nothing fits otherwise.
    Example: true"""


class Wire(Record):
    """Permission for the planner to compress network traffic, and the measured rates that it assumes."""

    edges: Codec = "none"
    """Lossiest codec of activations and their gradients between stages: none (values as they are), bf16, int8 or int4
    (blocks of integers with a scale, stochastically rounded). The plan uses it, or one before it in this list, where
    the time saved is worth it. A codec's error in an activation is never corrected later (no error feedback), because
    no sample comes twice. Cost of codecs: docs/slow-links.md. Example: int8"""
    cautious: bool = False
    """Plan on the least rate that `holmes probe --links` saw of each link, for wires that vary; not set: on the median.
    Example: true"""


class Job(FileRecord):
    """job.yaml: model, data, length of the training, and the choices that the user fixes."""

    KIND: ClassVar[str] = "job"
    RENEW: ClassVar[str] = "your editor"
    RARE: ClassVar[tuple[str, ...]] = ("islands", "trainable", "fp8")

    schema_version: Literal[1] = 1
    """Version of these keys. Example: 1"""
    model: Model
    weights: RootedPath | None = None
    """Folder of a published model (config.json and .safetensors), at the same path on every host. Training starts from
    its weights; not set: from random ones. A run that resumes continues from its checkpoint, and reads weights that
    are frozen again. Example: /models/llama"""
    data: DataSettings | None = None
    steps: Positive
    """Optimizer steps of the whole training. Example: 1000"""
    global_batch_size: Annotated[int, Field(ge=1, le=2**20)]
    """Sequences per step, over all replicas. Example: 64"""
    seed: int = 0
    """Seed of the initial weights, the order of the samples, and stochastic rounding. Example: 7"""
    precision: Precision | None = None
    """Precision of weights, activations and messages between stages; not set: bf16 on GPUs and fp32 on CPUs. Masters,
    moments and gradient sums are always fp32. Example: bf16"""
    fp8: bool = False
    """Multiply the matrices of layers in FP8, by torchao, which every host then needs, on GPUs of compute capability
    8.9 and later. Weights, activations and messages are bf16 as without it. Example: true"""
    compile: bool | None = None
    """Compile layers with torch.compile; not set: on GPUs, unless `model.factory` is set. Example: false"""
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    evaluation: EvaluationSettings | None = None
    checkpoint: CheckpointSettings | None = None
    profile: ProfileSettings | None = None
    trainer: TrainerSettings | None = None
    """Software other than the bundled runtime; not set: the bundled runtime trains."""
    trainable: Trainable | None = None
    device: Device = "cuda"
    """Device that ranks compute on: a GPU (cuda) or the CPU. Example: cpu"""
    slots_per_host: Positive = 1
    """Ranks on each host, if `device` is cpu. On GPUs there is one rank per GPU. Example: 4"""
    threads_per_slot: Positive = 1
    """CPU threads of a rank, if `device` is cpu. Example: 2"""
    compute: Compute = Compute()
    parallel: Parallel = Parallel()
    wire: Wire = Wire()
    islands: IslandsSettings | None = None
    """Clusters may train apart, as islands that exchange pseudo-gradients once a round (DiLoCo). This changes the
    trained model; not set: they do not. The job of a plan is one island's, and has no such section."""
    launch: LaunchSettings = LaunchSettings()
    master_port: Annotated[int, Field(ge=1024, le=65535)] = 29500
    """TCP port of the rendezvous on the first host, or the next free one from there on. Example: 29600"""
    timeout_s: AboveZero = 600.0
    """Seconds a rank waits for another before the run ends. Example: 1200"""

    @property
    def engine(self) -> EngineName:
        """The software that trains: `holmes` is the bundled runtime."""
        return "holmes" if self.trainer is None else self.trainer.engine

    @property
    def is_bundled(self) -> bool:
        """True if the bundled runtime trains."""
        return self.trainer is None

    @property
    def is_launched(self) -> bool:
        """True if a launch trains it: a trainer without a command is only predicted."""
        return self.trainer is None or bool(self.trainer.command)

    @property
    def corpus(self) -> DataSettings:
        """The data of a job for the bundled runtime, which has some."""
        assert self.data is not None
        return self.data

    @cached_property
    def zero(self) -> Zero | None:
        """The stage of ZeRO that job.yaml fixes, or its engine; None: the planner chooses."""
        if self.engine in ALWAYS_SHARDED:
            return 3
        return self.parallel.zero or (3 if self.engine == "accelerate" else None)

    @cached_property
    def etp(self) -> int:
        """The number of ranks that share an expert of another engine than the bundled one."""
        return self.parallel.etp or 1

    @cached_property
    def ep(self) -> int:
        """The number of ranks of a stage that share a layer's experts, ep x etp: 1 where job.yaml does not fix it."""
        return (self.parallel.ep or 1) * self.etp

    @cached_property
    def cp(self) -> int:
        """The context parallel degree: 1 where job.yaml does not fix it."""
        return self.parallel.cp or 1

    @property
    def fixed_dp(self) -> int | None:
        """The number of ranks with the same weights that job.yaml fixes: dp x cp; the planner calls each a replica."""
        return self.parallel.dp and self.parallel.dp * self.cp

    @cached_property
    def batch_parts(self) -> int:
        """The parts of sequences in a step: each sequence is in cp parts, and a replica computes whole parts."""
        return self.global_batch_size * self.cp

    def with_parallel(self, **keys: int | ScheduleName | None) -> Job:
        """Return the same job with other values of `parallel`."""
        return self.model_copy(update={"parallel": self.parallel.model_copy(update=keys)})

    @property
    def value_type(self) -> Precision:
        """The precision of weights, activations and messages between stages."""
        return self.precision or ("bf16" if self.device == "cuda" else "fp32")

    @property
    def value_bytes(self) -> int:
        """Bytes of one of those values."""
        return 4 if self.value_type == "fp32" else 2

    @property
    def compiles(self) -> bool:
        """True if layers are compiled: never in a rehearsal; a model of the user's own only by `compile: true`."""
        if self.compute.emulate is not None:
            return False
        return self.compile if self.compile is not None else self.device == "cuda" and self.model.factory is None

    @property
    def expected_tokenizer(self) -> str | None:
        """The tokenizer that text needs where the model's tokens are not bytes; None where they are, or may be."""
        if self.compute.emulate is not None or self.data is None or self.data.bytes or self.data.tokenizer is not None:
            return None
        if self.weights is not None:
            return f"{self.weights.rstrip('/')}/tokenizer.json"
        return "the model's own tokenizer.json" if self.model.vocab_size > BYTES_VOCABULARY else None

    @model_validator(mode="before")
    @classmethod
    def _engine_is_in_trainer(cls, said: object) -> object:
        """Move the key `engine`, which jobs and plans had until 2026-11-26, to its place in `trainer`."""
        if not isinstance(said, dict) or "engine" not in said:
            return said
        rest = {key: value for key, value in said.items() if key != "engine"}
        return rest if said["engine"] == "holmes" else {"trainer": {"engine": said["engine"]}, **rest}

    @model_validator(mode="after")
    def _keys_have_a_reader(self) -> Job:
        """Check that the job of a trainer's command has no key of the bundled runtime, and a bundled one has data."""
        if self.is_bundled and self.data is None:
            raise ValueError("data is missing: the path of text or tokens to train on")
        if self.is_bundled or not self.is_launched:
            return self
        fields = type(self).model_fields
        for key in BUNDLED_ALONE:
            if getattr(self, key) != fields[key].get_default(call_default_factory=True):
                raise ValueError(f"{key} is only for the bundled runtime: leave it out, and set it in trainer.command")
        return self

    @model_validator(mode="after")
    def _router_is_trained(self) -> Job:
        """Check that the bundled runtime's router, and the loss that balances it, do something."""
        has_router = self.model.experts is not None and self.compute.emulate is None
        if self.is_bundled and self.optimizer.router_balance and not has_router:
            raise ValueError(f"optimizer.router_balance is {self.optimizer.router_balance:g}, but nothing is routed")
        if self.is_bundled and self.model.experts_per_token == 1 and self.model.normalized_routing:
            raise ValueError("model.experts_per_token is 1, so its weight is always 1: set normalized_routing to false")
        return self

    @model_validator(mode="after")
    def _text_has_a_tokenizer(self) -> Job:
        """Check what names show; preflight looks into folders."""
        if self.data is None:
            return self
        own = [self.islands.data_on([name], self.data) for name in self.islands.data] if self.islands else []
        paths = [source.path for data in (self.data, *own) for source in data.sources]
        text = next((name for name in (*paths, self.data.pattern) if name.endswith(TEXT_SUFFIXES)), None)
        if text is not None and self.is_bundled and self.expected_tokenizer is not None:
            reason = "weights" if self.weights is not None else f"vocab_size {self.model.vocab_size}"
            raise ValueError(
                f"data {text} is text without a tokenizer, but with {reason} the model's tokens are not bytes: "
                f"set data.tokenizer to {self.expected_tokenizer}, or data.bytes to true if bytes are meant"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out rare keys of sections as well, so that plans of most jobs stay the same as before those keys."""
        fields: dict[str, object] = super()._without_empty(serialize)
        model = fields.get("model")
        if isinstance(model, dict) and self.model.experts is None and not self.model.beyond_bundled:
            fields["model"] = {key: value for key, value in model.items() if key not in LAYER_KEYS}
        later = ("router_balance", "ep", "etp", "cp", "patience", "teacher", "data")
        for section in ("optimizer", "parallel", "evaluation", "data", "islands"):
            if isinstance(said := fields.get(section), dict):
                fields[section] = {key: value for key, value in said.items() if value or key not in later}
        if isinstance(tuned := fields.get("trainable"), dict) and isinstance(lora := tuned.get("lora"), dict):
            tuned["lora"] = {key: value for key, value in lora.items() if value is not None}
        return fields

    @model_validator(mode="after")
    def _islands_fit_the_job(self) -> Job:
        if self.islands is None:
            return self
        if self.engine not in WITH_ISLANDS:
            raise ValueError(f"islands with engine {self.engine}: they are for {', '.join(WITH_ISLANDS)}")
        if self.islands.data and not self.is_bundled:
            raise ValueError(f"islands.data with engine {self.engine}: its script reads data itself")
        if isinstance(steps := self.islands.inner_steps, int) and steps > self.steps:
            raise ValueError(f"islands.inner_steps is {steps}, the job has only {self.steps} steps: no round would end")
        return self

    @model_validator(mode="after")
    def _profile_is_within_the_run(self) -> Job:
        profile = self.profile
        if profile is not None and profile.after + profile.steps > self.steps:
            raise ValueError(
                f"profile of {profile.steps} steps after {profile.after}: the job has only {self.steps}; set "
                "profile.after and profile.steps so that they fit"
            )
        return self

    @model_validator(mode="after")
    def _code_is_that_of_the_model(self) -> Job:
        file, code = (self.model.factory or "").rpartition(":")[0], self.launch.code
        if self.trainer is not None and self.trainer.command:
            if file:
                raise ValueError(f"model.factory is {self.model.factory!r}, but nothing builds it: leave it out")
            return self
        if code is not None and (not file or file.startswith("/")):
            hint = "name model.factory, FILE.py:FUNCTION in that folder"
            raise ValueError(f"launch.code is {code!r}, but nothing imports from it: {hint}")
        if code is None and "/" in file and not file.startswith("/"):
            raise ValueError(
                f"model.factory {file} is in a folder: name the folder in launch.code, or put the file next to job.yaml"
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
            raise ValueError(f"parallel.chunks {fixed.chunks} needs schedule interleaved, not {fixed.schedule}")
        self._check_batch()
        if self.evaluation is not None and self.corpus.validation_fraction == 0:
            raise ValueError("evaluation is set, but data.validation_fraction is 0, so there is nothing to evaluate on")
        if self.evaluation is not None:
            self.evaluation.check_patience(self.compute.emulate is not None, self.islands is not None)
        if self.data is not None and self.data.documents == "separate" and self.model.factory is not None:
            raise ValueError("data.documents is separate, but a user's own model (model.factory) cannot see that")
        if self.weights is not None and self.model.factory is not None:
            raise ValueError("weights are read by the names of the built-in families, but model.factory has its own")
        return self

    def _check_batch(self) -> None:
        """Check that replicas run whole micro-batches, one at least, and equally many under ZeRO-3 and interleaved."""
        fixed, batch = self.parallel, self.global_batch_size
        samples = (fixed.dp or 1) * (fixed.micro_batch_size or 1)
        if batch % (fixed.micro_batch_size or 1):
            raise ValueError(f"micro_batch_size {fixed.micro_batch_size} does not divide global_batch_size {batch}")
        if batch < samples:
            raise ValueError(f"global_batch_size {batch} is less than dp x micro_batch_size = {samples}")
        interleaved = fixed.schedule == "interleaved" or (fixed.chunks or 1) > 1
        for alike, name in ((self.zero == 3, "zero 3"), (interleaved, "schedule interleaved")):
            if alike and batch % samples:
                raise ValueError(
                    f"global_batch_size {batch} is not a multiple of dp x micro_batch_size = {samples}, and under "
                    f"parallel.{name} all replicas run equally many micro-batches"
                )
