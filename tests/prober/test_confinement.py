"""What confines the probing process and what it may do: containers, jobs, device files, capabilities, plugins."""

from __future__ import annotations

import pytest

from holmes_core.records.access import Access
from holmes_core.records.inventory import Host
from prober.asking.commands import script
from prober.asking.recording import HostNotes, Recorded
from prober.facts.machine.confinement import SIGNS
from prober.read_host import commands, read_host


def read(*outputs: tuple[str, str]) -> Host:
    return read_host("host", [Recorded(command, text, 0) for command, text in outputs], HostNotes())


def signs(*present: str) -> tuple[str, str]:
    """What `ls -d` answers where only these of the files it asks for are there."""
    absent = [path for path in SIGNS.shell.split()[2:] if not any(each.startswith(path[:-5]) for each in present)]
    lines = [f"ls: cannot access '{path}': No such file or directory" for path in absent]
    return SIGNS.shell, "\n".join((*lines, *present, ""))


def groups(line: str) -> tuple[str, str]:
    return "grep -Hs . /proc/1/cgroup /proc/self/cgroup", f"/proc/1/cgroup:{line}\n"


CONTAINERS: dict[str, tuple[list[tuple[str, str]], str | None]] = {
    "none of the signs": ([signs(), groups("0::/init.scope"), ("env | grep NCCL", "")], "none"),
    "an engine on the host": ([signs(), groups("0::/system.slice/docker.service")], "none"),
    "nobody looked": ([groups("0::/init.scope")], None),
    "docker's file": ([signs("/.dockerenv"), groups("0::/")], "docker"),
    "docker's group": ([groups("12:devices:/docker/3f2a")], "docker"),
    "docker's scope": ([groups("0::/system.slice/docker-3f2a.scope")], "docker"),
    "podman": ([signs("/run/.containerenv")], "podman"),
    "a pod, with docker's file too": (
        [signs("/.dockerenv"), groups("11:cpu:/kubepods/burstable/pod1/2")],
        "kubernetes",
    ),
    "a pod by systemd": ([groups("0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope")], "kubernetes"),
    "a pod's environment": ([("env", "KUBERNETES_SERVICE_HOST=10.0.0.1\n")], "kubernetes"),
    "a pod's secrets": ([signs("/var/run/secrets/kubernetes.io")], "kubernetes"),
    "apptainer": ([("kubectl get pods", ""), ("env", "APPTAINER_CONTAINER=/a.sif\n")], "apptainer"),
    "lxc": ([("env", "container=lxc\n")], "lxc"),
    "another": ([signs(), ("env", "container=oci\n")], "unknown"),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_a_container_is_told_by(case: str) -> None:
    outputs, kind = CONTAINERS[case]
    assert read(*outputs).container == kind


def test_gpu_device_files_are_counted_where_they_were_listed() -> None:
    assert read(signs("/dev/nvidia0", "/dev/nvidia7")).gpu_device_files == 2
    assert read(signs()).gpu_device_files == 0
    assert read(groups("0::/")).gpu_device_files is None
    listed = (
        "crw-rw-rw- 1 root root 195, 0 Nov 21 /dev/nvidia0\ncrw-rw-rw- 1 root root 195, 255 Nov 21 /dev/nvidiactl\n"
    )
    assert read(("kubectl exec pod -- ls -l /dev/nvidia*", listed)).gpu_device_files == 1


def test_a_slurm_job_is_told_by_environment_and_control_group() -> None:
    group = "/proc/self/cgroup:0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n"
    assert read(("env", "SLURM_JOB_ID=4712\n")).slurm_job_id == "4712"
    assert read(("grep -Hs . /proc/self/cgroup", group)).slurm_job_id == "4711"
    assert read(groups("0::/user.slice/job_4711")).slurm_job_id is None


@pytest.mark.parametrize(
    ("mask", "may_lock"), [("000001ffffffffff", True), ("0000000000000000", False), ("00000000a80425fb", False)]
)
def test_cap_ipc_lock_frees_of_the_limit_on_locked_memory(mask: str, may_lock: bool) -> None:
    """The last mask is Docker's default one."""
    for line in (f"CapEff:\t{mask}\n", f"/proc/self/status:CapEff:\t{mask}\n"):
        host = read(("grep CapEff /proc/self/status", line))
        assert (host.capabilities_effective, host.may_lock_memory) == (int(mask, 16), may_lock)
    assert read().may_lock_memory is None


@pytest.mark.parametrize(("users", "may_lock"), [("0          0 4294967295", True), ("0       1000          1", False)])
def test_capabilities_of_a_user_namespace_do_not_count(users: str, may_lock: bool) -> None:
    text = f"/proc/self/status:CapEff:\t000001ffffffffff\n/proc/self/uid_map:         {users}\n"
    assert read(("grep -Hs CapEff /proc/self/status /proc/self/uid_map", text)).may_lock_memory is may_lock


def test_iommu_group_types_are_told_once() -> None:
    assert read(("cat /sys/kernel/iommu_groups/*/type | sort -u", "DMA-FQ\nidentity\n")).iommu_group_types == (
        "DMA-FQ",
        "identity",
    )
    root = "/sys/kernel/iommu_groups"
    text = f"{root}/0/type:identity\n{root}/1/type:identity\n"
    assert read((f"grep . {root}/*/type", text)).iommu_group_types == ("identity",)
    assert read(("cat /sys/kernel/iommu_groups/*/type", "cat: no such file\n")).iommu_group_types is None


def test_services_of_one_question_keep_their_own_states() -> None:
    asked = "systemctl is-active nvidia-fabricmanager nvidia-imex"
    host = read((asked, "inactive\nactive\n"))
    assert (host.fabric_manager, host.imex) == ("inactive", "active")
    cut = read((asked, "inactive\n"))
    assert (cut.fabric_manager, cut.imex) == (None, None)


def test_network_plugins_of_nccl_are_library_files() -> None:
    asked = "ls -d [library folders]/libnccl-net*.so*"
    text = (
        "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so\n/opt/amazon/ofi-nccl/lib/libnccl-net.so\n/etc/libnccl-net.conf\n"
    )
    assert read((asked, text)).nccl_net_plugins == (
        "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so",
        "/opt/amazon/ofi-nccl/lib/libnccl-net.so",
    )
    cache = "\tlibnccl-net.so (libc6,x86-64) => /usr/local/lib/libnccl-net.so\n"
    assert read(("ldconfig -p | grep libnccl-net", cache)).nccl_net_plugins == ("/usr/local/lib/libnccl-net.so",)
    assert read((asked, "")).nccl_net_plugins == ()
    assert read().nccl_net_plugins is None


def test_all_commands_still_go_in_one_script() -> None:
    text = script(commands(Access()), "@@token")
    assert text.count("@@token begin") == len(commands(Access()))
