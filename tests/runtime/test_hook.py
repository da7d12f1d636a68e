"""The hook of a trainer's process groups, with a stand-in for torch: networks, options, and refusals."""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holmes_core.records.trainer_settings import unhooked_python
from holmes_runtime.config.node_config import TRAINER_VARIABLE
from holmes_runtime.config.trainer_config import HOOK_FOLDER, SHARED, TrainerConfig, TrainerNetwork, TrainerRank
from holmes_runtime.hook.group_hook import bind_gloo, hook_groups
from holmes_runtime.hook.group_network import network_of
from holmes_runtime.hook.group_report import NcclCheck
from tests.seeds import few_of

ROOT = Path(__file__).parents[2]
NOTHING: Mapping[str, str] = {}
NETWORKS = (TrainerNetwork("a", "IB"), TrainerNetwork("b", "IB"), TrainerNetwork(SHARED, "Socket"))


def table(clusters: Sequence[str], ranks_per_host: int = 1, off_fabric: Sequence[int] = ()) -> TrainerConfig:
    """Hosts by cluster; those of `off_fabric` have only the shared network."""
    ranks = []
    for host, cluster in enumerate(clusters):
        fabric = {} if host in off_fabric else {cluster: f"ib{host}"}
        interfaces = {**fabric, SHARED: f"eth{host}"}
        ranks += [TrainerRank(f"host-{host}", local, interfaces) for local in range(ranks_per_host)]
    return TrainerConfig(("python", "train.py"), "~/", NETWORKS, tuple(ranks))


@pytest.mark.parametrize("seed", range(20))
def test_group_uses_the_first_network_that_all_members_are_on(seed: int) -> None:
    drawn = random.Random(seed)
    hosts = [drawn.choice("ab") for _ in range(drawn.randint(1, 8))]
    off = [host for host in range(len(hosts)) if drawn.random() < 0.2]
    per_host = drawn.randint(1, 4)
    config = table(hosts, per_host, off)
    for _ in range(50):
        members = sorted(drawn.sample(range(len(config.ranks)), drawn.randint(1, len(config.ranks))))
        on = {member // per_host for member in members}
        network = network_of(config, members)
        if len(on) == 1:
            assert network is None
            continue
        clusters = {hosts[host] for host in on}
        inside = len(clusters) == 1 and not on & set(off)
        assert network is not None
        assert network.name == (clusters.pop() if inside else SHARED)


def test_group_without_a_common_network_is_refused_with_ranks_and_hosts() -> None:
    ranks = (TrainerRank("host-0", 0, {"a": "ib0"}), TrainerRank("host-1", 0, {"b": "ib0"}))
    config = TrainerConfig(("python",), "~/", NETWORKS, ranks)
    with pytest.raises(RuntimeError, match=r"share no network.*rank 0 \(host-0\) on a, rank 1 \(host-1\) on b"):
        network_of(config, [0, 1])
    with pytest.raises(RuntimeError, match="rank 7"):
        network_of(config, [0, 7])


class Options:
    """As ProcessGroupNCCL.Options: torch writes to it."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(net_name=None)
        self.is_high_priority_stream = False


class FakeTorch:
    """torch's module of groups, as far as the hook sees it; `made` are the groups, `new` the calls of new_group."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.new: list[dict[str, Any]] = []
        self.ProcessGroupNCCL = SimpleNamespace(Options=Options)
        self.Backend = str
        self.BackendConfig = lambda backend: SimpleNamespace(
            get_device_backend_map=lambda: (
                dict(part.split(":") for part in backend.split(",")) if ":" in backend else {"cpu": backend}
            )
        )
        self._world = SimpleNamespace(pg_map={"world": ("nccl", None)})

        def helper(
            group_size: int,
            group_rank: int,
            global_ranks_in_group: Sequence[int],
            backend: str,
            store: object,
            group_name: str,
            backend_options: Any = None,
            timeout: object = None,
            group_desc: str | None = None,
        ) -> str:
            del group_size, group_rank, backend, store, timeout, group_desc
            self.made.append({"ranks": tuple(global_ranks_in_group), "options": backend_options, "name": group_name})
            return group_name

        self._new_process_group_helper: Any = helper
        self._get_split_source: Any = lambda group: group

    def _get_default_group(self) -> str:
        return "world"

    def get_process_group_ranks(self, group: str) -> list[int]:
        assert group == "world"
        return [0, 1, 2, 3]

    def new_group(self, ranks: Sequence[int], **options: Any) -> tuple[int, ...]:
        self.new.append({"ranks": tuple(ranks), **options})
        return tuple(ranks)


def hooked(folder: Path, config: TrainerConfig, rank: int = 0, environ: Mapping[str, str] = NOTHING) -> FakeTorch:
    """torch after its import in the process of `rank`."""
    (folder / "trainer.json").write_text(config.to_json(), encoding="utf-8")
    c10d = FakeTorch()
    hook_groups(c10d, {TRAINER_VARIABLE: str(folder / "trainer.json"), "RANK": str(rank), **environ})
    return c10d


def options_of(c10d: FakeTorch, ranks: Sequence[int], backend: str = "nccl", given: Any = None) -> Any:
    c10d._new_process_group_helper(len(ranks), 0, list(ranks), backend, None, "g", backend_options=given)
    return c10d.made[-1]["options"]


def test_nccl_group_is_told_its_transport(tmp_path: Path) -> None:
    c10d = hooked(tmp_path, table("aabb", 2))
    assert options_of(c10d, [0, 1]) is None  # on one host
    assert options_of(c10d, [0, 2]).config.net_name == "IB"
    assert options_of(c10d, [0, 4], "cpu:gloo,cuda:nccl").config.net_name == "Socket"
    assert options_of(c10d, [0, 4], "gloo") is None
    assert options_of(c10d, [0]) is None
    assert options_of(c10d, [2, 4]) is None  # it is no member
    c10d._new_process_group_helper(8, 0, [], "nccl", None, "world")
    assert c10d.made[-1]["options"].config.net_name == "Socket"


def test_options_that_an_engine_shares_between_groups_stay_as_they_are(tmp_path: Path) -> None:
    c10d = hooked(tmp_path, table("aabb"))
    shared = Options()
    shared.is_high_priority_stream = True
    before = deepcopy(shared.__dict__)
    inside, across = options_of(c10d, [0, 1], given=shared), options_of(c10d, [0, 2], given=shared)
    assert (inside.config.net_name, across.config.net_name) == ("IB", "Socket")
    assert inside.is_high_priority_stream
    assert shared.config.net_name is before["config"].net_name is None


def test_options_of_another_backend_are_left_to_torch_which_refuses_them(tmp_path: Path) -> None:
    c10d, other = hooked(tmp_path, table("aabb")), SimpleNamespace(_threads=2)
    assert options_of(c10d, [0, 2], given=other) is other
    assert not hasattr(other, "config")


class FakeGloo:
    """torch's class of Gloo groups; `given` are the arguments behind store, rank and size."""

    class _Options:
        def __init__(self) -> None:
            self._devices: list[str] = []
            self._threads, self._timeout = 1, 60

    def __init__(self, store: object, rank: int, size: int, *given: Any, **named: Any) -> None:
        del store, rank, size
        self.given = given or named["options" if "options" in named else "timeout"]

    @staticmethod
    def create_device(interface: str, lazy_init: bool) -> str:
        assert not lazy_init
        return f"device of {interface}"


@pytest.mark.parametrize("by_name", [True, False])
def test_gloo_group_with_options_of_the_script_s_own_keeps_all_but_their_device(by_name: bool) -> None:
    own = FakeGloo._Options()
    own._devices, own._threads, own._timeout = ["device of eth9"], 7, 90
    words: tuple[Any, dict[str, Any]] = ((), {"options": own}) if by_name else ((own,), {})
    (made,) = bind_gloo(FakeGloo, lambda: "eth0")(None, 0, 2, *words[0], **words[1]).given
    assert (made._devices, made._threads, made._timeout) == (["device of eth0"], 7, 90)
    assert own._devices == ["device of eth9"]
    unplanned = bind_gloo(FakeGloo, lambda: None)(None, 0, 2, *words[0], **words[1]).given
    assert own in (unplanned, *([] if by_name else unplanned))


def test_gloo_group_keeps_its_timeout() -> None:
    (made,) = bind_gloo(FakeGloo, lambda: "eth0")(None, 0, 2, timeout=30).given
    assert (made._devices, made._threads, made._timeout) == (["device of eth0"], 2, 30)


def test_split_groups_are_made_anew(tmp_path: Path) -> None:
    c10d = hooked(tmp_path, table("aabb"), rank=2)
    split: Any = c10d.split_group  # type: ignore[attr-defined]
    assert c10d._get_split_source("world") is None
    assert split(split_ranks=[[0, 1], [3, 2]], group_desc="dp") == (2, 3)
    assert c10d.new[-1]["use_local_synchronization"]
    assert (c10d.new[-1]["backend"], c10d.new[-1]["group_desc"]) == ("nccl", "dp")
    assert split(split_ranks=[[0, 1]]) is None
    with pytest.raises(ValueError, match="empty"):
        split()


def test_members_in_different_numbers_of_groups_agree_on_the_name_of_a_new_one(tmp_path: Path) -> None:
    first: Any = hooked(tmp_path, table("aabb"), rank=0)
    second: Any = hooked(tmp_path, table("aabb"), rank=2)
    first._hash_ranks_to_str([0, 1])
    names = [each._hash_ranks_to_str([0, 2]) for each in (first, second)]
    assert names[0] == names[1] != first._hash_ranks_to_str([0, 2]) == second._hash_ranks_to_str([0, 2])


def test_default_group_made_again_by_a_script_without_a_real_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=len, flush=lambda: None))
    running = threading.active_count()
    c10d = hooked(tmp_path, table("aa"), environ={"HOLMES_METRICS_DIR": str(tmp_path)})
    for _ in range(3):
        c10d._new_process_group_helper(2, 0, [], "gloo", None, "world")
    faulthandler.unregister(signal.SIGUSR1)
    assert threading.active_count() == running + 1


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_NET", "Socket"), ("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "1")], ids=["nccl", "torchcomms"]
)
def test_setting_that_overrides_every_group_is_refused(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=f"{name}={value}"):
        hooked(tmp_path, table("ab"), environ={name: value})


def test_torchcomms_switched_on_by_a_script_is_refused_at_its_first_group(tmp_path: Path) -> None:
    c10d = hooked(tmp_path, table("ab"))
    c10d._use_torchcomms_enabled = lambda: True  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="torchcomms"):
        c10d._new_process_group_helper(2, 0, [], "nccl", None, "world")
    assert c10d.made == []


def test_groups_of_a_backend_that_cannot_be_bound_are_reported(tmp_path: Path) -> None:
    c10d = hooked(tmp_path, table("aabb"), environ={"HOLMES_METRICS_DIR": str(tmp_path)})
    for ranks in ([0, 1], [0, 2]):
        options_of(c10d, ranks, "mpi")
    options_of(c10d, [0, 1], "gloo")
    lines = (tmp_path / "notices-rank0.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["sentence"][:24] for line in lines] == ["groups of backend mpi ar"]


def test_torch_that_makes_groups_in_another_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trainer.json").write_text(table("ab").to_json(), encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"torch 2\.11 to 2\.15"):
        hook_groups(SimpleNamespace(), {TRAINER_VARIABLE: str(tmp_path / "trainer.json"), "RANK": "0"})


def test_groups_are_written_down_with_their_networks(tmp_path: Path) -> None:
    c10d = hooked(tmp_path, table("aabb"), environ={"HOLMES_METRICS_DIR": str(tmp_path)})
    options_of(c10d, [0, 1])
    options_of(c10d, [0, 3])
    lines = (tmp_path / "groups-rank0.jsonl").read_text(encoding="utf-8").splitlines()
    seen = [(each["ranks"], each["network"], each["interface"], each["net_name"]) for each in map(json.loads, lines)]
    assert seen == [([0, 1], "a", "ib0", "IB"), ([0, 3], SHARED, "eth0", "Socket")]


def logged(folder: Path, *communicators: tuple[int, str]) -> None:
    """Log communicators as NCCL 2.28 does, each with its number of ranks and its network."""
    with (folder / "nccl.log").open("a", encoding="utf-8") as log:
        for size, network in communicators:
            log.write(f"h:7:9 [0] NCCL INFO Using network {network}\n")
            log.write(
                f"h:7:9 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks {size} cudaDev 0 - Init START\n"
            )


def test_a_communicator_on_another_transport_than_its_groups_were_told_is_reported_once(tmp_path: Path) -> None:
    check = NcclCheck({"NCCL_DEBUG_FILE": str(tmp_path / "nccl.log")})
    for size, told in ((4, "IB"), (4, "Socket"), (8, "IB"), (16, None), (2, "IB")):
        check.expect(size, told)
    assert list(check.differences()) == []
    logged(tmp_path, (4, "IB"), (4, "Socket"), (16, "Socket"), (8, "IB"), (8, "Socket"), (8, "Socket"), (3, "Socket"))
    assert list(check.differences()) == [
        "NCCL made a communicator of 8 ranks over Socket, but its groups were assigned IB"
    ]
    logged(tmp_path, (8, "Socket"), (4, "AWS Libfabric"))
    (sentence,) = check.differences()
    assert "of 4 ranks over AWS Libfabric, but its groups were assigned IB or Socket" in sentence


def test_a_communicator_of_two_may_carry_messages_of_any_group(tmp_path: Path) -> None:
    check = NcclCheck({"NCCL_DEBUG_FILE": str(tmp_path / "nccl.log")})
    check.expect(2, "IB")
    check.expect(8, "Socket")
    logged(tmp_path, (2, "Socket"))
    assert list(check.differences()) == []
    logged(tmp_path, (2, "IBext"))
    assert len(list(check.differences())) == 1


def python(tmp_path: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A Python of a rank, with the hook first and a folder of the user's behind it on PYTHONPATH."""
    environment = {"PYTHONPATH": f"{ROOT / HOOK_FOLDER}:{tmp_path}", "PATH": "/usr/bin:/bin", **environ}
    command = [sys.executable, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


RAN = "import sys; print('torch' in sys.modules, sys.modules['sitecustomize'].__file__, end=' ')"


def test_hook_runs_the_sitecustomize_that_it_shadows_and_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine', end=' ')\n", encoding="utf-8")
    for environ in ({}, {TRAINER_VARIABLE: str(tmp_path / "trainer.json"), "RANK": "0"}):
        done = python(tmp_path, "-c", RAN, **environ)
        assert done.stdout.split() == ["mine", "False", str(tmp_path / "sitecustomize.py")], done.stderr


@pytest.mark.parametrize(
    "options", few_of(3, ["-c", "-I -c", "-E -c", "-S -c", "-us -c", "-uEc", "-W error -S -c", "-X dev -c"])
)
def test_commands_are_refused_whose_python_does_not_run_the_hook(options: str, tmp_path: Path) -> None:
    words = [*options.split(), "import sys; print('holmes_runtime.hook.watch_import' in sys.modules)"]
    done = python(tmp_path, *words, **{TRAINER_VARIABLE: "x", "RANK": "0"})
    assert done.stdout.strip() == str(unhooked_python(["numactl", "-N", "0", sys.executable, *words]) is None)


def test_rank_whose_hook_cannot_be_activated_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "holmes_runtime").mkdir()
    (tmp_path / "holmes_runtime" / "__init__.py").write_text("raise OSError('damaged')\n", encoding="utf-8")
    environ = {TRAINER_VARIABLE: "x", "RANK": "0"}
    done = python(tmp_path, "-c", "print('ran')", **environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the hook cannot be activated" in done.stderr
