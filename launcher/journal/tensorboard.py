"""A run's steps as a TensorBoard event file of scalars, written by the optional package tensorboard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from holmes_core.errors import HolmesError
from launcher.journal.step_file import WrittenStep
from launcher.journal.step_metrics import StepMetrics

FILE_VERSION = "brain.Event:2"  # Source: tensorflow/core/util/event.proto


def require_tensorboard() -> None:
    """Raise HolmesError unless the package is installed here."""
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except Exception as error:  # also raised for a protobuf that does not fit the package
        raise HolmesError(
            f"an event file needs the Python package tensorboard: {error}", "install it here: `pip install tensorboard`"
        ) from None


def write_event_file(folder: Path, run_id: str, steps: Iterable[WrittenStep]) -> Path:
    """Write the event file to `folder`, creating the folder if needed. Replace an earlier file of the same run.

    Steps are counted from 1, each at its end time. Call `require_tensorboard` first. Raises HolmesError on failure.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = folder / f"events.out.tfevents.{run_id}.holmes"
    temporary = folder / f".{path.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(file_version=FILE_VERSION).SerializeToString())
            for time_s, step in steps:
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in _scalars(step)]
                event = Event(wall_time=time_s, step=step.step + 1, summary=Summary(value=values))
                writer.write(event.SerializeToString())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise HolmesError(f"{path}: cannot be written: {error.strerror}", "choose another folder") from None
    return path


def _scalars(step: StepMetrics) -> Iterator[tuple[str, float]]:
    values = {
        "loss/training": step.loss,
        "loss/validation": step.eval_loss,
        "optimizer/gradient norm": step.grad_norm,
        "optimizer/learning rate": step.learning_rate,
        "speed/tokens per second": step.tokens_per_s,
        "speed/seconds per step": step.step_s,
        "speed/seconds of compute, busiest rank": step.compute_s,
        "speed/seconds waited for the network, slowest rank": step.exposed_s,
        "speed/MFU": step.mfu or None,
        "memory/GiB of the fullest rank": None if step.memory_bytes is None else step.memory_bytes / 2**30,
    }
    for name, value in values.items():
        if value is not None:
            yield name, value
