"""The logits of a published model for the tokens of a token file, for distillation.

A teacher that does not fit into device memory is computed a few layers at a time. A block of sequences passes through
these layers, and its hidden states wait in host memory for the next layers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from holmes_runtime.checkpoint.tensor_piece import whole_piece
from holmes_runtime.config.model_shape import LOSS_CHUNK_BYTES, ModelShape, stage_parameters
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import VALUE_BYTES, Precision
from holmes_runtime.data.tokens import TORCH_TYPES, TokenPart, Tokens
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.node.checkpoint_files.memory_files import available_bytes
from holmes_runtime.node.data_files.stored_bytes import FileBytes, digest_of
from holmes_runtime.node.data_files.teacher_file import TeacherFile, teacher_path, written_teacher
from holmes_runtime.node.data_files.token_file import DocumentStarts, TokenFile, read_index
from holmes_runtime.node.published_files.architectures import read_shape
from holmes_runtime.node.published_files.check_published import check_published
from holmes_runtime.parallel.batch import as_read, max_documents
from holmes_runtime.published.first_weights import load_first_weights

MAX_BATCH_TOKENS = 8192  # in the sequences that are computed at a time: enough to fill a GPU
MAX_BATCH_BYTES = 2 * 2**30  # of their logits, unless a single sequence has more
USED_SHARE = 0.8  # of a device's free memory
BLOCK_SHARE = 0.2  # of the host's free memory, for hidden states that wait for the next layers
KEPT_VALUES = 24  # times the hidden size, per token: more than a layer holds at once without a backward
MIN_LOGARITHM = -60_000.0  # fits float16


class TaughtFile(NamedTuple):
    """A written teacher file, with the device and the number of parts in which the teacher was computed."""

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
    """Write the `top` highest logits of the model in `folder` for token file `path` to a file next to it.

    `seq_length` is the run's; packed examples have their own. `progress` is called with the work done and the whole
    work. The first GPU computes in bf16, or else the CPU in fp32, with at most `weight_bytes` of weights at a time, by
    default as many as fit.

    Raises:
        MemoryError: One layer, or the logits of one sequence, do not fit into memory.
        ValueError: The tokens do not fit the model, or the model's logits are not finite.
        OSError: A file cannot be read or written.
    """
    index = read_index(path)
    length = index.packed_length or seq_length
    if length is None:
        raise ValueError(f"{path}: the run cuts it into sequences: give their length with --seq-length")
    if seq_length not in (None, length):
        raise ValueError(
            f"{path} has examples packed in sequences of {length} tokens, but --seq-length is {seq_length}"
        )
    shape = read_shape(folder, length)
    try:
        check_published(folder, shape)
    except FileNotFoundError as error:
        raise ValueError(str(error)) from None
    tokens = _tokens(index)
    num_sequences = (len(tokens) - 1) // length
    if num_sequences < 1:
        raise ValueError(f"{path} has {len(tokens)} tokens, but a sequence needs {length + 1} (--seq-length + 1)")
    if top > shape.vocab_size:
        raise ValueError(f"--top {top} is more than the {shape.vocab_size} tokens in the vocabulary of {folder}")
    digest = bytes.fromhex(digest_of([FileBytes(path)]))
    file = TeacherFile(teacher_path(path), num_sequences, length, top, shape.vocab_size, digest)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    value_type: Precision = "bf16" if device.type == "cuda" else "fp32"
    sizes = _Sizes(shape, VALUE_BYTES[value_type])
    room = sizes.room_bytes(device) if weight_bytes is None else weight_bytes
    teacher = _Teacher(folder, shape, value_type, device, sizes.parts(room))
    try:
        with torch.no_grad(), written_teacher(file) as writer:
            _write(writer, file, teacher, sizes, tokens, progress)
    except torch.OutOfMemoryError:
        largest = f"{shape.num_layers} layers in {len(teacher.stages)} parts and {sizes.sequences} sequences at a time"
        raise MemoryError(f"{folder} does not fit into the memory of the GPU, with {largest}") from None
    return TaughtFile(file, device.type, len(teacher.stages))


def _tokens(index: TokenFile) -> Tokens:
    """Return the tokens of a file, with documents only if training keeps them separate."""
    documents = DocumentStarts(index) if index.packed_length is not None else ()
    stored = FileBytes(index.path)
    part = TokenPart(str(index.path), stored, index.token_type, documents, packed_length=index.packed_length)
    return Tokens([part])


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a teacher's parts and batches that fit into memory."""

    shape: ModelShape
    value_bytes: int

    @property
    def sequences(self) -> int:
        """The number of sequences in a batch."""
        length = self.shape.seq_length
        logits_bytes = length * self.shape.vocab_size * self.value_bytes
        return max(1, min(MAX_BATCH_TOKENS // length, MAX_BATCH_BYTES // logits_bytes))

    @property
    def hidden_bytes(self) -> int:
        """The bytes of one sequence between two layers."""
        return self.shape.seq_length * self.shape.hidden_size * self.value_bytes

    def room_bytes(self, device: torch.device) -> int:
        """Return the bytes for weights on `device`, which leave room for a batch, and on the host also for a block."""
        tokens, values = self.sequences * self.shape.seq_length, KEPT_VALUES * self.shape.hidden_size
        batch_bytes = tokens * self.value_bytes * (self.shape.vocab_size + values) + 3 * LOSS_CHUNK_BYTES
        if device.type == "cuda":
            return int(USED_SHARE * torch.cuda.mem_get_info(device)[0]) - batch_bytes
        return int((USED_SHARE - BLOCK_SHARE) * available_bytes()) - batch_bytes

    def block(self) -> int:
        """Return the number of sequences, in whole batches, whose hidden states may wait in host memory."""
        waiting = int(BLOCK_SHARE * available_bytes()) // self.hidden_bytes
        return max(self.sequences, waiting // self.sequences * self.sequences)

    def parts(self, room_bytes: int) -> list[Stage]:
        """Return the fewest stages that all fit into `room_bytes`, or stages of one layer if even those do not fit."""
        layers = self.shape.num_layers
        for num_parts in range(1, layers + 1):
            borders = [layers * part // num_parts for part in range(num_parts + 1)]
            stages = [Stage(part, *borders[part : part + 2]) for part in range(num_parts)]
            counts = (
                stage_parameters(
                    *(self.shape, stage.stop_layer - stage.first_layer),
                    is_first=stage.first_layer == 0,
                    is_last=stage.stop_layer == layers,
                )
                for stage in stages
            )
            if max(counts) * self.value_bytes <= room_bytes:
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

    def forward(self, stage: Stage, inputs: Tensor, more: tuple[Tensor, int] | tuple[()]) -> Tensor:
        """Return the output of `stage`, on the device. Its weights replace the previous stage's."""
        if self._loaded is None or self._loaded[0] != stage:
            self._loaded = None  # frees the old weights before the new ones are loaded
            self._loaded = stage, self._load(stage)
        on_device = (values.to(self.device) if isinstance(values, Tensor) else values for values in more)
        output: Tensor = self._loaded[1](inputs.to(self.device), *on_device)
        return output

    def _load(self, stage: Stage) -> DecoderStage:
        module = DecoderStage(self.shape, stage, 0, value_type=self.value_type, device=self.device, draws=False)
        named = module.named_parameters()
        pieces = {name: whole_piece(parameter, module.parts[name]) for name, parameter in named}
        load_first_weights(self.folder, self.shape, pieces)
        return module


def _write(
    writer: BinaryIO,
    file: TeacherFile,
    teacher: _Teacher,
    sizes: _Sizes,
    tokens: Tokens,
    progress: Callable[[int, int], None],
) -> None:
    """Run the teacher's stages on one block of sequences after another, and write the rows of the last stage."""
    at_once, of_all = sizes.sequences, file.num_sequences
    block = of_all if len(teacher.stages) == 1 else sizes.block()
    done = 0
    for first in range(0, of_all, block):
        stop = min(first + block, of_all)
        batches = [range(start, min(start + at_once, stop)) for start in range(first, stop, at_once)]
        states: dict[range, Tensor] = {}  # hidden states of batches between two stages, in host memory
        for stage in teacher.stages:
            for batch in batches:
                is_first = stage is teacher.stages[0]
                inputs = _read(tokens, batch, file, teacher.shape.vocab_size) if is_first else states.pop(batch)
                output = teacher.forward(stage, inputs, _more_inputs(tokens, batch, file))
                if stage is not teacher.stages[-1]:
                    states[batch] = output.cpu()
                else:
                    for rows in _rows(output.flatten(0, 1), file, batch):
                        writer.write(rows)
                done += len(batch)
                progress(done, of_all * len(teacher.stages))


def _read(tokens: Tokens, batch: range, file: TeacherFile, vocab_size: int) -> Tensor:
    """Return the tokens of the sequences `batch`, as a model reads them. Raise ValueError for an unknown token."""
    length = file.seq_length
    read = torch.stack([as_read(tokens.read(number * length, (number + 1) * length)) for number in batch])
    outside = ((read < 0) | (read >= vocab_size)).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        name, offset = tokens.place_of(batch[row] * length + column)
        raise ValueError(
            f"{name} has token {read[row, column]} at offset {offset} in tokens, but the teacher has {vocab_size}: the "
            "teacher must have the same tokenizer as the trained model"
        )
    return read


def _more_inputs(tokens: Tokens, batch: range, file: TeacherFile) -> tuple[Tensor, int] | tuple[()]:
    """Return more arguments of a stage for the sequences `batch`: positions, and the largest number of documents."""
    if tokens.packed_length is None:
        return ()
    length = file.seq_length
    positions = torch.stack([tokens.positions(number * length, (number + 1) * length) for number in batch])
    return positions, max_documents(positions) * len(batch)


def _rows(logits: Tensor, file: TeacherFile, batch: range) -> Iterator[bytes]:
    """Yield the rows of logits (tokens, vocabulary), a few tokens at a time. Raise ValueError if one is not finite."""
    chunk = max(1, LOSS_CHUNK_BYTES // (4 * logits.shape[1]))
    for part in torch.split(logits, chunk):
        logarithms, likeliest = part.float().log_softmax(1).topk(file.top, 1)
        if not logarithms.isfinite().all():
            raise ValueError(
                f"the teacher's logits for sequences {batch.start} to {batch.stop - 1} are not finite: its weights are "
                "damaged or need another precision"
            )
        rounded = logarithms.clamp(min=MIN_LOGARITHM).half().cpu().view(torch.uint8)
        tokens = likeliest.to(torch.int32).cpu().to(TORCH_TYPES[file.token_type]).view(torch.uint8)
        rows = torch.cat([tokens, rounded], 1)
        yield ctypes.string_at(rows.data_ptr(), rows.nbytes)
