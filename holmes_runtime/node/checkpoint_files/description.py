"""The description of a checkpoint without its tensors: checkpoint.json."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from holmes_runtime.config.checks import check, check_counts, shown
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import OptimizerSettings, OuterSync, Precision, TeacherSettings
from holmes_runtime.config.strict_json import MAX_VALUES, decode, loads
from holmes_runtime.node.checkpoint_files.plain_file import read_plain

FORMAT_VERSION = 2
RATE_TOLERANCE = 0.01  # relative difference of learning rates that needs no warning
DESCRIPTION_FILE = "checkpoint.json"
MAX_DESCRIPTION_BYTES = 1 << 20
MAX_COUNT = 10**15 - 1  # limit of steps and samples
NOT_VALIDATED = {"validated": None}  # in checkpoints from before they held losses


class OuterCounters(NamedTuple):
    """The position of an island among the others: its next exchange, and the lineage that identifies its state.

    `synced_steps[f]` are the steps after which it last sent fragment f. The previous exchange has the changes of
    `islands`. The weights `are_common` once the run has ended: all islands of the last exchange share them.
    """

    exchange: int
    lineage: str
    synced_steps: tuple[int, ...]
    islands: tuple[int, ...] = ()
    are_common: bool = False

    def in_words(self) -> str:
        """Return whose weights a checkpoint with these counters holds."""
        names = ", ".join(map(str, self.islands))
        if self.are_common:
            return f"the common model after exchange {self.exchange}, the last, of islands {names}"
        since = f"since exchange {self.exchange} with islands {names}" if self.islands else "since no exchange"
        return f"one island's own weights {since}: those of the others differ"


@dataclass(frozen=True)
class Validated:
    """The evaluations of a run so far: the last one, after `steps`, and the lowest loss, after `lowest_steps`.

    `loss` is None if it was not finite. `lowest` is None, after 0 steps, if no loss was finite. `since_lowest` counts
    the evaluations after the lowest.
    """

    loss: float | None
    steps: int
    lowest: float | None
    lowest_steps: int
    since_lowest: int

    def __post_init__(self) -> None:
        check_counts(self, MAX_COUNT, "steps", "lowest_steps", "since_lowest")
        check("lowest_steps", self.lowest_steps, f"must be at most steps {self.steps}", self.lowest_steps <= self.steps)
        of_none = self.lowest is None and self.lowest_steps == 0 and self.loss is None
        is_lowest = self.lowest is not None and (self.loss is None or self.lowest <= self.loss)
        check("lowest", self.lowest, f"must be null, or at most loss {self.loss}", of_none or is_lowest)


def validated_after(before: Validated | None, loss: float, steps: int) -> Validated:
    """Return the evaluations with one more, after `steps`. A loss counts as the lowest only if below all others."""
    before = before or Validated(None, 0, None, 0, 0)
    said = loss if math.isfinite(loss) else None
    if said is not None and (before.lowest is None or said < before.lowest):
        return Validated(said, steps, said, steps, 0)
    return Validated(said, steps, before.lowest, before.lowest_steps, min(before.since_lowest + 1, MAX_COUNT))


@dataclass(frozen=True)
class Counters:
    """The counts saved with the tensors: steps of the run and of AdamW, and the loss scale of fp16 (otherwise 1 and 0).

    `samples` is the number of samples trained on so far. `outer` is for an island.
    """

    steps: int
    optimizer_steps: int
    loss_scale: float
    good_steps: int
    samples: int
    outer: OuterCounters | None = None
    validated: Validated | None = None

    def __post_init__(self) -> None:
        check_counts(self, MAX_COUNT, "steps", "optimizer_steps", "good_steps", "samples")
        check("loss_scale", self.loss_scale, "must be above 0", self.loss_scale > 0)
        if self.outer is not None:
            check_counts(self.outer, MAX_COUNT, "exchange", "synced_steps", "islands")
        if self.validated is not None:
            rule = f"must be at most steps {self.steps}"
            check("validated.steps", self.validated.steps, rule, self.validated.steps <= self.steps)

    @property
    def validation_loss(self) -> float | None:
        """The validation loss of exactly these weights; None if it was not measured after this step."""
        return self.validated.loss if self.validated is not None and self.validated.steps == self.steps else None


@dataclass(frozen=True)
class Origin:
    """The files that an export needs and no checkpoint holds: configuration and tokenizer, by their paths on hosts.

    `weights` is the folder of the published model that training began with. `tokenizer` is the file that read its text.
    """

    weights: str | None
    tokenizer: str | None


@dataclass(frozen=True)
class Description:
    """checkpoint.json. `shape` must equal that of the run that loads it; `trained_with` may differ.

    If only adapters are trained, the checkpoint has no other weights. Then `lora` has their rank, alpha and targets,
    and the identity of the `frozen_weights`. The run that loads it must have the same.
    """

    format_version: int
    counters: Counters
    value_type: Precision
    shape: dict[str, Any]
    trained_with: dict[str, Any]
    origin: Origin
    lora: dict[str, Any] | None = None

    @property
    def model(self) -> dict[str, Any]:
        """The settings that determine the tensors in the checkpoint."""
        return self.shape if self.lora is None else {**self.shape, "lora": self.lora}

    @classmethod
    def read(cls, folder: Path) -> Description:
        """Return the description in `folder`. Raises ValueError naming the file if this version cannot read it."""
        path = folder / DESCRIPTION_FILE
        try:
            text = read_plain(path, MAX_DESCRIPTION_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} does not describe a checkpoint: {error}") from None
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: Path) -> Description:
        """Return the description in the `text` of `path`. Raises ValueError naming `path` if it cannot be read."""
        try:
            data: Any = loads(text, MAX_VALUES)
            version = data["format_version"]
            if version != FORMAT_VERSION:
                raise ValueError(f"format_version {shown(version)}, this Holmes reads {FORMAT_VERSION}")
            return cls(
                FORMAT_VERSION,
                decode(Counters, {**NOT_VALIDATED, **data["counters"]}, "counters"),
                decode(Precision, data["value_type"], "value_type"),
                _with_defaults(dict(data["shape"]), ModelShape),
                dict(data["trained_with"]),
                decode(Origin, data["origin"], "origin"),
                dict(data["lora"]) if data.get("lora") is not None else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} does not describe a checkpoint: {error}") from None

    def to_json(self) -> str:
        """Return the text of the file."""
        said, outer = asdict(self), self.counters.outer
        if self.lora is None:  # as before these keys existed
            del said["lora"]
        if self.counters.validated is None:
            del said["counters"]["validated"]
        said["counters"]["outer"] = None if outer is None else outer._asdict()
        return json.dumps(said, indent=1) + "\n"


def _with_defaults(settings: dict[str, Any], kind: type[ModelShape | OptimizerSettings]) -> dict[str, Any]:
    """Return settings of that kind with later keys added, at values that mean the same as their absence."""
    later = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    return later | settings


def whose_weights(checkpoint: Path) -> str | None:
    """Return whose weights an island's checkpoint holds; None for an ordinary run, or if it does not say."""
    try:
        outer = Description.read(checkpoint).counters.outer
    except ValueError:
        return None
    return outer.in_words() if outer is not None else None


def describe(config: RunConfig, data_digest: str, counters: Counters, frozen_weights: str | None = None) -> Description:
    """Return the description of a checkpoint of this run."""
    lora = config.lora
    return Description(
        FORMAT_VERSION,
        counters,
        config.value_type,
        asdict(config.model.in_full),
        {
            "seed": config.seed,
            "global_batch_size": config.global_batch_size,
            "data": data_digest,
            "weights": [source.weight for source in config.data.sources],
            "documents": config.data.documents,
            "teacher": _teacher_in_words(config.data.teacher),
            "steps": config.steps,
            "precision": config.value_type,
            "wire.edges": config.lossiest_codec,
            "optimizer": asdict(config.optimizer),
            "islands": _islands_in_words(config.outer_sync),
        },
        Origin(config.weights, config.data.tokenizer),
        {
            "rank": lora.rank,
            "alpha": lora.weight,
            "targets": sorted(lora.targets),
            "frozen_weights": frozen_weights,
        }
        if lora is not None
        else None,
    )


def kept_origin(saved: Origin, now: Origin) -> Origin:
    """Return the origin of a run that resumes a checkpoint of origin `saved`. The `weights` stay the same."""
    return Origin(saved.weights, now.tokenizer or saved.tokenizer)


def _teacher_in_words(teacher: TeacherSettings | None) -> str | None:
    """Return the teacher's settings in words; None without a teacher, as in older checkpoints."""
    return None if teacher is None else f"weight {teacher.weight:g}, temperature {teacher.temperature:g}"


def _islands_in_words(outer: OuterSync | None) -> str:
    if outer is None:
        return "none"
    return (
        f"{outer.num_islands} of inner_steps {outer.inner_steps}, codec {outer.codec}, fragments {outer.fragments}, "
        f"delay_steps {outer.delay_steps}, outer_rate {outer.outer_rate:g}, momentum {outer.momentum:g}"
    )


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the keys whose values differ, such as `seed: 1 then, 2 now` or `optimizer.beta1: 0.9 then, 0.8 now`."""
    then, today = _flat(saved), _flat(now)
    keys = sorted(then.keys() | today.keys())
    return [f"{key}: {then.get(key)} then, {today.get(key)} now" for key in keys if then.get(key) != today.get(key)]


def changed_settings(saved: Description, now: Description) -> list[str]:
    """Return the settings that differ from the settings of `saved`, and the learning rate if it jumps."""
    then, today = saved.trained_with, now.trained_with
    if isinstance(then.get("optimizer"), dict):
        then = then | {"optimizer": _with_defaults(then["optimizer"], OptimizerSettings)}
    changed = differences(then, today)
    with contextlib.suppress(KeyError, ValueError, TypeError):  # the file may have been written by anyone
        step = saved.counters.steps
        planned = decode(OptimizerSettings, then["optimizer"], "optimizer").rate_at(step, then["steps"])
        rate = decode(OptimizerSettings, today["optimizer"], "optimizer").rate_at(step, today["steps"])
        if abs(rate - planned) > RATE_TOLERANCE * planned:
            changed.append(f"the learning rate of step {step + 1} jumps: {planned:.3g} then, {rate:.3g} now")
    return changed


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return nested settings with names such as `optimizer.beta1`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
    return flat
