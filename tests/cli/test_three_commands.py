"""Probe, plan, launch and train on the bed, as a user would: real sshd, real torchrun, real Gloo, real text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from tests.eventually import eventually
from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, bed_site, only_run, standard_library_corpus

pytestmark = NEEDS_BED

MODEL = {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32}
# (pp, dp); the model of one's own trains with 2 and 2
EVERY_HOST = [(1, 4), (4, 1)]
ENDED_WITHIN_S = 10.0
OWN_MODEL = Path(__file__).parent.parent.parent / "examples" / "own-model-file" / "own_model.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with bed_site(tmp_path_factory.mktemp("site")) as site:
        inventory(site)
        yield site


def holmes(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    command = site.command(*arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)


def inventory(site: Site) -> Path:
    """The inventory of the whole bed, probed once."""
    path = site.folder / "inventory.json"
    if not path.exists():
        done = holmes(site, "probe", str(site.hosts_yaml), "-o", str(path))
        assert done.returncode == 0, done.stderr
    return path


def job(**changes: Any) -> dict[str, Any]:
    base = {
        "model": MODEL,
        "data": standard_library_corpus(),
        "global_batch_size": 12,
        "steps": 20,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "optimizer": {"learning_rate": 3e-3},
        "timeout_s": 300,  # ranks of a busy machine import torch in a minute
    }
    return {**base, **changes}


def plan(site: Site, folder: Path, content: dict[str, Any], *options: str) -> Path:
    """A plan of `content` in `folder`."""
    (folder / "job.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    path = folder / "plan.json"
    paths = (str(folder / "job.yaml"), "-i", str(inventory(site)), "-o", str(path))
    done = holmes(site, "plan", *paths, *options)
    assert done.returncode == 0, done.stderr
    return path


def trained(site: Site, folder: Path, path: Path) -> tuple[Run, list[float]]:
    """The run of a plan that must end well, and its loss at every step."""
    done = holmes(site, "launch", str(path), "--runs", str(folder / "runs"))
    assert done.returncode == 0, done.stderr
    run = only_run(folder / "runs")
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [step["step"] for step in steps] == list(range(len(steps)))
    return read_file(Run, run / "run.json"), [step["loss"] for step in steps]


def nothing_is_left(bed: Bed, within_s: float = ENDED_WITHIN_S) -> bool:
    """No process of ours on any host, and no file of a run, within the time a run may take to end."""

    def is_clean() -> bool:
        left = [pid for host in bed.hosts for pid in bed.guest_pids(host.name)]
        files = [path for host in bed.hosts for path in (host.home / ".cache" / "holmes" / "runs").glob("*")]
        return not left and not files

    return eventually(is_clean, within_s)


@pytest.fixture(scope="module")
def one_process_losses(site: Site, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("one")
    path = plan(site, folder, job(parallel={"pp": 1, "dp": 1, "micro_batch_size": 1}))
    return trained(site, folder, path)[1]


@pytest.mark.exhaustive  # test_strangers.py compares more steps of 2 and 2 with one process
@pytest.mark.parametrize(("pp", "dp"), EVERY_HOST)
def test_stages_and_replicas_on_four_hosts_train_to_the_loss_of_one_process(
    site: Site, bed: Bed, tmp_path: Path, one_process_losses: list[float], pp: int, dp: int
) -> None:
    path = plan(site, tmp_path, job(parallel={"pp": pp, "dp": dp, "micro_batch_size": 1}))
    run, losses = trained(site, tmp_path, path)
    assert (run.state, run.steps_done) == ("done", 20)
    assert losses == pytest.approx(one_process_losses, abs=1e-5)
    assert losses[-1] < losses[0] - 0.5
    assert nothing_is_left(bed)


@pytest.mark.exhaustive  # test_dry_run.py sends one to all hosts, and the parity matrix has its losses under plans
def test_model_of_ones_own_is_sent_and_trains_over_two_clusters(site: Site, bed: Bed, tmp_path: Path) -> None:
    losses = {}
    for pp, dp in ((1, 1), (2, 2)):
        folder = tmp_path / f"{pp}-{dp}"
        folder.mkdir()
        shutil.copy(OWN_MODEL, folder)
        own = {**MODEL, "factory": "own_model.py:build"}
        path = plan(site, folder, job(model=own, parallel={"pp": pp, "dp": dp, "micro_batch_size": 1}))
        losses[pp, dp] = trained(site, folder, path)[1]
    assert {node.cluster for node in read_file(Plan, path).nodes} == {"ib-1", "roce-1"}
    assert losses[2, 2] == pytest.approx(losses[1, 1], abs=1e-5)
    assert losses[2, 2][-1] < losses[2, 2][0] - 0.5
    assert nothing_is_left(bed)


WIDE = {"num_layers": 4, "hidden_size": 192, "num_heads": 4, "seq_length": 64}


Sent = dict[str, dict[str, tuple[float, float]]]


def megabytes_sent(site: Site, folder: Path, *options: str) -> tuple[Plan, Sent]:
    """A plan that chose its schedule freely; and per network of it and host: MB a step measured and planned."""
    content = job(model=WIDE, steps=6, global_batch_size=16, parallel={"pp": 2, "dp": 2, "micro_batch_size": 2})
    path = plan(site, folder, content, *options)
    run, _ = trained(site, folder, path)
    made = read_file(Plan, path)
    sent: Sent = {}
    for seen, expected in zip(run.traffic, made.prediction.traffic, strict=True):
        network = "shared" if seen.network == "shared" else "fabric"
        assert seen.sent_bytes is not None
        sent.setdefault(network, {})[seen.host] = (seen.sent_bytes / 1e6, expected.sent_bytes / 1e6)
    return made, sent


@pytest.fixture(scope="module")
def past_a_port(site: Site, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Sent]:
    """The same, of a run whose first host has another program at the port that is tried first."""
    assert site.bed is not None
    script = "import socket, time; s = socket.create_server(('', 29500)); print('up', flush=True); time.sleep(600)"
    command = site.bed.on_host_command("a1", [sys.executable, "-c", script])
    occupant = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert occupant.stdout is not None
        assert occupant.stdout.readline() == b"up\n"
        return megabytes_sent(site, tmp_path_factory.mktemp("crossing"))
    finally:
        occupant.kill()
        occupant.communicate()


def test_port_in_use_costs_the_next_one(bed: Bed, past_a_port: tuple[Plan, Sent]) -> None:
    assert {node.host for node in past_a_port[0].nodes} == {"a1", "a2", "b1", "b2"}
    assert nothing_is_left(bed)


def test_gradients_stay_on_fast_interfaces_and_only_activations_cross(past_a_port: tuple[Plan, Sent]) -> None:
    made, sent = past_a_port
    crossings = 2 * made.chunks - 1  # per micro-batch and host: interleaved stages hand over more often
    for measured, planned in sent["fabric"].values():
        assert planned > 3.5  # half the model's gradients: 4 layers x 12 x 192^2 x 4 bytes / 2
        assert measured == pytest.approx(planned, rel=0.05)
    for measured, planned in sent["shared"].values():
        assert planned == pytest.approx(crossings * 4 * 2 * 64 * 192 * 4 / 1e6)  # 4 micro-batches of 2 x 64 x 192 fp32
        assert measured == pytest.approx(planned, rel=0.15)


@pytest.mark.exhaustive
def test_usual_order_sends_gradients_across_clusters(site: Site, tmp_path: Path) -> None:
    _, sent = megabytes_sent(site, tmp_path, "--usual-order")
    for measured, planned in sent["shared"].values():
        assert planned > 3.5
        assert measured == pytest.approx(planned, rel=0.1)  # headers of frames of 1,500 bytes, and acknowledgements


def test_dry_run_shows_what_is_sent_and_touches_nothing(site: Site, bed: Bed, tmp_path: Path) -> None:
    path = plan(site, tmp_path, job(parallel={"pp": 2, "dp": 2}))
    done = holmes(site, "launch", str(path), "--dry-run", "--runs", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    assert "  GLOO_SOCKET_IFNAME=eth0  #" in done.stdout
    assert "  GLOO_SOCKET_IFNAME=eno1  #" in done.stdout
    assert "holmes_runtime.node.agent" in done.stdout
    assert not (tmp_path / "runs").exists()
    assert nothing_is_left(bed)


def refused(site: Site, tmp_path: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """A launch that must be refused before any rank starts, leaving nothing on the controller."""
    done = holmes(site, "launch", str(path), "--runs", str(tmp_path / "runs"))
    assert done.returncode in (1, 2), done.stderr
    assert list((tmp_path / "runs").glob("*")) == []
    return done


def test_stopped_sshd_is_reported_and_hides_no_other_host(site: Site, bed: Bed, tmp_path: Path) -> None:
    path = plan(site, tmp_path, job(parallel={"pp": 2, "dp": 2}))
    bed.stop_sshd("b2")
    try:
        probed = holmes(site, "probe", str(site.hosts_yaml), "-o", str(tmp_path / "inventory.json"))
        launched = refused(site, tmp_path, path)
    finally:
        bed.start_sshd("b2")
    assert probed.returncode == 1
    assert "HOST-UNREACHABLE on b2: cannot connect to root@10.9.0.4:22: connection refused" in probed.stdout
    assert all(f"│ {host} " in probed.stdout for host in ("a1", "a2", "b1"))
    assert launched.returncode == 1
    assert "host b2: reachable: cannot connect to root@10.9.0.4:22" in launched.stderr
    assert "check that the host is up and its sshd runs" in launched.stderr
    assert nothing_is_left(bed)


def altered_hosts(bed: Bed, folder: Path, change: Callable[[str], str], **hosts: Any) -> Path:
    """hosts.yaml with another SSH configuration."""
    config = folder / "ssh_config"
    config.write_text(change(bed.ssh_config.read_text(encoding="utf-8")), encoding="utf-8")
    content = {"ssh_config": str(config), "python": sys.executable, "hosts": ["a1", "b1"], **hosts}
    path = folder / "hosts.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def probe_refusal(site: Site, tmp_path: Path, hosts: Path) -> str:
    done = holmes(site, "probe", str(hosts), "-o", str(tmp_path / "inventory.json"))
    assert done.returncode == 1, done.stderr
    return done.stdout


def test_wrong_key_is_reported_with_user_address_and_key(site: Site, bed: Bed, tmp_path: Path) -> None:
    key = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    hosts = altered_hosts(bed, tmp_path, lambda text: text, identity_file=str(key))
    text = probe_refusal(site, tmp_path, hosts)
    assert "SSH-AUTH on a1: root@10.9.0.1:22 refused the login" in text
    assert str(key) in text
    assert "authorized_keys" in text


def test_unknown_host_key_is_refused_with_its_fingerprint(site: Site, bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    known = next(line for line in bed.ssh_config.read_text(encoding="utf-8").splitlines() if "UserKnownHosts" in line)
    hosts = altered_hosts(bed, tmp_path, lambda text: text.replace(known.split()[-1], str(tmp_path / "empty")))
    text = probe_refusal(site, tmp_path, hosts)
    assert "SSH-HOSTKEY-UNKNOWN on a1: host key of root@10.9.0.1:22 is not known: ssh-ed25519 SHA256:" in text
    assert "holmes trust a1" in text
    assert "ssh-keyscan" not in text


def test_host_without_python_is_reported_by_probe_and_launch(site: Site, bed: Bed, tmp_path: Path) -> None:
    hosts = altered_hosts(bed, tmp_path, lambda text: text, python="/no/such/python")
    assert "HOST-OS-LIB on a1, b1: `/no/such/python` does not run" in probe_refusal(site, tmp_path, hosts)
    path = plan_from(site, tmp_path)
    done = refused(site, tmp_path, path)
    assert "`/no/such/python` could not start the node agent" in done.stderr
    assert "error: host " in done.stderr
    assert nothing_is_left(bed)


def test_host_without_torch_is_reported_by_probe_and_launch(site: Site, bed: Bed, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    hosts = altered_hosts(bed, tmp_path, lambda text: text, python=bare)
    assert f"HOST-OS-LIB on a1, b1: `{bare}` (Python " in probe_refusal(site, tmp_path, hosts)
    done = refused(site, tmp_path, plan_from(site, tmp_path))
    assert f"{bare} has no torch" in done.stderr
    assert "-m pip install torch" in done.stderr
    assert nothing_is_left(bed)


def plan_from(site: Site, folder: Path) -> Path:
    """A plan from the inventory that was just probed into `folder`."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job(parallel={"pp": 2, "dp": 1})), encoding="utf-8")
    path = folder / "plan.json"
    done = holmes(site, "plan", str(folder / "job.yaml"), "-i", str(folder / "inventory.json"), "-o", str(path))
    assert done.returncode == 0, done.stderr
    return path


def test_edited_plan_is_refused_before_anything_is_touched(site: Site, tmp_path: Path) -> None:
    path = plan(site, tmp_path, job(parallel={"pp": 2, "dp": 2}))
    path.write_text(path.read_text(encoding="utf-8").replace('"steps": 20', '"steps": 21'), encoding="utf-8")
    done = refused(site, tmp_path, path)
    assert done.returncode == 2
    assert f"{path}: changed since it was written" in done.stderr
    assert "holmes plan job.yaml" in done.stderr


def test_stale_plan_is_refused_and_says_which_file_changed(site: Site, tmp_path: Path) -> None:
    path = plan(site, tmp_path, job(parallel={"pp": 2, "dp": 2}))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job(steps=21)), encoding="utf-8")
    done = refused(site, tmp_path, path)
    assert done.returncode == 2
    assert f"stale: {tmp_path / 'job.yaml'} has changed since" in done.stderr


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip")
def test_missing_interface_is_reported_before_anything_starts(site: Site, bed: Bed, tmp_path: Path) -> None:
    path = plan(site, tmp_path, job(parallel={"pp": 2, "dp": 2}))
    subprocess.run(bed.on_host_command("a2", ["ip", "link", "set", "ib0", "down"]), check=True)
    subprocess.run(bed.on_host_command("a2", ["ip", "link", "set", "ib0", "name", "ibx"]), check=True)
    try:
        done = refused(site, tmp_path, path)
    finally:
        subprocess.run(bed.on_host_command("a2", ["ip", "link", "set", "ibx", "name", "ib0"]), check=True)
        subprocess.run(bed.on_host_command("a2", ["ip", "link", "set", "ib0", "up"]), check=True)
    assert "host a2: interfaces: no interface ib0; there are " in done.stderr
    assert nothing_is_left(bed)
