"""Names, options and refusals that only torch's CUDA build and its NCCL have; no GPU is needed."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.on_gpus.one_rank_group import EDGE
from holmes_core.node_settings import SETTINGS
from holmes_runtime.comm.flight_record import dump_flight_record, parse_flight_record
from holmes_runtime.comm.group_opening import Calls, nccl_fields
from holmes_runtime.node.node_facts import read_facts
from holmes_runtime.node.start_torchrun import rank_environment
from tests.free_ports import free_port
from tests.runtime.test_node_facts import CONFIG

pytestmark = [
    pytest.mark.cuda_build,
    pytest.mark.skipif(
        torch.version.cuda is None,
        reason=f"torch {torch.__version__} is built without CUDA: `pip install torch` from PyPI is the CUDA build",
    ),
]
OTHERS = ("CUDA_", "OMP_", "HOLMES_")  # read by the driver, by OpenMP, and by ourselves
PRETENDED_GPU = "int cudaGetDeviceCount(int *count) { *count = 1; return 0; }\n"


def libraries() -> Iterator[Path]:
    """Those of torch, and NCCL's."""
    folder = Path(torch.__file__).parent
    yield from (folder / "lib").glob("*.so*")
    yield from (folder.parent / "nvidia" / "nccl" / "lib").glob("libnccl.so*")


@pytest.fixture(scope="module")
def mapped() -> Iterator[list[mmap.mmap]]:
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(file.open("rb")) for file in libraries()]
        yield [opened.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) for file in files]


def names_set(folder: Path) -> set[str]:
    """Every variable that plans and agents set for torch and NCCL."""
    node = folder / "holmes" / "runs" / "r" / "0-0"
    node.mkdir(parents=True)
    environment = rank_environment(CONFIG._replace(gpus=(0,)), node)
    agents = {name for name in environment if name.startswith(("NCCL_", "TORCH_"))}
    return {*agents, *(name for name in SETTINGS if not name.startswith(OTHERS))}


def test_every_variable_that_holmes_sets_is_one_that_torch_or_nccl_reads(
    mapped: list[mmap.mmap], tmp_path: Path
) -> None:
    names = names_set(tmp_path)
    assert {"NCCL_IB_HCA", "NCCL_LAUNCH_ORDER_IMPLICIT", "TORCH_FR_BUFFER_SIZE"} < names
    unread = {name for name in names if not any(library.find(name.encode() + b"\0") >= 0 for library in mapped)}
    assert unread == set()


def test_a_communicator_s_options_are_taken_and_are_its_own() -> None:
    one, other = Calls().nccl_options(), Calls().nccl_options()
    for field, value in nccl_fields(EDGE).items():
        setattr(one.config, field, value)
    assert (one.config.net_name, one.config.max_ctas) == ("Socket", 4)
    assert other.config.net_name is None


@pytest.mark.parametrize(("interfaces", "is_taken"), [("=lo", True), ("=nosuch", False)])
def test_nccl_s_bootstrap_takes_the_named_interface_and_no_other(interfaces: str, is_taken: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print(len(torch.cuda.nccl.unique_id()))"],
        env={**os.environ, "NCCL_SOCKET_IFNAME": interfaces, "NCCL_DEBUG": "WARN"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == is_taken, done.stderr
    assert is_taken or "no socket interface found" in done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="a pretended GPU needs gcc")
@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15),
    reason="torch 2.15 asks more of a GPU than is pretended",
)
def test_groups_without_a_communicator_are_refused_by_host_rank_and_name(tmp_path: Path) -> None:
    """With one GPU that is only said to be there: what is looked at is made, and not merely asked for."""
    source, library = tmp_path / "gpu.c", tmp_path / "gpu.so"
    source.write_text(PRETENDED_GPU)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LD_PRELOAD": str(library)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.cuda_build.group_worker"],
            env={**os.environ, **where, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        said = process.communicate(timeout=600)[0]
        assert "torch sees 1 GPU" in said
        assert f"refused: host here, rank {rank}: group dp/0-1 (dp on here): " in said


def test_a_node_says_what_its_build_is_for(tmp_path: Path) -> None:
    facts = read_facts(CONFIG._replace(gpus=(0,)), tmp_path)
    assert facts.torch_cuda == torch.version.cuda
    assert facts.nccl == ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    assert facts.compile_lacks is None or "triton" not in facts.compile_lacks


def test_nccl_s_flight_record_has_the_form_that_is_read() -> None:
    assert dist.is_nccl_available()
    dumped = dump_flight_record("cuda")
    assert json.loads(dumped)["version"]
    assert {progress.enqueued for progress in parse_flight_record(dumped, ["dp/0-1"])} == {0}
