"""What a node says of its software is read from files; nothing is imported for it."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holmes_runtime.config.messages import NodeNcclSetting
from holmes_runtime.config.node_config import NodeConfig
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.node.checkpoint_files.checkpoint_folder import CheckpointFolder
from holmes_runtime.node.node_facts import read_facts
from holmes_runtime.node.start_torchrun import rank_environment

from .launched_runs import make_config

CONFIG = NodeConfig(
    run_id="r",
    host="a1",
    node_rank=0,
    num_ranks=1,
    node_addresses=("127.0.0.1",),
    master_port=29500,
    addresses={"lo": "127.0.0.1"},
    gpus=(),
    checkpoint_path=None,
    inputs=(),
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


def test_what_the_job_names_is_looked_for_from_where_ranks_start(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").touch()
    named = (str(tmp_path), "text.jsonl", "/none/tokenizer.json", "relative.txt")
    facts = read_facts(CONFIG._replace(inputs=named), tmp_path)
    assert facts.missing_inputs == ("/none/tokenizer.json", str(tmp_path / "relative.txt"))


def test_data_that_is_no_text_is_named_before_a_rank_starts(tmp_path: Path) -> None:
    (tmp_path / "part.txt").write_bytes(b"PAR1" + bytes(100))
    (tmp_path / "run_config.json").write_text(make_config(tmp_path / "part.txt").to_json())

    (reason,) = read_facts(CONFIG, tmp_path).wrong_inputs

    assert f"{tmp_path}/part.txt is Parquet, not text" in reason


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"resume": True}, False),
        ({"resume": True, "from_scratch": True}, True),
        ({"weights": "/no"}, False),
    ],
)
def test_weights_of_another_model_are_named_where_a_rank_would_read_them(
    changes: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": 16, "n_positions": 32, "n_head": 2}')
    config = replace(
        make_config(tmp_path / "text.txt"), weights=str(tmp_path), checkpoint=CheckpointSettings("/c", 1, 1, 2)
    )
    (tmp_path / "run_config.json").write_text(replace(config, **changes).to_json())

    reasons = read_facts(CONFIG, tmp_path).wrong_inputs

    assert ("n_layer is None, not a whole number" in "".join(reasons)) == expected
    assert all(reason.startswith(f"weights: {tmp_path}/config.json: ") for reason in reasons)


def test_what_compiling_lacks_is_asked_of_the_ranks_environment(tmp_path: Path) -> None:
    facts = read_facts(CONFIG._replace(gpus=(0,), environment={"CC": "no-such-compiler"}), tmp_path)
    assert facts.compile_lacks == "a C compiler: there is no no-such-compiler"


def test_python_without_torch_has_no_version_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # another test's; a node's agent never imports it
    facts = read_facts(CONFIG, tmp_path)
    assert (facts.torch, facts.nccl) == (None, None)
    assert facts.python == ".".join(map(str, sys.version_info[:3]))
    assert facts.local_addresses == ("127.0.0.1",)


def test_what_torch_is_built_for_is_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "torch"
    made.mkdir()
    (made / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = []
    for cuda in ("'13.0'", "None"):
        lines = ["__version__ = '2.13.0+x'", f"cuda: Optional[str] = {cuda}", "hip: Optional[str] = None"]
        (made / "version.py").write_text("\n".join(lines))
        facts = read_facts(CONFIG, tmp_path)
        found.append((facts.torch, facts.torch_cuda, facts.driver))
    assert found == [("2.13.0+x", "13.0", None), ("2.13.0+x", None, None)]


def test_a_setting_in_the_file_that_the_job_names_is_found(tmp_path: Path) -> None:
    conf = tmp_path / "my.conf"
    conf.write_text("NCCL_NET=Socket\n")
    facts = read_facts(CONFIG._replace(environment={"NCCL_CONF_FILE": str(conf)}), tmp_path)
    assert NodeNcclSetting(str(conf), "NCCL_NET", "Socket") in facts.nccl_settings


@pytest.mark.parametrize(
    ("gpus", "user", "expected"),
    [
        ((), {}, (None, None)),
        ((0,), {}, ("20000", "INFO")),
        ((0,), {"NCCL_DEBUG": "WARN", "TORCH_FR_BUFFER_SIZE": "7"}, ("7", "WARN")),
    ],
    ids=["cpu", "gpu", "the user's"],
)
def test_ranks_on_gpus_keep_records_and_have_nccl_say_what_it_sets_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[int, ...],
    user: dict[str, str],
    expected: tuple[str | None, ...],
) -> None:
    names = ("TORCH_FR_BUFFER_SIZE", "NCCL_DEBUG")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "holmes" / "runs" / "r" / "0-0"
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = rank_environment(CONFIG._replace(gpus=gpus, environment=user), folder)
    assert tuple(environment.get(name) for name in names) == expected
    writes_log = bool(gpus) and "NCCL_DEBUG" not in user
    assert environment.get("NCCL_DEBUG_FILE") == (str(folder / "nccl-%h-%p.log") if writes_log else None)


@pytest.mark.parametrize(("path", "expected"), [(None, None), ("/saved", "/dev/shm/holmes-r-a1")])
def test_ranks_keep_checkpoints_in_memory_where_they_save_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None, expected: str | None
) -> None:
    folder = tmp_path / "holmes" / "runs" / "r" / "0-0"
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    environment = rank_environment(CONFIG._replace(checkpoint_path=path), folder)

    assert environment.get("HOLMES_MEMORY_FOLDER") == expected


def test_newest_checkpoint_is_found_with_and_without_its_latest_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = CheckpointFolder(tmp_path / "ck", keep_last=2)

    def newest() -> str | None:
        found = read_facts(CONFIG._replace(checkpoint_path="~/ck"), tmp_path).checkpoint
        assert found is not None
        assert not found.in_cache
        assert found.steps == ((40,) if found.newest else ())
        return found.newest

    assert newest() is None
    folder.make_ready()
    folder.partial(40).mkdir()
    assert newest() is None
    folder.publish(40)
    assert newest() == "step-00000040"
    (folder.path / "latest").unlink()
    assert newest() == "step-00000040"


def test_a_link_into_our_cache_is_seen_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cache" / "holmes" / "runs").mkdir(parents=True)
    (tmp_path / "ck").symlink_to(tmp_path / ".cache" / "holmes" / "runs")
    found = read_facts(CONFIG._replace(checkpoint_path=str(tmp_path / "ck")), tmp_path).checkpoint
    assert found is not None
    assert found.in_cache
