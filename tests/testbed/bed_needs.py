"""What a machine must have for a bed."""

import os
import shutil
import subprocess

from tests.testbed.bed_process import bed_environment

TOOLS = ("ip", "tc", "unshare", "nsenter", "mount", "awk")

# Everything the bed asks of the kernel, once, in namespaces that end with the shell.
REHEARSAL = """
set -e
mount -n -t tmpfs tmpfs /run
mkdir /run/netns
ip netns add rehearsal
ip -n rehearsal link add name bridge0 type bridge
ip -n rehearsal link add name port0 type veth peer name eth0
tc -n rehearsal qdisc add dev port0 root tbf rate 1mbit burst 16kb latency 50ms
ip netns exec rehearsal true
"""

TRUNK_REHEARSAL = "ip tuntap add dev trunk0 mode tap"


class BedUnavailable(RuntimeError):
    """This machine cannot carry a bed; the message says what is missing."""

    def __init__(self, missing: list[str]) -> None:
        """`missing` as `missing_for_bed` returns it."""
        super().__init__(
            f"the test bed needs what this machine lacks: {', '.join(missing)}\n"
            "hint: run as root on Linux; on Debian: apt-get install iproute2 openssh-server util-linux"
        )


def missing_for_bed(euid: int | None = None, with_sshd: bool = True, in_user_namespace: bool = False) -> list[str]:
    """What this machine lacks for a bed, in words; empty if it lacks nothing. `euid` stands in for the caller's own.

    Without sshd the bed brings its own SSH server; in a user namespace anybody is root, if the kernel allows it.
    """
    missing = [] if in_user_namespace or (os.geteuid() if euid is None else euid) == 0 else ["root"]
    search_path = bed_environment()["PATH"]
    tools = (*TOOLS, "sshd") if with_sshd else TOOLS
    missing += [tool for tool in tools if shutil.which(tool, path=search_path) is None]
    if not missing and (refusal := kernel_refusal(REHEARSAL, in_user_namespace)) is not None:
        missing.append(f"network namespaces with bridges and tc tbf ({refusal})")
    return missing


def missing_for_trunk() -> list[str]:
    """What a machine that can carry a bed lacks for one with a trunk, in words; empty if it lacks nothing."""
    refusal = kernel_refusal(TRUNK_REHEARSAL)
    return [] if refusal is None else [f"TAP devices, by /dev/net/tun ({refusal})"]


def kernel_refusal(rehearsal: str, in_user_namespace: bool = False) -> str | None:
    """Why the kernel, or the container around us, refuses those commands; None if it does not. Leaves nothing."""
    as_root = ["--user", "--map-root-user"] if in_user_namespace else []
    done = subprocess.run(
        ["unshare", *as_root, "--mount", "--uts", "--net", "sh", "-c", rehearsal],
        capture_output=True,
        text=True,
        env=bed_environment(),
    )
    if done.returncode == 0:
        return None
    return done.stderr.strip() or f"exit status {done.returncode}"
