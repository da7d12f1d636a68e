"""Containers, jobs and missing privileges, which hide parts of the host from the probe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from prober.asking.commands import Command
from prober.asking.recording import Recorded
from prober.asking.sysfs_tree import Tree

_SIGNS = {
    "/var/run/secrets/kubernetes.io": "kubernetes",
    "/.dockerenv": "docker",
    "/run/.containerenv": "podman",
    "/.singularity.d": "apptainer",
}
_GPU_FILES = "/dev/nvidia[0-9]*"
SIGNS = Command(f"ls -d {' '.join(_SIGNS)} {_GPU_FILES}")
CGROUPS = Command("grep -Hs . /proc/1/cgroup /proc/self/cgroup")

_CGROUPS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc"))
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
}
VARIABLES = ("container", "SLURM_JOB_ID", *_VARIABLES)  # of the environment
_ALL_USERS = ["0", "0", "4294967295"]  # the map of the first user namespace. Source: user_namespaces(7)
NO_CONTAINER, UNKNOWN_CONTAINER = "none", "unknown"


def read_container(outputs: Sequence[Recorded], tree: Tree) -> str | None:
    """Return the container's kind, NO_CONTAINER without a sign of one, or None if its files were not looked for."""
    variables = _environment(outputs)
    cgroups = _cgroups(tree)
    kinds = [kind for name, kind in _VARIABLES.items() if name in variables]
    kinds += [kind for path, kind in _SIGNS.items() if _is_listed(tree, path)]
    # A name such as docker.service is the engine's own group, in which no user logs in.
    kinds += [kind for word, kind in _CGROUPS if re.search(rf"/{word}(?:[-/.]|$)(?!service)", cgroups)]
    if kinds:
        return min(kinds, key=("kubernetes", "docker", "podman", "apptainer", "lxc").index)
    if declared := variables.get("container"):  # systemd's convention for PID 1 in a container
        return declared if declared in ("docker", "podman", "lxc") else UNKNOWN_CONTAINER
    return NO_CONTAINER if "/.dockerenv" in tree.absent else None


def read_slurm_job_id(outputs: Sequence[Recorded], tree: Tree) -> str | None:
    """Return the Slurm job of the process, from its environment or its control group."""
    job = _environment(outputs).get("SLURM_JOB_ID", "")
    in_group = re.search(r"slurm.*/job_([0-9]{1,18})\b", _cgroups(tree))
    return job if re.fullmatch(r"[0-9]{1,18}", job) else in_group.group(1) if in_group else None


def read_gpu_device_files(tree: Tree) -> int | None:
    """Return the number of files /dev/nvidia0, 1, ..., or None if they were not listed."""
    files = {name for name in tree.listed.get("/dev", ()) if re.fullmatch(r"nvidia[0-9]{1,3}", name)}
    return len(files) if files or _GPU_FILES in tree.absent or "/dev/nvidia*" in tree.absent else None


def read_capabilities(outputs: Iterable[Recorded], tree: Tree) -> int | None:
    """Return the effective capabilities in /proc/self/status, or 0 in a user namespace, where they are local."""
    users = (tree.value("/proc/self/uid_map") or "").split()
    if len(users) == 3 and users != _ALL_USERS:
        return 0
    for output in outputs:
        if output.tool in ("grep", "cat", "head") and "/proc/self/status" in output.command:
            match = re.search(r"\bCapEff:\s*([0-9a-f]{16})$", output.plain, flags=re.MULTILINE)
            if match:
                return int(match.group(1), 16)
    return None


def _environment(outputs: Iterable[Recorded]) -> dict[str, str]:
    lines = [line for output in outputs if output.tool in ("env", "printenv") for line in output.whole_lines]
    pairs = (line.partition("=") for line in lines)
    return {name: value for name, _, value in pairs if name in VARIABLES}


def _cgroups(tree: Tree) -> str:
    return "\n".join(line for process in ("1", "self") for line in tree.values.get(f"/proc/{process}/cgroup", ()))


def _is_listed(tree: Tree, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in tree.listed.get(folder, ())
