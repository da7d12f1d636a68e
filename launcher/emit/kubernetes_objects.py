"""A plan as Kubernetes objects: ConfigMaps and a Secret with its files, a JobSet, and the same for Kubeflow Trainer.

A pod is a node of the plan. It uses the host's network, so the plan's addresses and interfaces apply. Pods find
themselves in the plan by the name of their node. A JobSet has one replicated job per cluster. A TrainJob cannot change
the network or the jobs of an existing training runtime, so it comes with its own TrainingRuntime.

Sources: API reference of Kubernetes 1.37; jobset.x-k8s.io/v1alpha2; trainer.kubeflow.org/v1alpha1.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping

import yaml

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan
from holmes_core.units import format_bytes
from launcher.emit.pod_script import ARCHIVE, FOLDER, NODE_NAME, SENT, UNPACK
from launcher.emit.pods import SHARED_MEMORY, Pod, PodGroup, pod_groups
from launcher.prepare.bundle import archive, as_bytes

MAX_MAP_BYTES = 180_000  # `kubectl apply` copies the object, in base64, to an annotation of at most 256 KiB
MAX_MAPS = 64
MAX_SECRET_BYTES = 1 << 20  # limit of the API
RUN_LABEL = "holmes.run"
DIGEST_ANNOTATION = "holmes/plan"
STOP_S = 60  # torchrun gives ranks 30 s to end, then kills them

Object = dict[str, object]


def kubernetes_files(plan: Plan, files: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the objects as files. Raises HolmesError naming the host or the size that Kubernetes rejects.

    `files` are the files a node needs. `secrets` go into the Secret.
    """
    name = f"holmes-{plan.digest().removeprefix('sha256:')[:12]}"
    sent: list[Object] = []
    sources: list[Object] = []
    for index, (key, data) in enumerate(_parts(files).items()):
        part = f"{name}-{index}"
        sent.append({**_head(plan, "v1", "ConfigMap", part), "immutable": True, "binaryData": {key: data}})
        sources.append({"configMap": {"name": part}})
    if secrets:
        _check_secrets(secrets)
        texts = {key: _base64(as_bytes(text)) for key, text in secrets.items()}
        sent.append({**_head(plan, "v1", "Secret", name), "immutable": True, "type": "Opaque", "data": texts})
        sources.append({"secret": {"name": name}})
    jobs = [_replicated_job(group, name, sources) for group in pod_groups(plan)]
    spec: Object = {"failurePolicy": {"maxRestarts": 0}, "replicatedJobs": jobs}
    job_set = {**_head(plan, "jobset.x-k8s.io/v1alpha2", "JobSet", name), "spec": spec}
    trainer = "trainer.kubeflow.org"
    runtime = {**_head(plan, f"{trainer}/v1alpha1", "TrainingRuntime", name), "spec": {"template": {"spec": spec}}}
    reference = {"apiGroup": trainer, "kind": "TrainingRuntime", "name": name}
    train_job = {**_head(plan, f"{trainer}/v1alpha1", "TrainJob", name), "spec": {"runtimeRef": reference}}
    written = {"files.yaml": sent, "jobset.yaml": [job_set], "trainjob.yaml": [runtime, train_job]}
    return {file: _text(plan, objects) for file, objects in written.items()}


def _parts(files: Mapping[str, str]) -> dict[str, str]:
    """Return the packed files, split into parts that fit a ConfigMap, by names that sort in order."""
    packed = archive(files)
    if len(packed) > MAX_MAPS * MAX_MAP_BYTES:
        largest = max(files, key=lambda name: len(as_bytes(files[name])))
        raise HolmesError(
            f"--to kubernetes: the files of a node take {format_bytes(len(packed))} packed, "
            f"{MAX_MAPS} ConfigMaps hold {format_bytes(MAX_MAPS * MAX_MAP_BYTES)}; {largest} is the largest",
            "put large files into the image or on a volume, and out of launch.code",
        )
    starts = range(0, len(packed), MAX_MAP_BYTES)
    return {f"{ARCHIVE}.{index:02}": _base64(packed[at : at + MAX_MAP_BYTES]) for index, at in enumerate(starts)}


def _check_secrets(secrets: Mapping[str, str]) -> None:
    size = sum(len(as_bytes(text)) for text in secrets.values())
    if size > MAX_SECRET_BYTES:
        raise HolmesError(
            f"--to kubernetes: launch.secrets have {format_bytes(size)}, "
            f"a Secret holds {format_bytes(MAX_SECRET_BYTES)}",
            "name smaller files; put large ones on a volume",
        )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _head(plan: Plan, version: str, kind: str, name: str) -> Object:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "annotations": {DIGEST_ANNOTATION: plan.digest()}},
    }


def _text(plan: Plan, objects: list[Object]) -> str:
    """Return the objects as YAML documents. Copying through JSON avoids YAML anchors for shared parts."""
    documents = (yaml.safe_dump(json.loads(json.dumps(each)), sort_keys=False, allow_unicode=True) for each in objects)
    return f"# plan {plan.digest()}\n" + "---\n".join(documents)


def _replicated_job(group: PodGroup, name: str, sources: list[Object]) -> Object:
    """Return a job that runs one pod on each host of the group."""
    label = {RUN_LABEL: name}
    pod = {"affinity": _affinity(group, label), **_pod_spec(group.pod, sources)}
    pods = {"metadata": {"labels": label}, "spec": pod}
    count = len(group.hosts)
    job = {"parallelism": count, "completions": count, "completionMode": "Indexed", "backoffLimit": 0, "template": pods}
    return {"name": _job_name(group), "replicas": 1, "template": {"spec": job}}


def _job_name(group: PodGroup) -> str:
    """Return an RFC 1035 name that is unique to the group, short enough for its pods' names to fit 63 characters."""
    words = re.sub("[^a-z0-9]+", "-", group.pod.cluster.lower()).strip("-")[:20].strip("-")
    return f"{words if words[:1].isalpha() else f'c{words}'}-{group.number}"


def _affinity(group: PodGroup, label: Mapping[str, str]) -> Object:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(group.hosts)}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    apart = {"labelSelector": {"matchLabels": dict(label)}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        "podAntiAffinity": {required: [apart]},
    }


def _pod_spec(pod: Pod, sources: list[Object]) -> Object:
    """Return the rest of a pod's specification."""
    volumes: list[Object] = [
        {"name": "folder", "emptyDir": {}},
        {"name": "sent", "projected": {"sources": sources}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    mounts: list[Object] = [
        {"name": "folder", "mountPath": FOLDER},
        {"name": "sent", "mountPath": f"{FOLDER}/{SENT}", "readOnly": True},
        {"name": "shm", "mountPath": SHARED_MEMORY},
    ]
    for index, volume in enumerate(pod.volumes):
        volumes.append({"name": f"host-{index}", "hostPath": {"path": volume.source}})
        read_only = {"readOnly": True} if volume.read_only else {}
        mounts.append({"name": f"host-{index}", "mountPath": volume.target, **read_only})
    node_name = {"name": NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    container: Object = {
        "name": "node",
        "image": pod.image,
        "workingDir": FOLDER,
        "command": ["/bin/sh", "-c", UNPACK],
        "env": [node_name],
        "volumeMounts": mounts,
    }
    spec: Object = {
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": STOP_S,
        "containers": [container],
        "volumes": volumes,
    }
    if pod.gpus is not None:
        container["resources"] = {"limits": {"nvidia.com/gpu": pod.gpus}}
        spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if pod.uses_rdma:
        container["securityContext"] = {"privileged": True}
    return spec
