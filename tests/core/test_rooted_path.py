"""Paths of job.yaml and hosts.yaml: whole ones are taken, and all others are refused by their key."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_core.errors import WRONG_USAGE, HolmesError
from holmes_core.hosts.hosts_file import HostsFile, read_hosts_file
from holmes_core.records.access import Access
from holmes_core.records.job import Job
from holmes_core.records.parse_record import parse

WHOLE = ("/ck", "/data/my run/ck", "~/ck", "~/holmes/ck", "/home/me/.cache/hf", "/home/me/holmes/.cache")
OTHERS = (
    "",
    ".",
    "ck",
    "./ck",
    "../ck",
    "~",
    "~other/ck",
    "$HOME/ck",
    "file:///ck",
    "s3://bucket/ck",
    "/ck\nrm",
    "\\ck",
)
IN_CACHE = ("~/.cache/holmes", "~/.cache/holmes/runs/x/0-0/ck", "/root/.cache/holmes/ck", "/a/../.cache//holmes/./ck")


def job(**changes: object) -> Job:
    model = {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 16}
    base = {"model": model, "data": {"path": "/data/text"}, "steps": 3, "global_batch_size": 8}
    return parse(Job, {**base, **changes}, "job.yaml")


KEYS = {
    "checkpoint.path": lambda path: job(checkpoint={"path": path, "every_steps": 1}),
    "data.path": lambda path: job(data={"path": path}),
    "data.path.0.path": lambda path: job(data={"path": [{"path": path, "weight": 1}]}),
    "data.tokenizer": lambda path: job(data={"path": "/data/text", "tokenizer": path}),
    "weights": lambda path: job(weights=path),
    "launch.secrets.TOKEN": lambda path: job(launch={"secrets": {"TOKEN": path}}),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("path", WHOLE)
def test_whole_paths_are_taken_as_they_are(key: str, path: str) -> None:
    assert path in KEYS[key](path).model_dump_json()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("path", [*OTHERS, *IN_CACHE])
def test_other_paths_are_refused_by_key(key: str, path: str) -> None:
    with pytest.raises(HolmesError) as caught:
        KEYS[key](path)
    assert caught.value.exit_code == WRONG_USAGE
    assert key.removesuffix(".0.path") in caught.value.what
    assert f"(value {path!r})" in caught.value.what


@pytest.mark.parametrize("python", ["venv/bin/python", "./python", "", "~me/python"])
def test_python_of_hosts_yaml_is_a_name_or_a_whole_path(python: str) -> None:
    for text in ({"hosts": ["a1"], "python": python}, {"hosts": [{"name": "a1", "python": python}]}):
        with pytest.raises(HolmesError, match="python"):
            parse(HostsFile, text, "hosts.yaml")


def test_python_in_the_home_folder_is_found_by_the_shell_of_the_host() -> None:
    assert Access(python="~/my env/bin/python").python_word == "\"$HOME\"/'my env/bin/python'"
    assert Access(python="python3").python_word == "python3"


@pytest.mark.parametrize("at_host", [True, False])
def test_key_files_are_looked_for_beside_hosts_yaml(tmp_path: Path, at_host: bool) -> None:
    file = tmp_path / "hosts.yaml"
    entry = "hosts: [{name: a1, identity_file: key}]" if at_host else "identity_file: key\nhosts: [a1]"
    file.write_text(entry, encoding="utf-8")
    with pytest.raises(HolmesError, match="identity_file: key: no such file"):
        read_hosts_file(file)
    (tmp_path / "key").mkdir()
    with pytest.raises(HolmesError, match="identity_file: key: a folder, not a file"):
        read_hosts_file(file)
    (tmp_path / "key").rmdir()
    (tmp_path / "key").write_text("", encoding="utf-8")
    hosts = read_hosts_file(file)
    assert hosts.access(hosts.hosts[0]).identity_file == str(tmp_path / "key")
