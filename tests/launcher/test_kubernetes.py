"""Objects for Kubernetes: the API takes them, each host gets its pod, and the command of a pod starts its ranks."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.errors import HolmesError
from holmes_core.records.access import Access, Container
from holmes_core.records.plan import Plan
from launcher.emit.emit import emit
from launcher.emit.kubernetes_objects import MAX_MAP_BYTES, MAX_MAPS, kubernetes_files
from launcher.emit.pod_script import FOLDER, NODE_NAME, SENT
from launcher.prepare.user_variables import UserVariables
from tests.launcher.api_schemas import CRDS, faults, schema_of
from tests.launcher.emitted import CONTAINER, VARIABLES, kept_plan, suited
from tests.launcher.plans import cpu_plan, gpu_plan, with_access
from tests.launcher.test_emitted_trainer import expected_of, outputs_of_ranks
from tests.launcher.trainer_job import CODE, plan_on_this_machine, trainer_plan
from tests.seeds import few_of, seeds

PLANS = 50
NOTHING = UserVariables({}, {})
MIB = 2**20


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def with_container(plan: Plan, *options: str, engine: Any = "docker") -> Plan:
    return with_access(plan, Access(container=Container(engine=engine, image="here:1", options=options)))


def random_plan(seed: int) -> Plan:
    """Hosts, images, devices and names of clusters by chance, for the bundled runtime or a trainer's command."""
    draw = random.Random(seed)
    sizes = tuple(draw.randint(1, 3) for _ in range(2))
    plan = cpu_plan() if draw.random() < 0.2 else gpu_plan(sizes, draw.choice((2, 4, 8)))
    clusters = {"a": draw.choice(("a", "IB_rack.7", "9" * 40, "x-" * 40 + "x")), "b": draw.choice(("b", "a-0", "9.b"))}
    images = [draw.choice(("pytorch:2", "reg.site:5000/team/torch@sha256:ab")) for _ in range(2)]
    options = draw.choice(((), ("-v", "/data:/data:ro"), ("--volume=/a b:/c", "--volume", "/x:/x:rw")))
    nodes = [
        node.model_copy(
            update={
                "cluster": clusters[node.cluster],
                "access": Access(container=Container(engine="docker", image=draw.choice(images), options=options)),
            }
        )
        for node in plan.nodes
    ]
    plan = plan.model_copy(update={"nodes": tuple(nodes)})
    return trainer_plan(plan) if draw.random() < 0.5 else plan


@pytest.mark.skipif(not CRDS.is_dir(), reason="no schemas here")
@pytest.mark.parametrize("seed", seeds(PLANS, few=1, more=3))
def test_random_plans_are_accepted_by_the_schemas_of_the_api(seed: int) -> None:
    files = emit(random_plan(seed), "kubernetes", CODE)
    for name in ("jobset.yaml", "trainjob.yaml"):
        for document in documents(files[name]):
            assert list(faults(document, schema_of(document["kind"]))) == []


def test_config_maps_and_secrets_are_accepted_by_the_api_s_own_schemas() -> None:
    judge = pytest.importorskip("kubernetes_validate")
    for each in documents(emit(random_plan(0), "kubernetes", CODE)["files.yaml"]):
        judge.validate(each, judge.latest_version(), strict=True)


@pytest.mark.slow
def test_config_maps_and_secrets_have_keys_that_the_api_knows() -> None:
    for each in documents(emit(random_plan(0), "kubernetes", CODE)["files.yaml"]):
        of_kind = {"binaryData"} if each["kind"] == "ConfigMap" else {"data", "type"}
        assert set(each) == {"apiVersion", "kind", "metadata", "immutable"} | of_kind


@pytest.mark.skipif(not CRDS.is_dir(), reason="no schemas here")
def test_the_judge_refuses_what_the_api_does() -> None:
    (job_set,) = documents(emit(suited(kept_plan(), "kubernetes"), "kubernetes", NOTHING)["jobset.yaml"])
    pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    for key, value in (("hostNetwork", "yes"), ("hostnetwork", True), ("terminationGracePeriodSeconds", "60")):
        before = dict(pod)
        pod[key] = value
        assert len(list(faults(job_set, schema_of("JobSet")))) == 1
        pod.clear()
        pod.update(before)
    assert list(faults(job_set, schema_of("JobSet"))) == []


@pytest.mark.parametrize("seed", seeds(PLANS, few=1, more=3))
def test_names_keys_and_sizes_are_within_the_limits_of_the_api(seed: int) -> None:
    plan = random_plan(seed)
    files = emit(plan, "kubernetes", CODE)
    objects = [each for name, text in files.items() if name.endswith(".yaml") for each in documents(text)]
    for each in objects:
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", each["metadata"]["name"])
        assert each["metadata"]["annotations"] == {"holmes/plan": plan.digest()}
        data = each.get("binaryData", {}) | each.get("data", {})
        assert all(re.fullmatch("[-._a-zA-Z0-9]+", key) for key in data)
        assert sum(len(base64.b64decode(text)) for text in data.values()) <= MIB
        assert len(json.dumps(each)) < 256 * 1024
    (job_set,) = documents(files["jobset.yaml"])
    jobs = [job["name"] for job in job_set["spec"]["replicatedJobs"]]
    assert len(set(jobs)) == len(jobs)
    for job in jobs:
        assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", job)
        assert len(f"{job_set['metadata']['name']}-{job}-0-9999-abcde") <= 63


@pytest.mark.parametrize("seed", seeds(PLANS, few=1, more=3))
def test_every_host_gets_one_pod_with_the_gpus_of_its_ranks(seed: int) -> None:
    plan = random_plan(seed)
    (job_set,) = documents(emit(plan, "kubernetes", NOTHING)["jobset.yaml"])
    hosts: dict[str, tuple[int | None, str]] = {}
    for job in job_set["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        pod = spec["template"]["spec"]
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        (named,) = term["matchExpressions"]
        assert spec["parallelism"] == spec["completions"] == len(named["values"])
        (container,) = pod["containers"]
        gpus = container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu")
        hosts |= dict.fromkeys(named["values"], (gpus, container["image"]))
    container_of = {node.host: node.access.container for node in plan.nodes}
    assert set(hosts) == set(container_of)
    for host, (gpus, image) in hosts.items():
        found = [rank.gpu for rank in plan.ranks if rank.host == host]
        assert gpus == (None if found[0] is None else 1 + max(gpu for gpu in found if gpu is not None))
        container = container_of[host]
        assert container is not None
        assert image == container.image


@pytest.mark.slow
def test_pods_get_the_devices_that_the_plan_uses() -> None:
    given = ("-v", "/dev/infiniband:/dev/infiniband")
    for plan, options, expected in ((gpu_plan(), (), True), (gpu_plan(), given, True), (cpu_plan(), (), False)):
        (job_set,) = documents(emit(with_container(plan, *options), "kubernetes", NOTHING)["jobset.yaml"])
        pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        paths = [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]
        assert paths == (["/dev/infiniband"] if expected else [])
        assert ("securityContext" in pod["containers"][0]) == expected


@pytest.mark.parametrize(
    ("plan", "message"),
    few_of(
        3,
        [
            (cpu_plan(), "host a1 has no container in hosts.yaml, and pods need an image"),
            (with_container(cpu_plan(), engine="apptainer"), "host a1 has a container of apptainer"),
            (with_container(cpu_plan(), "--privileged"), "host a1: `--privileged` in container.options"),
            (with_container(cpu_plan(), "--volume", "named:/x"), "host a1: volume 'named:/x'"),
            (with_container(cpu_plan(), "-v"), "host a1: volume ''"),
            (with_container(cpu_plan(), "--volume=/a:/b:z"), "host a1: volume '/a:/b:z'"),
            (with_container(cpu_plan(), "-v", "/a/../b:/b"), "host a1: volume '/a/../b:/b'"),
            (with_container(cpu_plan(), "-v", "/a:/b", "-v", "/c:/b/"), "host a1: volume '/c:/b/'"),
            (with_container(cpu_plan(), "-v", "/a:/holmes"), "host a1: volume '/a:/holmes'"),
        ],
    ),
)
def test_a_host_that_can_be_no_pod_is_named(plan: Plan, message: str) -> None:
    with pytest.raises(HolmesError) as refused:
        emit(plan, "kubernetes", NOTHING)
    assert refused.value.what.startswith(f"--to kubernetes: {message}")


@pytest.mark.parametrize("name", ["Node1", "a_1", "a" * 64, "a.", "10.0.0.1:22"])
def test_a_host_that_is_no_name_of_a_node_is_named(name: str) -> None:
    plan = with_container(cpu_plan())
    nodes = tuple(node.model_copy(update={"host": name}) if node.host == "a1" else node for node in plan.nodes)
    with pytest.raises(HolmesError, match=f"host '{name}' is not a valid name of a Kubernetes node"):
        kubernetes_files(plan.model_copy(update={"nodes": nodes}), {}, {})


def noise(size: int) -> str:
    """Text that packs to some more than this size."""
    return base64.b64encode(random.Random(1).randbytes(size)).decode()


def test_large_files_take_several_config_maps() -> None:
    files = {"small.py": "", "code/tokens.bin": noise(MAX_MAP_BYTES)}
    maps = documents(kubernetes_files(with_container(cpu_plan()), files, {})["files.yaml"])
    assert [list(each["binaryData"]) for each in maps] == [["files.tar.gz.00"], ["files.tar.gz.01"]]


@pytest.mark.slow
def test_the_largest_of_too_large_files_is_named() -> None:
    files = {"small.py": "", "code/tokens.bin": noise(MAX_MAPS * MAX_MAP_BYTES)}
    with pytest.raises(HolmesError, match=r"64 ConfigMaps hold 11\.52 MB; code/tokens\.bin is the largest"):
        kubernetes_files(with_container(cpu_plan()), files, {})


def test_secrets_that_no_secret_holds_are_refused() -> None:
    secrets = {"secret-A": "x" * MIB, "secret-B": "x"}
    with pytest.raises(HolmesError, match=r"launch\.secrets have"):
        kubernetes_files(with_container(cpu_plan()), {}, secrets)


def mount(folder: Path, files: dict[str, str]) -> list[str]:
    """Make the folder of a pod as Kubernetes does, and return the pod's command."""
    (folder / SENT).mkdir(parents=True)
    for each in documents(files["files.yaml"]):
        for name, data in (each.get("binaryData") or each["data"]).items():
            (folder / SENT / name).write_bytes(base64.b64decode(data))
    (job_set,) = documents(files["jobset.yaml"])
    (container,) = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    assert container["workingDir"] == FOLDER
    command: list[str] = container["command"]
    return command


def test_a_pod_has_all_that_a_rank_needs_and_refuses_a_node_of_another_plan(tmp_path: Path) -> None:
    plan = suited(kept_plan(), "kubernetes")
    command = mount(tmp_path / "pod", emit(plan, "kubernetes", VARIABLES))
    environment = {"PATH": os.environ["PATH"], NODE_NAME: "$(touch canary)"}
    done = subprocess.run(command, cwd=tmp_path / "pod", env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "holmes: node '$(touch canary)' is not in the plan" in done.stderr
    names = {str(path.relative_to(tmp_path / "pod")) for path in (tmp_path / "pod").rglob("*")}
    wanted = {"ranks", "node-0.env", "run_config.json", "plan.json", "mine.py", "secret-TOKEN", "start-node.sh"}
    assert names >= wanted | {"holmes_runtime/node/start_rank.py"}
    assert "canary" not in names
    assert (tmp_path / "pod" / "secret-TOKEN").stat().st_mode & 0o077 == 0


def test_secrets_are_in_the_secret_alone() -> None:
    files = emit(suited(kept_plan(), "kubernetes"), "kubernetes", VARIABLES)
    *maps, secret = documents(files["files.yaml"])
    assert (secret["kind"], secret["data"]) == ("Secret", {"secret-TOKEN": base64.b64encode(b"s3cr3t\n").decode()})
    assert {each["kind"] for each in maps} == {"ConfigMap"}
    assert all("s3cr3t" not in text for text in files.values())


@pytest.mark.process
def test_the_command_of_pods_starts_a_trainer_s_ranks_as_the_plan_has_them(tmp_path: Path) -> None:
    plan = plan_on_this_machine(folder=str(tmp_path))
    (python,) = {node.access.python for node in plan.nodes}
    plan = with_access(plan, Access(python=python, container=CONTAINER))
    files = emit(plan, "kubernetes", CODE)
    started = []
    for node in plan.nodes:
        command = mount(tmp_path / node.host, files)
        environment = {**os.environ, NODE_NAME: node.host}
        started.append(
            subprocess.Popen(
                command, cwd=tmp_path / node.host, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True,
            )
        )  # fmt: skip
    assert outputs_of_ranks(started) == expected_of(plan)
