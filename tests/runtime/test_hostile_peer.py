"""What a rank that is not what it seems can have another rank do: no file outside the folder is written or read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist

from holmes_runtime.checkpoint.host_folders import HostFolders
from holmes_runtime.checkpoint.piece_copies import copy_files
from holmes_runtime.checkpoint.piece_loading import OwnFiles, PieceLoading
from holmes_runtime.checkpoint.piece_transfer import Incoming, OutgoingPiece, TransferPace, exchange
from holmes_runtime.comm.record_exchange import all_gather_records, broadcast_record
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.node.checkpoint_files.piece_index import Merged, ReadIndex

from .forked_ranks import with_torch

LINE, KEY = b"the attacker's line\n!", b"VICTIM PRIVATE KEY"
SAVE = "5" * 32
RANKS = (Rank(0, "a", "one", 0, 0, 0), Rank(1, "b", "two", 1, 0, 0))


class AnyFile(NamedTuple):
    name: str
    rank: int
    size_bytes: int
    hosts: tuple[str, ...]


class AnyBox(NamedTuple):
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    first_byte: int
    size_bytes: int
    digest: str


class AnyTensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    boxes: tuple[AnyBox, ...]


class AnyIndex(NamedTuple):
    format_version: int
    save_id: str
    begun_by: str
    generation: int
    steps: int
    description_digest: str
    files: tuple[AnyFile, ...]
    tensors: tuple[AnyTensor, ...]


class AnyMerged(NamedTuple):
    save_id: str
    pieces: AnyIndex
    trouble: str | None


class AnyDescribed(NamedTuple):
    pieces: AnyIndex
    description: str
    fault: str | None


class AnyRequest(NamedTuple):
    provider: int
    boxes: tuple[int, ...]


class AnyWanted(NamedTuple):
    requests: tuple[AnyRequest, ...]
    fault: str | None
    damage: tuple[str, ...]


def index(written: str, read: str) -> AnyIndex:
    """An index of a file of rank 0 that is to be written, and one of rank 1 that is to be read."""
    files = (AnyFile(written, 0, len(LINE), ("a",)), AnyFile(read, 1, len(KEY), ("b",)))
    tensors = AnyTensor("weight/w", (4,), (AnyBox((0,), (4,), read, 0, len(KEY), ""),))
    return AnyIndex(1, SAVE, "begun", 1, 5, "", files, (tensors,))


def attack_save(victim: str, got: bytearray, group: Any) -> None:
    broadcast_record(AnyMerged(SAVE, index(f"{victim}/authorized_keys2", f"{victim}/id_rsa"), None), group)

    def fill(target: memoryview) -> None:
        target[:] = LINE

    exchange([OutgoingPiece(1, len(LINE), fill)], [Incoming(1, len(KEY), got.extend)], group, TransferPace())


def suffer_save(folder: Path, group: Any) -> None:
    merged = broadcast_record(Merged(None, None, None), group)
    assert merged.pieces is not None
    copy_files(folder, merged.pieces, 1, {0: (1,), 1: (0,)}, group, TransferPace())


def attack_resume(victim: str, got: bytearray, group: Any) -> None:
    broadcast_record(AnyDescribed(index("__0_0.distcp", f"{victim}/id_rsa"), "", None), group)
    all_gather_records(AnyWanted((AnyRequest(1, (0,)),), None, ()), group)
    exchange([], [Incoming(1, len(KEY), got.extend)], group, TransferPace())


def suffer_resume(folder: Path, group: Any) -> None:
    described = broadcast_record(ReadIndex(None, "", None), group)
    assert described.pieces is not None
    folders = HostFolders((("a",), ("b",)), RANKS)
    loading = PieceLoading(described.pieces, {}, OwnFiles(folder, {}), {}, ["a", "b"], folders, RANKS[1])
    loading.load(group)


def run(
    rank: int, folder: Path, attack: Callable[..., None], suffer: Callable[..., None], victim: str, answers: Any
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    group, got = dist.group.WORLD, bytearray()
    try:
        attack(victim, got, group) if rank == 0 else suffer(folder / "checkpoint", group)
        said = "nothing"
    except Exception as error:
        said = repr(error)
    answers.put((rank, bytes(got), said))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("attack", "suffer", "way"),
    [(attack_save, suffer_save, "{}/victim"), (attack_resume, suffer_resume, "../victim")],
    ids=["save", "resume"],
)
def test_a_peer_writes_and_reads_no_file_outside_the_checkpoint_of_another_host(
    tmp_path: Path, attack: Callable[..., None], suffer: Callable[..., None], way: str
) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "id_rsa").write_bytes(KEY)
    forked = with_torch()
    queue = forked.Queue()
    ranks = [
        forked.Process(target=run, args=(rank, tmp_path, attack, suffer, way.format(tmp_path), queue), daemon=True)
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    answers = {rank: (got, said) for rank, got, said in (queue.get(timeout=600) for _ in ranks)}
    for process in ranks:
        process.join(60)

    assert answers[0][0] == b""
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["id_rsa"]
    assert "must be the name of a piece file" in answers[1][1]
