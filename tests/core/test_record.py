"""Records: what goes into a file comes out of it, and errors say which file, key and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.errors import WRONG_USAGE, HolmesError
from holmes_core.hosts.hosts_file import HostsFile, read_hosts_file
from holmes_core.records.access import Access
from holmes_core.records.devices import Gpu, Netdev, Nic
from holmes_core.records.inventory import Cluster, Finding, Host, Inventory, Network, NetworkPort
from holmes_core.records.job import Job
from holmes_core.records.parse_record import parse
from holmes_core.records.plain_data import MAX_JSON_BYTES
from holmes_core.records.record_file import read_file, read_user_file, write_atomically, write_signed
from holmes_core.records.run import Failure, MeasuredTraffic, Run
from holmes_runtime.config.run_settings import DataSource

JOB_TEXT = """
model: {num_layers: 4, hidden_size: 32, num_heads: 2, seq_length: 16}
data: {path: /data/text}
steps: 3
global_batch_size: 8
"""

names = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
texts = st.text(max_size=20)
addresses = st.from_regex(r"[a-z0-9][a-z0-9.:%_-]{0,20}", fullmatch=True)
programs = st.sampled_from(("python3", "python3.12", "/opt/conda/bin/python", "~/venv/bin/python"))
rates = st.none() | st.floats(min_value=1, max_value=1e12)
counts = st.integers(min_value=0, max_value=2**60)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def inventories(draw: Any) -> Inventory:
    hosts = [
        Host(
            name=name,
            access=Access(address=draw(st.none() | addresses), python=draw(programs)),
            reachable=draw(st.booleans()),
            gpus=tuple(draw(st.lists(st.builds(Gpu, name=texts, index=st.integers(0, 15), memory_bytes=counts)))),
            nics=tuple(draw(st.lists(st.builds(Nic, device=texts, rate_gbps=rates), max_size=2))),
            netdevs=tuple(draw(st.lists(st.builds(Netdev, name=texts, speed_bytes_per_s=rates), max_size=2))),
        )
        for name in draw(st.lists(names, unique=True, max_size=4))
    ]
    reachable = [host.name for host in hosts if host.reachable]
    ports = tuple(NetworkPort(host=name, netdev=None, address=None, bandwidth_bytes_per_s=None) for name in reachable)
    fabric = Network(name="c", kind="RoCE", subnet=None, ports=ports)
    clusters = (Cluster(name="c", hosts=tuple(reachable), fabric=fabric),) if reachable else ()
    findings = draw(st.lists(st.builds(Finding, evidence=texts, remedy=texts), max_size=2))
    return Inventory(hosts=tuple(hosts), clusters=clusters, shared=None, findings=tuple(findings))


failures = st.builds(Failure, message=texts, rank=st.none() | counts, time_s=finite)
runs = st.builds(
    Run,
    run_id=texts,
    started_at_s=finite,
    ended_at_s=st.none() | finite,
    first_loss=st.none() | finite,
    last_loss=st.none() | finite,
    tokens_per_s=st.none() | finite,
    step_s=st.none() | finite,
    traffic=st.lists(st.builds(MeasuredTraffic, sent_bytes=counts), max_size=2).map(tuple),
    failures=st.lists(failures, max_size=2).map(tuple),
)


@given(inventory=inventories())
def test_inventory_survives_its_file(inventory: Inventory, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("inventory") / "inventory.json"
    write_atomically(path, inventory.to_json())
    assert read_file(Inventory, path) == inventory


@given(run=runs)
def test_run_survives_its_file(run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("run") / "run.json"
    write_atomically(path, run.to_json())
    assert read_file(Run, path) == run


@given(layers=st.integers(1, 200), batch=st.integers(1, 10**6), rate=st.floats(1e-9, 1))
def test_job_survives_its_file(layers: int, batch: int, rate: float) -> None:
    data = {
        "model": {"num_layers": layers, "hidden_size": 32, "num_heads": 2, "seq_length": 16},
        "data": {"path": "/x"},
        "steps": 1,
        "global_batch_size": batch,
        "optimizer": {"learning_rate": rate},
    }
    job = parse(Job, data, "job.yaml")
    assert parse(Job, json.loads(job.model_dump_json()), "again") == job


def test_a_changed_copy_finds_its_own_hosts() -> None:
    one, other = (Host(name="a", access=Access(user=user), reachable=False) for user in ("me", "you"))
    inventory = Inventory(hosts=(one,), clusters=(), shared=None, findings=())
    assert inventory.host("a") is one
    changed = inventory.model_copy(update={"hosts": (other,)})
    assert changed.host("a") is other
    assert changed.digest() != inventory.digest()


def test_an_inventory_has_no_name_twice() -> None:
    host = Host(name="a1-1", access=Access(), reachable=False)
    with pytest.raises(ValueError, match=r"seen twice: .'a1-1'"):
        Inventory(hosts=(host, host), clusters=(), shared=None, findings=())


def job_error(tmp_path: Path, text: str) -> HolmesError:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HolmesError) as caught:
        read_user_file(Job, path)
    assert caught.value.exit_code == WRONG_USAGE
    assert str(path) in caught.value.what
    return caught.value


def test_unknown_key_names_value_and_nearest_key(tmp_path: Path) -> None:
    error = job_error(tmp_path, JOB_TEXT + "parallel: {microbatch_size: 4}\n")
    assert "parallel.microbatch_size: unknown key (value 4)" in error.what
    assert error.hint == "did you mean `micro_batch_size`?"


def test_edges_are_packed_only_where_the_user_allows_it(tmp_path: Path) -> None:
    assert parse(Job, yaml.safe_load(JOB_TEXT), "job.yaml").wire.edges == "none"
    assert parse(Job, yaml.safe_load(JOB_TEXT + "wire: {edges: int8}"), "job.yaml").wire.edges == "int8"
    assert "wire.edges: " in job_error(tmp_path, JOB_TEXT + "wire: {edges: int2}\n").what


BLEND = "data: {path: [{path: /a, weight: 3}, {path: /b, weight: 0.5}]}"


def test_data_is_one_path_or_several_by_weight() -> None:
    one, several = (parse(Job, yaml.safe_load(text), "job.yaml").corpus for text in (JOB_TEXT, blended(BLEND)))

    assert one.path == "/data/text"
    assert several.path == (DataSource(path="/a", weight=3), DataSource(path="/b", weight=0.5))


def blended(data: str) -> str:
    return JOB_TEXT.replace("data: {path: /data/text}", data)


@pytest.mark.parametrize(
    ("said", "instead", "message"),
    [
        ("weight: 3", "weight: -3", "data.path.blend.0.weight: must be above 0 (value -3)"),
        ("weight: 3", "weight: 0", "data.path.blend.0.weight: must be above 0 (value 0)"),
        ("weight: 3", "weight: .nan", "data.path.blend.0.weight: must be a finite number (value nan)"),
        ("weight: 3", "weight: .inf", "data.path.blend.0.weight: must be a finite number (value inf)"),
        ("/b", "/a/", "line 3: data.path: must name each once: add up the weights (value '/a')"),
        (
            "[{path: /a, weight: 3}, {path: /b, weight: 0.5}]",
            "[]",
            "line 3: data.path: must name a file or folder (value [])",
        ),
        ("]}", "], documents: apart}", "data.documents: must be 'joined' or 'separate' (value 'apart')"),
    ],
)
def test_bad_settings_of_data_are_refused(tmp_path: Path, said: str, instead: str, message: str) -> None:
    assert message in job_error(tmp_path, blended(BLEND.replace(said, instead))).what


@pytest.mark.parametrize(
    ("more", "data", "named"),
    [
        ("weights: /models/llama", "{path: /a.jsonl}", "set data.tokenizer to /models/llama/tokenizer.json"),
        ("weights: /models/llama/", "{path: /a, pattern: '*.txt'}", "data *.txt is text without a tokenizer"),
        ("weights: /w", "{path: [{path: /a.bin, weight: 1}, {path: /b.jsonl.gz, weight: 1}]}", "data /b.jsonl.gz is"),
        ("", "{path: /a.txt}", "with vocab_size 32000 the model's tokens are not bytes"),
    ],
)
def test_text_is_no_bytes_to_a_model_of_other_tokens(tmp_path: Path, more: str, data: str, named: str) -> None:
    text = blended(f"data: {data}").replace("16}", f"16, vocab_size: {256 if more else 32000}}}") + more + "\n"

    assert named in job_error(tmp_path, text).what
    for meant in ("bytes: true", "tokenizer: /t.json"):
        assert parse(Job, yaml.safe_load(text.replace("data: {", f"data: {{{meant}, ")), "job.yaml")


def test_a_model_of_one_s_own_is_not_told_of_documents(tmp_path: Path) -> None:
    text = blended("data: {path: /a, documents: separate}").replace("16}", "16, factory: own.py:build}")

    assert "data.documents is separate" in job_error(tmp_path, text).what


def test_wrong_value_names_key_and_value(tmp_path: Path) -> None:
    error = job_error(tmp_path, JOB_TEXT.replace("steps: 3", "steps: many"))
    assert "steps: " in error.what
    assert "'many'" in error.what


def test_missing_key_is_named(tmp_path: Path) -> None:
    error = job_error(tmp_path, JOB_TEXT.replace("num_heads: 2, ", ""))
    assert "model.num_heads: missing" in error.what
    assert error.hint == "add `num_heads:`"


def test_many_faults_are_not_all_listed() -> None:
    with pytest.raises(HolmesError) as refused:
        parse(HostsFile, {"hosts": ["b", *[{"name": "a", "port": -1}] * 20_000]}, "hosts.yaml")
    assert "hosts.10.port: " in refused.value.what
    assert refused.value.what.endswith("; and 19990 faults more")
    assert len(str(refused.value)) < 2000


def test_keys_that_hosts_have_in_common_are_merged_where_yaml_says_so(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(
        "hosts:\n- &first {name: a, user: me, port: 7}\n- &second {<<: *first, name: b, port: 8}\n"
        "- {<<: *second, name: c}\n",
        encoding="utf-8",
    )
    hosts = read_hosts_file(path).hosts
    assert [(host.name, host.user, host.port) for host in hosts] == [("a", "me", 7), ("b", "me", 8), ("c", "me", 8)]


def test_key_that_is_a_list_is_no_key_of_ours(tmp_path: Path) -> None:
    assert "not YAML" in job_error(tmp_path, JOB_TEXT + "? [a]\n: 1\n").what


def test_key_written_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    error = job_error(tmp_path, JOB_TEXT + "steps: 4\n")
    assert "line 6" in error.what
    assert "'steps' is listed twice" in error.what


def test_broken_yaml_names_line_and_column(tmp_path: Path) -> None:
    error = job_error(tmp_path, "model: {num_layers: 4\nsteps: 3\n")
    assert "line 2" in error.what


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HolmesError, match="not UTF-8"):
        read_user_file(Job, path)


def test_missing_file_names_path(tmp_path: Path) -> None:
    with pytest.raises(HolmesError, match=r"gone\.yaml: cannot be read: No such file"):
        read_user_file(Job, tmp_path / "gone.yaml")


def test_layers_must_add_up(tmp_path: Path) -> None:
    error = job_error(tmp_path, JOB_TEXT + "parallel: {layers: [1, 2]}\n")
    assert "parallel.layers add up to 3, num_layers is 4" in error.what


def test_file_of_another_schema_version_is_refused(tmp_path: Path) -> None:
    error = job_error(tmp_path, JOB_TEXT + "schema_version: 2\n")
    assert "schema_version 2, this Holmes reads 1" in error.what


EMPTY = Inventory(hosts=(), clusters=(), shared=None, findings=())


def test_edited_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "inventory.json"
    path.write_text(EMPTY.to_json().replace('"shared": null', '"shared": null, "schema_version": 1'), encoding="utf-8")
    assert read_file(Inventory, path) == EMPTY
    finding = {"rule": "X", "severity": "I", "hosts": [], "evidence": "", "effect": "", "remedy": ""}
    path.write_text(EMPTY.to_json().replace('"findings": []', f'"findings": [{json.dumps(finding)}]'), encoding="utf-8")
    with pytest.raises(HolmesError, match="changed since it was written") as caught:
        read_file(Inventory, path)
    assert "holmes probe" in caught.value.hint


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "inventory.json"
    path.write_text(EMPTY.to_json(), encoding="utf-8")
    with pytest.raises(HolmesError, match="not of kind run: its kind is inventory"):
        read_file(Run, path)


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.mkdir()
    with pytest.raises(HolmesError, match=r"out\.json: cannot be written"):
        write_atomically(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("a longer old text", encoding="utf-8")
    write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_bare_string_is_a_host_name_and_defaults_reach_it() -> None:
    hosts = parse(HostsFile, {"user": "me", "hosts": ["a", {"name": "b", "user": "you"}]}, "hosts.yaml")
    assert [hosts.access(entry).user for entry in hosts.hosts] == ["me", "you"]


def test_host_written_twice_is_refused() -> None:
    with pytest.raises(HolmesError, match="host a is listed twice"):
        parse(HostsFile, {"hosts": ["a", "a"]}, "hosts.yaml")


@pytest.mark.parametrize("name", ["a b", "$(id)", "-o", "a;b", "a\nb", ""])
def test_host_name_that_a_shell_could_misread_is_refused(name: str) -> None:
    with pytest.raises(HolmesError, match=r"hosts\.0\.name"):
        parse(HostsFile, {"hosts": [{"name": name}]}, "hosts.yaml")


def test_paths_in_hosts_file_are_taken_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "ssh_config").touch()
    path = tmp_path / "hosts.yaml"
    path.write_text("ssh_config: ssh_config\nhosts: [a]\n", encoding="utf-8")
    assert read_hosts_file(path).ssh_config == str(tmp_path / "ssh_config")
    path.write_text("ssh_config: gone\nhosts: [a]\n", encoding="utf-8")
    with pytest.raises(HolmesError, match="ssh_config: gone: no such file"):
        read_hosts_file(path)


A_HOST = Host(name="a", access=Access(), reachable=False)
TWO_HOSTS = EMPTY.model_copy(update={"hosts": (A_HOST, A_HOST.model_copy(update={"name": "b"}))})


def test_file_is_json_with_a_line_for_each_host() -> None:
    text = TWO_HOSTS.to_json()

    lines = [line.rstrip(",") for line in text.splitlines() if line.startswith("  {")]
    assert [json.loads(line) for line in lines] == json.loads(text)["hosts"]
    assert [json.loads(line)["name"] for line in lines] == ["a", "b"]


@pytest.mark.parametrize("indent", [None, 0, 1, 2])
def test_file_is_read_in_any_layout(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "inventory.json"
    path.write_text(json.dumps(json.loads(TWO_HOSTS.to_json()), indent=indent), encoding="utf-8")

    assert read_file(Inventory, path) == TWO_HOSTS


@pytest.mark.parametrize(
    ("line", "instead", "where"),
    [
        ("},\n  {", '},\n  "b",\n  {', r"hosts\.1: must be keys and values"),
        ("},\n  {", '},\n   {"name": "c"},\n  {', r"hosts\.1\.access: missing"),
        ("},\n  {", "},\n  {},\n  {", r"hosts\.1\.name: missing"),
        ('  {"name":"b"', '  {"name":7', r"hosts\.1\.name: "),
        ('  {"name":"b"', '  {"name":"c"', "changed since it was written"),
        ("},\n  {", "}\n  {", "line 5, column 3: not JSON"),
        ("},\n  {", "},,\n  {", "line 4, column [0-9]+: not JSON"),
        ("\n ],", "", "line 6, column 2: not JSON"),
        ("},\n  {", '}\n ],\n "hosts": [\n  {', "changed since it was written"),  # JSON has the last of two alone
        ("\n}\n", "\n", "line 17, column 1: not JSON"),
    ],
)
def test_fault_in_a_line_is_named(tmp_path: Path, line: str, instead: str, where: str) -> None:
    path = tmp_path / "inventory.json"
    path.write_text(TWO_HOSTS.to_json().replace(line, instead, 1), encoding="utf-8")

    with pytest.raises(HolmesError, match=where):
        read_file(Inventory, path)


@pytest.mark.slow
def test_network_of_many_hosts_survives_its_file(tmp_path: Path) -> None:
    port = NetworkPort(host="a", netdev="eth0", address="10.0.0.1", bandwidth_bytes_per_s=1e9)
    network = Network(name="shared", kind="Ethernet", subnet=None, ports=(port,) * 25_000)
    inventory, path = EMPTY.model_copy(update={"shared": network}), tmp_path / "inventory.json"
    write_atomically(path, inventory.to_json())

    assert read_file(Inventory, path) == inventory


@pytest.mark.slow
def test_only_an_own_file_may_be_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    finding = Finding(rule="X", severity="I", hosts=(), evidence="e" * MAX_JSON_BYTES, effect="", remedy="")
    large, path = EMPTY.model_copy(update={"findings": (finding,)}), tmp_path / "inventory.json"

    write_signed(path, large)
    assert read_file(Inventory, path).findings[0] == finding
    write_atomically(path, large.to_json())
    with pytest.raises(HolmesError, match=r"inventory\.json: cannot be read"):
        read_file(Inventory, path)


def test_records_with_the_same_keys_share_the_set_of_them() -> None:
    one, two = Host(name="a", access=Access(), reachable=True), Host(name="b", access=Access(), reachable=True)
    assert one.__pydantic_fields_set__ is two.__pydantic_fields_set__
    assert one.model_copy(update={"hostname": "h"}).model_fields_set == {"name", "access", "reachable", "hostname"}
    assert two.model_fields_set == {"name", "access", "reachable"}


def test_copy_has_a_digest_of_its_own() -> None:
    job = parse(Job, yaml.safe_load(JOB_TEXT), "job.yaml")
    again = parse(Job, yaml.safe_load(JOB_TEXT.replace("steps: 3", "steps: 4")), "job.yaml")
    assert job.digest() != again.digest() == job.model_copy(update={"steps": 4}).digest()
