"""The logits of a published model for the tokens of a token file, for other models to learn from (distillation).

A teacher that does not fit into the memory of a device is computed a few layers at a time: these read a block of
sequences, whose hidden states wait in host memory for the next ones.
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

MAX_BATCH_TOKENS = 8192  # of the sequences that are computed at a time: enough to fill a GPU
MAX_BATCH_BYTES = 2 * 2**30  # of their logits, unless a single sequence has more
USED_SHARE = 0.8  # of the free memory of a device
BLOCK_SHARE = 0.2  # of the free memory of the host: hidden states that wait for the next layers
KEPT_VALUES = 24  # of the hidden size, for each token: more than a layer has at once without a backward
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
        MemoryError: One layer, or the logits of one sequence, do not fit into memory.
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
    _check_tensors(folder, shape)
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


def _check_tensors(folder: Path, shape: ModelShape) -> None:
    """Raise ValueError unless the weights of the model in `folder` are all there."""
    try:
        check_published(folder, shape)
    except FileNotFoundError as error:
        raise ValueError(str(error)) from None


def _tokens(index: TokenFile) -> Tokens:
    """Return the tokens of a file, with documents only where they stay separate in training."""
    documents = DocumentStarts(index) if index.packed_length is not None else ()
    stored = FileBytes(index.path)
    part = TokenPart(str(index.path), stored, index.token_type, documents, packed_length=index.packed_length)
    return Tokens([part])


@dataclass(frozen=True)
class _Sizes:
    """The parts of a teacher, and the sequences at a time, that memory has room for."""

    shape: ModelShape
    value_bytes: int

    @property
    def sequences(self) -> int:
        """The sequences of a batch."""
        length = self.shape.seq_length
        logits_bytes = length * self.shape.vocab_size * self.value_bytes
        return max(1, min(MAX_BATCH_TOKENS // length, MAX_BATCH_BYTES // logits_bytes))

    @property
    def hidden_bytes(self) -> int:
        """The bytes of one sequence between two layers."""
        return self.shape.seq_length * self.shape.hidden_size * self.value_bytes

    def room_bytes(self, device: torch.device) -> int:
        """Return the bytes of `device` that weights may take, next to a batch; on the host, also to a block."""
        tokens, values = self.sequences * self.shape.seq_length, KEPT_VALUES * self.shape.hidden_size
        batch_bytes = tokens * self.value_bytes * (self.shape.vocab_size + values) + 3 * LOSS_CHUNK_BYTES
        if device.type == "cuda":
            return int(USED_SHARE * torch.cuda.mem_get_info(device)[0]) - batch_bytes
        return int((USED_SHARE - BLOCK_SHARE) * available_bytes()) - batch_bytes

    def block(self) -> int:
        """Return the sequences, in whole batches, whose hidden states may wait in host memory."""
        waiting = int(BLOCK_SHARE * available_bytes()) // self.hidden_bytes
        return max(self.sequences, waiting // self.sequences * self.sequences)

    def parts(self, room_bytes: int) -> list[Stage]:
        """Return the fewest stages that all have room, or stages of one layer where not even these have."""
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
        """Return the output of `stage`, on the device. Its weights replace the ones of the stage before."""
        if self._loaded is None or self._loaded[0] != stage:
            self._loaded = None  # frees them, so that both are never there at once
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
    """Take block after block of sequences through the stages of the teacher, and write the rows of the last."""
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
    """Return the tokens of the sequences `batch` as a model reads them. Raise ValueError for one that it lacks."""
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
    return read


def _more_inputs(tokens: Tokens, batch: range, file: TeacherFile) -> tuple[Tensor, int] | tuple[()]:
    """Return the further arguments of a stage for the sequences `batch`: positions, and the most documents."""
    if tokens.packed_length is None:
        return ()
    length = file.seq_length
    positions = torch.stack([tokens.positions(number * length, (number + 1) * length) for number in batch])
    return positions, max_documents(positions) * len(batch)


def _rows(logits: Tensor, file: TeacherFile, batch: range) -> Iterator[bytes]:
    """Yield the rows of logits (tokens, vocabulary), a few tokens at a time. Raise ValueError if one is no number."""
    chunk = max(1, LOSS_CHUNK_BYTES // (4 * logits.shape[1]))
    for part in torch.split(logits, chunk):
        logarithms, likeliest = part.float().log_softmax(1).topk(file.top, 1)
        if not logarithms.isfinite().all():
            raise ValueError(
                f"the teacher's logits for sequences {batch.start} to {batch.stop - 1} are no numbers: its weights are "
                "damaged, or need another precision"
            )
        rounded = logarithms.clamp(min=MIN_LOGARITHM).half().cpu().view(torch.uint8)
        tokens = likeliest.to(torch.int32).cpu().to(TORCH_TYPES[file.token_type]).view(torch.uint8)
        rows = torch.cat([tokens, rounded], 1)
        yield ctypes.string_at(rows.data_ptr(), rows.nbytes)
