"""Host patterns and host lists: what they expand to, and that nothing else gets through."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.errors import HolmesError
from holmes_core.hosts.host_lists import read_host_list
from holmes_core.hosts.host_pattern import NAME_PATTERN, expand_pattern
from holmes_core.hosts.hosts_file import HostsFile, expand_entries, read_hosts_file


@pytest.mark.parametrize(
    ("pattern", "hosts"),
    [
        ("login1", "login1"),
        ("node[01-04]", "node01 node02 node03 node04"),
        ("node[1,3,5-7]", "node1 node3 node5 node6 node7"),
        ("node[8-11]", "node8 node9 node10 node11"),
        ("node[08-11]", "node08 node09 node10 node11"),
        ("node[98-101]", "node98 node99 node100 node101"),
        ("node[098-101]", "node098 node099 node100 node101"),
        ("rack[1-2]-n[01-02]", "rack1-n01 rack1-n02 rack2-n01 rack2-n02"),
        ("gpu[001-002,010],login1", "gpu001 gpu002 gpu010 login1"),
        (" a[1-2] , b.site.example ", "a1 a2 b.site.example"),
        ("n[1-2]x[3-4].ib", "n1x3.ib n1x4.ib n2x3.ib n2x4.ib"),
        ("10.0.0.[1-3]", "10.0.0.1 10.0.0.2 10.0.0.3"),
    ],
)
def test_pattern_is_expanded_in_its_order(pattern: str, hosts: str) -> None:
    assert expand_pattern(pattern) == tuple(hosts.split())


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "column 1: a host name is missing"),
        ("a,", "column 3: a host name is missing"),
        ("a,,b", "column 3: a host name is missing before the comma"),
        ("node[1-4", "column 5: '[' has no partner"),
        ("node1-4]", "column 8: ']' has no partner"),
        ("node[1-[2]]", "column 5: '[' has no partner"),
        ("node[]", "column 6: '' is neither a number nor a range"),
        ("node[1,]", "column 8: '' is neither a number"),
        ("node[a-c]", "column 6: 'a-c' is neither a number"),
        ("node[1--3]", "column 6: '1--3' is neither a number"),
        ("node[-3]", "column 6: '-3' is neither a number"),
        ("node[1,7-3]", "column 8: 7-3 runs backwards"),
        ("node[1-010]", "column 6: 1-010 pads its ends differently"),
        ("node[01-010]", "column 6: 01-010 pads its ends differently"),
        ("node*", "column 5: '*' matches names, it does not make them"),
        ("node1 node2", "column 6: ' ' cannot stand in a host name"),
        ("node[1-3]-", "'node1-' is not a valid host name"),
        ("-oProxyCommand=x", "column 15: '=' cannot stand"),
        ("-v", "'-v' is not a valid host name"),
        ("node[1,1]", "node1 is listed twice"),
        ("node[1-100001]", "100001 hosts, more than 100000"),
        ("n[1-999999999]x[1-999999999]", "hosts, more than 100000"),
        ("n[1-9999999999999999999999999999]", "is neither a number"),
        (f"{'n' * 300}", "is not a valid host name"),
    ],
)
def test_malformed_pattern_is_refused_with_text_and_column(pattern: str, problem: str) -> None:
    with pytest.raises(HolmesError) as refused:
        expand_pattern(pattern)
    assert problem in refused.value.what
    assert refused.value.what.startswith(f"host pattern {pattern[:77]!r}"[:70])


STEM = st.from_regex(r"[a-z][a-z0-9.-]{0,3}[a-z]", fullmatch=True)


@st.composite
def generated(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A pattern and the hosts it was made to stand for."""
    patterns, hosts = [], []
    for index in range(draw(st.integers(1, 3))):
        text, names = "", [""]
        for level in range(draw(st.integers(0, 2))):
            start, more = draw(st.integers(0, 120)), draw(st.integers(0, 4))
            width = draw(st.sampled_from([1, 4]))
            numbers = [str(number).zfill(width) for number in range(start, start + more + 1)]
            part = f"h{index}{level}{draw(STEM)}"
            as_range = draw(st.booleans())
            text += f"{part}[{f'{numbers[0]}-{numbers[-1]}' if as_range else ','.join(numbers)}]"
            names = [f"{name}{part}{number}" for name in names for number in numbers]
        tail = f"t{index}{draw(STEM)}"
        patterns.append(text + tail)
        hosts += [name + tail for name in names]
    return ",".join(patterns), hosts


@given(generated())
def test_generated_pattern_gives_the_hosts_it_was_made_from(case: tuple[str, list[str]]) -> None:
    pattern, hosts = case
    assert list(expand_pattern(pattern)) == hosts


PIECES = st.sampled_from([*"abz019[]-,. _;|&$`'\"\\<>()*?!~{}%@:=#\n\r\t\0/é٣", "node", "[1-3]", "$(id)", "01-04"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_whatever_is_written_only_strict_names_come_out(text: str) -> None:
    try:
        names = expand_pattern(text)
    except HolmesError:
        return
    assert all(re.fullmatch(NAME_PATTERN, name) for name in names)
    assert not set("".join(names)) & set(";|&$`'\"\\<>()*?!~{}%@:=#\n\r\t\0/ ")


def write(folder: Path, text: str) -> Path:
    path = folder / "hostfile"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a1\na2\n", "a1 a2"),
        ("# the cluster\n\na1 slots=8\na2 slots=8 max_slots=16  # spare\n", "a1 a2"),
        ("a1:8\na2:4\n", "a1 a2"),
        ("gpu[001-003,010],login1\n", "gpu001 gpu002 gpu003 gpu010 login1"),
        ("a[1-2] slots=4\r\nb[1-2] slots=4\r\n", "a1 a2 b1 b2"),
        ("a1, a2 ,a3\n", "a1 a2 a3"),
        ("\ufeffa1\n", "a1"),
    ],
)
def test_host_list_of_each_kind_is_read(tmp_path: Path, text: str, hosts: str) -> None:
    entries = read_host_list(write(tmp_path, text))
    assert [entry.name for entry in entries] == hosts.split()
    assert {entry.user for entry in entries} == {None}


@pytest.mark.parametrize("text", ["bob@a1 slots=8\n", "a1 slots=8 user=bob\n", "a1 username=bob\n", "bob@a1:8\n"])
def test_user_of_a_hostfile_is_kept(tmp_path: Path, text: str) -> None:
    (entry,) = read_host_list(write(tmp_path, text))
    assert (entry.name, entry.user) == ("a1", "bob")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a1\na2\n\na1\n", "line 4: host a1 is in line 1 already"),
        ("a[1-3]\na2 slots=1\n", "line 2: host a2 is in line 1 already"),
        ("a1\na[2-\n", "line 2: host pattern 'a[2-': column 2: '[' has no partner"),
        ("a1 slots=eight\n", "line 1: slots=eight is not a number of processes"),
        ("a1 slots=0\n", "line 1: slots=0 is not a number of processes"),
        ("a1 slot=8\n", "line 1: 'slot=8' is not understood"),
        ("a1 a2\n", "line 1: 'a2' is not understood"),
        ("a1:2222\n", "line 1: :2222 is not a number of processes"),
        ("a1:\n", "line 1: : is not a number of processes"),
        ("-x@a1\n", "line 1: '-x' is not a valid user name"),
        ("@a1\n", "line 1: '' is not a valid user name"),
        ("$(id)@a1\n", "line 1: '$(id)' is not a valid user name"),
        ("bob@a1 user=eve\n", "line 1: two users, bob and eve"),
        ("a1;reboot\n", "line 1: host pattern 'a1;reboot': column 3: ';' cannot stand"),
        ("[all]\na1\n", "line 1: host pattern '[all]': column 2: 'all' is neither a number"),
        ("# nothing\n", "lists no host"),
    ],
)
def test_faulty_host_list_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(HolmesError) as refused:
        read_host_list(path)
    assert problem in refused.value.what
    assert refused.value.what.startswith(str(path))


def test_binary_and_missing_host_lists_are_refused(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HolmesError, match="byte 0 is not UTF-8"):
        read_host_list(tmp_path / "hostfile")
    with pytest.raises(HolmesError, match="No such file"):
        read_host_list(tmp_path / "none")


def test_entries_of_hosts_yaml_may_be_patterns(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(
        "hosts:\n- node[01-02]\n- name: b[1-2]\n  user: eve\n  cluster: b\n  address: 10.0.0.[7-8]\n- c1,c2\n",
        encoding="utf-8",
    )
    hosts = read_hosts_file(path).hosts
    assert [host.name for host in hosts] == ["node01", "node02", "b1", "b2", "c1", "c2"]
    assert [(host.user, host.cluster, host.address) for host in hosts[2:4]] == [
        ("eve", "b", "10.0.0.7"),
        ("eve", "b", "10.0.0.8"),
    ]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("[{name: 'a[1-2]', address: 10.0.0.1}]", r"address 10\.0\.0\.1 gives 1 for the 2 hosts of a\[1-2\]"),
        ("['a[1-2]', a2]", "host a2 is listed twice"),
        ("['a[1-']", r"host pattern 'a\[1-': column 2"),
        ("['a[1-2]$(id)']", r"column 7: '\$' cannot stand"),
        ("['a;b']", "must be a name of letters"),
    ],
)
def test_faulty_patterns_in_hosts_yaml_are_refused(tmp_path: Path, entries: str, problem: str) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(f"hosts: {entries}\n", encoding="utf-8")
    with pytest.raises(HolmesError, match=problem) as refused:
        read_hosts_file(path)
    assert refused.value.what.startswith(str(path))


def test_what_is_no_entry_passes_to_be_refused_as_such() -> None:
    assert list(expand_entries([7, None, {"nam": "a[1-2]"}, "a1"])) == [7, None, {"nam": "a[1-2]"}, {"name": "a1"}]


def test_many_hosts_are_checked_quickly() -> None:
    hosts = HostsFile.model_validate({"hosts": ["n[00001-20000]"]}).hosts
    assert len(hosts) == 20000
