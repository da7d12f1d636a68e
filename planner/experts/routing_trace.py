"""Routing traces: the experts that each token of a sample chose, by layer, read from JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from holmes_core.errors import HolmesError
from holmes_core.records.parse_record import parse
from holmes_core.records.plain_data import parse_foreign_json
from holmes_core.records.record import Record
from holmes_core.records.regular_file import MIB, open_regular
from holmes_runtime.config.model_shape import ModelShape

MAX_TRACE_BYTES = 512 * MIB
MAX_LINE_BYTES = 8 * MIB  # a layer of 65,536 tokens that chose eight of 256 experts has 3 MB
MAX_TOKENS = 65_536  # of a layer

Chosen = tuple[int, ...]
"""The experts of one token, ascending."""


class LayerTrace(Record):
    """One line of the file: a layer, counted from 0, and the experts of each token in it."""

    layer: Annotated[int, Field(ge=0)]
    experts: Annotated[tuple[tuple[int, ...], ...], Field(min_length=2, max_length=MAX_TOKENS)]


def read_trace(path: Path, model: ModelShape) -> tuple[tuple[Chosen, ...], ...]:
    """Return, by layer, the experts of each token.

    Raises:
        HolmesError: The file cannot be read, or is not a trace of `model`.
    """
    layers: dict[int, tuple[Chosen, ...]] = {}
    for number, line in enumerate(_lines(path), start=1):
        source = f"{path}: line {number}"
        trace = parse(LayerTrace, parse_foreign_json(line, source, is_line=True), source)
        if trace.layer >= model.num_layers or trace.layer in layers:
            fault = "occurs twice" if trace.layer in layers else f"exceeds the model's {model.num_layers} layers"
            raise _not_of_model(f"{source}: layer {trace.layer} {fault}")
        for token, chosen in enumerate(trace.experts):
            if _is_wrong(chosen, model):
                raise _not_of_model(
                    f"{source}: token {token} chose experts {list(chosen[:16])}, but the model's tokens choose "
                    f"{model.experts_per_token} different ones from 0 to {(model.experts or 0) - 1}"
                )
        layers[trace.layer] = tuple(tuple(sorted(chosen)) for chosen in trace.experts)
    missing = [layer for layer in range(model.num_layers) if layer not in layers]
    if missing:
        raise _not_of_model(f"{path}: no line for layer {missing[0]}, but the model has {model.num_layers} layers")
    return tuple(layers[layer] for layer in range(model.num_layers))


def _is_wrong(chosen: Chosen, model: ModelShape) -> bool:
    is_known = all(0 <= expert < (model.experts or 0) for expert in chosen)
    return not is_known or not len(chosen) == len(set(chosen)) == model.experts_per_token


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of the file, one at a time."""
    try:
        with open_regular(path, MAX_TRACE_BYTES) as file:
            left = MAX_TRACE_BYTES
            while line := file.readline(min(left, MAX_LINE_BYTES) + 1):
                left -= len(line)
                if len(line) > MAX_LINE_BYTES or left < 0:
                    raise HolmesError(
                        f"{path}: more than {MAX_LINE_BYTES // MIB} MiB in a line, or {MAX_TRACE_BYTES // MIB} in all",
                        f"write one layer per line, with at most {MAX_TOKENS} tokens",
                    )
                yield line.decode("utf-8").rstrip("\n")
    except OSError as error:
        raise HolmesError(
            f"{path}: cannot be read: {error.strerror or error}", "check the path and its permissions"
        ) from None
    except UnicodeDecodeError as error:
        raise HolmesError(f"{path}: not text: byte {error.start} is not UTF-8", "save the file as UTF-8") from None


def _not_of_model(what: str) -> HolmesError:
    return HolmesError(
        what, 'write a line {"layer": 0, "experts": [[3, 17], ...]} for each layer of job.yaml\'s model, from 0 on'
    )
