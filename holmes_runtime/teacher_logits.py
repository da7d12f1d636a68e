"""The logits of a published model for the tokens of a token file, for other models to learn from (distillation).

A teacher that does not fit into the memory of a device is computed a few layers at a time: these read a block of
sequences, whose hidden states wait in host memory for the next ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from holmes_runtime.checkpoint.tensor_piece import TensorPiece
from holmes_runtime.config.model_shape import LOSS_CHUNK_BYTES, ModelShape, stage_parameters
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import VALUE_BYTES, Precision
from holmes_runtime.data.same_corpus import digest_of
from holmes_runtime.data.tokens import TokenPart, Tokens
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.node.checkpoint_files.memory_files import available_bytes
from holmes_runtime.node.data_files.stored_bytes import FileBytes
from holmes_runtime.node.data_files.teacher_file import TeacherFile, TeacherFileWriter, teacher_path
from holmes_runtime.node.data_files.token_file import DocumentStarts, TokenFile, read_index
from holmes_runtime.node.published_files.architectures import read_shape
from holmes_runtime.parallel.batch import Batch, as_read
from holmes_runtime.published.first_weights import load_first_weights

BATCH_TOKENS = 8192  # of the sequences that are computed at a time: enough to fill a GPU
BLOCK_BYTES = 4 * 2**30  # hidden states that wait in host memory
WEIGHTS_SHARE = 0.6  # of the free memory of a device; activations and logits have the rest
MIN_LOGARITHM = -60_000.0  # that float16 holds


class TaughtFile(NamedTuple):
    """A teacher's file that was written, and how: the device, and the parts that the teacher was computed in."""

    file: TeacherFile
    device: str
    num_parts: int


def write_teacher_logits(
    path: Path,
    folder: Path,
    top: int,
    seq_length: int | None,
    progress: Callable[[int, int], None],
    weight_bytes: int | None = None,
) -> TaughtFile:
    """Write the `top` highest logits of the model in `folder` for token file `path` into the file next to it.

    `seq_length` is the run's, which packed examples know themselves. `progress` is called with the work done, and all.
    A first GPU computes in bf16, or else the CPU in fp32, with no more than `weight_bytes` of weights at a time; by
    default as many as there is room for.

    Raises:
        ValueError: The tokens or the model cannot be used together, or the model has logits that are no numbers.
        OSError: A file cannot be read or written.
    """
    index = read_index(path)
    length = index.packed_length or seq_length
    if length is None:
        raise ValueError(f"{path} is cut into sequences by the run: name its length by --seq-length")
    if seq_length not in (None, length):
        raise ValueError(
            f"{path} has examples packed in sequences of {length} tokens, and --seq-length is {seq_length}"
        )
    shape = read_shape(folder, length)
    tokens = _tokens(index)
    num_sequences = (len(tokens) - 1) // length
    if num_sequences < 1:
        raise ValueError(f"{path} has {len(tokens)} tokens, a sequence needs {length + 1} (--seq-length + 1)")
    if top > shape.vocab_size:
        raise ValueError(f"--top {top} is more than the {shape.vocab_size} tokens of {folder}")
    digest = bytes.fromhex(digest_of([FileBytes(path)]))
    file = TeacherFile(teacher_path(path), num_sequences, length, top, shape.vocab_size, digest)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    value_type: Precision = "bf16" if device.type == "cuda" else "fp32"
    room = int(WEIGHTS_SHARE * _free_bytes(device)) if weight_bytes is None else weight_bytes
    teacher = _Teacher(folder, shape, value_type, device, _parts(shape, VALUE_BYTES[value_type], room))
    with torch.no_grad(), TeacherFileWriter(file) as writer:
        _write(writer, file, teacher, tokens, progress)
    return TaughtFile(file, device.type, len(teacher.stages))


def _tokens(index: TokenFile) -> Tokens:
    """Return the tokens of a file, with documents only where they stay separate in training."""
    documents = DocumentStarts(index) if index.packed_length is not None else ()
    stored = FileBytes(index.path)
    part = TokenPart(str(index.path), stored, index.token_type, documents, packed_length=index.packed_length)
    return Tokens([part])


def _free_bytes(device: torch.device) -> int:
    """Return the free memory of the device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()


def _parts(shape: ModelShape, value_bytes: int, room_bytes: int) -> list[Stage]:
    """Return the fewest stages that all have room, or of one layer where not even that has."""
    for num_parts in range(1, shape.num_layers + 1):
        borders = [shape.num_layers * part // num_parts for part in range(num_parts + 1)]
        stages = [Stage(part, *borders[part : part + 2]) for part in range(num_parts)]
        sizes = (
            stage_parameters(
                shape,
                stage.stop_layer - stage.first_layer,
                is_first=stage.first_layer == 0,
                is_last=stage.stop_layer == shape.num_layers,
            )
            for stage in stages
        )
        if max(sizes) * value_bytes <= room_bytes:
            break
    return stages


@dataclass
class _Teacher:
    """A published model, with the weights of one stage at a time in memory."""

    folder: Path
    shape: ModelShape
    value_type: Precision
    device: torch.device
    stages: Sequence[Stage]
    _loaded: tuple[Stage, DecoderStage] | None = None

    def module(self, stage: Stage) -> DecoderStage:
        """Return the module of `stage`, with its weights."""
        if self._loaded is None or self._loaded[0] != stage:
            self._loaded = None  # frees the memory of the stage before it
            module = DecoderStage(self.shape, stage, 0, value_type=self.value_type, device=self.device, draws=False)
            pieces = {
                name: TensorPiece(parameter.detach().flatten(), module.parts[name], 0, parameter.numel())
                for name, parameter in module.named_parameters()
            }
            load_first_weights(self.folder, self.shape, pieces)
            self._loaded = stage, module
        return self._loaded[1]


def _write(
    writer: TeacherFileWriter,
    file: TeacherFile,
    teacher: _Teacher,
    tokens: Tokens,
    progress: Callable[[int, int], None],
) -> None:
    """Take block after block of sequences through the stages of the teacher, and write the rows of the last."""
    at_once = max(1, BATCH_TOKENS // file.seq_length)
    kept_bytes = file.seq_length * teacher.shape.hidden_size * VALUE_BYTES[teacher.value_type]
    block = file.num_sequences
    if len(teacher.stages) > 1:
        block = max(at_once, BLOCK_BYTES // kept_bytes // at_once * at_once)
    done, of_all = 0, file.num_sequences * len(teacher.stages)
    for first in range(0, file.num_sequences, block):
        starts = range(first, min(first + block, file.num_sequences), at_once)
        batches = [range(start, min(start + at_once, starts.stop)) for start in starts]
        states: dict[range, Tensor] = {}  # hidden states of batches between two stages, in host memory
        for stage in teacher.stages:
            module = teacher.module(stage)
            for batch in batches:
                inputs, more = _inputs(tokens, batch, file, teacher.shape.vocab_size)
                inputs = states.pop(batch, inputs)
                output = module(inputs.to(teacher.device), *(_on(values, teacher.device) for values in more))
                if stage is not teacher.stages[-1]:
                    states[batch] = output.cpu()
                else:
                    for rows in _rows(output.flatten(0, 1), file, batch):
                        writer.add(rows)
                done += len(batch)
                progress(done, of_all)


def _on(values: Tensor | int, device: torch.device) -> Tensor | int:
    return values.to(device) if isinstance(values, Tensor) else values


def _inputs(
    tokens: Tokens, batch: range, file: TeacherFile, vocab_size: int
) -> tuple[Tensor, tuple[Tensor, int] | tuple[()]]:
    """Return the tokens of the sequences `batch` as a model reads them, and the further arguments of its stages."""
    length = file.seq_length
    read = torch.stack([as_read(tokens.read(number * length, (number + 1) * length)) for number in batch])
    outside = ((read < 0) | (read >= vocab_size)).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        name, offset = tokens.place_of(batch[row] * length + column)
        raise ValueError(
            f"{name} has token {read[row, column]} at offset {offset} in tokens, and the teacher has {vocab_size}: a "
            "teacher reads the same tokens as the model that it teaches"
        )
    if tokens.packed_length is None:
        return read, ()
    positions = torch.stack([tokens.positions(number * length, (number + 1) * length) for number in batch])
    most_documents = int((positions == 0).sum(1).max())
    return read, Batch(read, positions, most_documents=most_documents).more_inputs(1)[0]


def _rows(logits: Tensor, file: TeacherFile, batch: range) -> Iterator[bytes]:
    """Yield the rows of logits (tokens, vocabulary), a few tokens at a time. Raise ValueError if one is no number."""
    chunk = max(1, LOSS_CHUNK_BYTES // (4 * logits.shape[1]))
    token_type = torch.uint16 if file.token_bytes == 2 else torch.int32
    for part in torch.split(logits, chunk):
        logarithms, likeliest = part.float().log_softmax(1).topk(file.top, 1)
        if not logarithms.isfinite().all():
            raise ValueError(
                f"the teacher's logits for sequences {batch.start} to {batch.stop - 1} are no numbers: its weights are "
                "damaged, or need another precision"
            )
        rounded = logarithms.clamp(min=MIN_LOGARITHM).half().cpu().view(torch.uint8)
        rows = torch.cat([likeliest.to(torch.int32).cpu().to(token_type).view(torch.uint8), rounded], 1)
        yield ctypes.string_at(rows.data_ptr(), rows.nbytes)
