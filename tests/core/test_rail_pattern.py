"""`rails:` names devices as NCCL_IB_HCA does, with the shell's wildcards and numbers in brackets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import read_hosts_file
from holmes_core.hosts.rail_pattern import checked_rail_pattern, named_by, names_port


@pytest.mark.parametrize(
    ("pattern", "names", "leaves"),
    [
        ("mlx5_0", ["mlx5_0:1", "mlx5_0:2"], ["mlx5_00:1", "mlx5_1:1"]),
        ("mlx5_0:1", ["mlx5_0:1"], ["mlx5_0:2"]),
        ("mlx5_[0-3,10]", ["mlx5_0:1", "mlx5_3:1", "mlx5_10:1"], ["mlx5_4:1", "mlx5_1x:1"]),
        ("mlx5_[8-11]", ["mlx5_9:1", "mlx5_11:1"], ["mlx5_1:1", "mlx5_12:1"]),
        ("mlx5_*", ["mlx5_0:1", "mlx5_bond_0:1"], ["mlx4_0:1"]),
        ("rocep?s0", ["rocep1s0:1"], ["rocep10s0:1"]),
        ("ibp.*", ["ibp.1:1"], ["ibpx1:1"]),
    ],
)
def test_pattern_names_ports(pattern: str, names: list[str], leaves: list[str]) -> None:
    def is_named(port: str) -> bool:
        device, _, number = port.partition(":")
        return names_port(pattern, device, int(number))

    assert [port for port in (*names, *leaves) if is_named(port)] == names
    assert named_by(["none", pattern], names[0].partition(":")[0], int(names[0].partition(":")[2]))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("", "names no device"),
        (":1", "names no device"),
        ("mlx5_0:x", "'x' is not a port number"),
        ("mlx5_[7-0]", "7-0 runs backwards"),
        ("mlx5_[a-c]", "'a-c' is neither a number nor a range"),
        ("mlx5_[0-9999]", "more than 1000 numbers"),
        ("mlx5_[0", "column 6: '[' cannot stand here"),
        ("mlx5 0", "column 5: ' ' cannot stand here"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        checked_rail_pattern(pattern)


def test_hosts_yaml_states_rails_for_all_hosts_and_for_one(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text("rails: ['mlx5_[0-7]']\nhosts: [a, {name: b, rails: [mlx5_2]}]\n", encoding="utf-8")
    read = read_hosts_file(file)
    assert (read.rails, [host.rails for host in read.hosts]) == (("mlx5_[0-7]",), [None, ("mlx5_2",)])


@pytest.mark.parametrize(("text", "key"), [("rails: ['mlx5_[']", "rails.0"), ("rails: []", "rails")])
def test_hosts_yaml_with_no_pattern_names_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(f"{text}\nhosts: [a]\n", encoding="utf-8")
    with pytest.raises(HolmesError) as caught:
        read_hosts_file(file)
    assert f"{file}: line 1: {key}: " in caught.value.what
