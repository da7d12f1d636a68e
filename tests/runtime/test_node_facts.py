"""What a node says of its software is read from files; nothing is imported for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holmes_runtime.config.node_config import NodeConfig
from holmes_runtime.node.node_facts import read_facts

CONFIG = NodeConfig(
    run_id="r",
    host="a1",
    node_rank=0,
    num_nodes=1,
    num_ranks=1,
    master_address="127.0.0.1",
    master_port=29500,
    addresses={"lo": "127.0.0.1"},
    gpus=(),
    checkpoint_path=None,
    environment={},
    secrets=(),
    silence_limit_s=15.0,
    detached=False,
)


def test_nccl_is_that_of_the_package_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert read_facts(CONFIG, tmp_path).nccl == "2.27.5"


def test_a_network_plugin_is_looked_for_where_the_plan_names_one(tmp_path: Path) -> None:
    library = tmp_path / "libnccl-net.so"
    planned = CONFIG._replace(environment={"NCCL_NET_PLUGIN": str(library)})
    by_ending = CONFIG._replace(environment={"NCCL_NET_PLUGIN": "ofi"})
    found = [read_facts(config, tmp_path).net_plugin_there for config in (CONFIG, by_ending, planned)]
    assert found == [None, None, False]
    library.touch()
    assert read_facts(planned, tmp_path).net_plugin_there is True


def test_python_without_torch_has_no_version_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # another test's; a node's agent never imports it
    facts = read_facts(CONFIG, tmp_path)
    assert (facts.torch, facts.nccl) == (None, None)
    assert facts.python == ".".join(map(str, sys.version_info[:3]))
    assert facts.local_addresses == ("127.0.0.1",)
