"""A fault in hosts.yaml or job.yaml is said in words of those files, not of Python's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.job import Job
from holmes_core.records.parse_record import PATTERNS, parse
from holmes_core.records.plan import Plan
from holmes_core.records.record import Record
from holmes_core.records.record_file import read_user_file

HOSTS: dict[str, Any] = {"hosts": ["a1"]}


def refused(cls: type[Record], data: object) -> HolmesError:
    with pytest.raises(HolmesError) as caught:
        parse(cls, data, "file")
    return caught.value


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "file: is empty, not keys and values"),
        (["a1"], "file: holds a list, not keys and values"),
        ({"hosts": []}, "file: hosts: must list at least 1 (value ())"),
        ({"hosts": "a1"}, "file: hosts: must be a list, such as [a, b] (value 'a1')"),
        ({"hosts": [7]}, "file: hosts.0: must be keys and values, such as {key: value} (value 7)"),
        (
            {"hosts": ["a;b"]},
            "file: hosts.0.name: must be a name of letters, digits, dots, dashes and underscores that begins and ends "
            "with a letter or digit (value 'a;b')",
        ),
        ({**HOSTS, "port": "x"}, "file: port: must be a whole number (value 'x')"),
        ({**HOSTS, "port": 1.5}, "file: port: must be a whole number (value 1.5)"),
        ({**HOSTS, "transport": "rsh"}, "file: transport: must be 'ssh', 'local' or 'slurm' (value 'rsh')"),
        ({**HOSTS, "speeds_gbps": {"lo": "fast"}}, "file: speeds_gbps.lo: must be a number (value 'fast')"),
        ({**HOSTS, "activate": "a\nb"}, "file: activate: must be one line (value 'a\\nb')"),
    ],
)
def test_what_a_value_must_be_is_all_that_is_said(data: object, said: str) -> None:
    assert refused(HostsFile, data).what == said


def test_an_empty_file_is_told_what_it_needs_at_least() -> None:
    assert refused(HostsFile, None).hint == "it needs at least `hosts:`"


def test_a_file_that_holmes_makes_is_to_be_made_again_and_not_edited() -> None:
    error = refused(Plan, {"schema_version": 1, "speed": 7})
    assert "job: missing" in error.what
    assert error.hint == "make it again with `holmes plan job.yaml`"


YAML = """\
# all of ours
port: &port x
defaults: {}
hosts:
  - a1

  - name: a2
    address: [10.0.0.2,
              10.0.0.3]
    hints: {gpu: 1}
  - &last
    nam: a3
    port: *port
  - <<: *last
    name: a4
  - {name: a5, "user":
       7}
"""


def test_a_fault_in_yaml_is_told_with_the_line_to_mend(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(YAML, encoding="utf-8")

    with pytest.raises(HolmesError) as caught:
        read_user_file(HostsFile, file)

    faults = caught.value.what.removeprefix(f"{file}: ").split("; ")
    assert [fault[: fault.index(" (")] if " (" in fault else fault for fault in faults] == [
        "line 2: port: must be a whole number",
        "line 8: hosts.1.address: must be text, in quotes if it is a number",
        "line 10: hosts.1.hints.gpu: unknown key",
        "line 11: hosts.2.name: missing",
        "line 13: hosts.2.port: must be a whole number",
        "line 12: hosts.2.nam: unknown key",
        "line 14: hosts.3.port: must be a whole number",
        "line 14: hosts.3.nam: unknown key",
        "line 16: hosts.4.user: must be text, in quotes if it is a number",
        "line 3: defaults: unknown key",
    ]


def test_a_fault_in_a_file_of_json_is_told_by_its_key_alone(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    file.write_text('{"hosts": []}', encoding="utf-8")

    with pytest.raises(HolmesError) as caught:
        read_user_file(HostsFile, file)

    assert caught.value.what == f"{file}: hosts: must list at least 1 (value ())"


def patterns(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "pattern" and isinstance(value, str):
                yield value
            elif key == "patternProperties":
                yield from value
            yield from patterns(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from patterns(each)


@pytest.mark.parametrize("cls", [HostsFile, Job])
def test_every_pattern_of_the_user_s_files_has_its_words(cls: type[Record]) -> None:
    found = set(patterns(cls.model_json_schema()))
    assert found
    assert found <= set(PATTERNS)
