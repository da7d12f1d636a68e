"""`make demo`: probe, plan, launch and train a small GPT on two clusters, then the same job in the usual rank order.

Where sshd is missing the bed's own SSH server stands in for it; where root is, all happens in a user namespace; where
there can be no bed, four local processes stand in for the hosts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from holmes_cli.demo.demo_run import run_demo
from holmes_cli.screen.terminal import show_error
from holmes_core.errors import HolmesError
from tests.testbed.bed import missing_for_bed
from tests.testbed.bed_process import bed_environment
from tests.testbed.rehearsal import bed_site, local_site

FOLDER = Path("demo")
INSIDE = "in-user-namespace"
AS_ROOT = ("unshare", "--user", "--map-root-user", "--mount", "--net")
ENTER = 'mount -n -t tmpfs tmpfs /run && mkdir /run/netns && ip link set dev lo up && exec "$@"'


def main() -> None:
    """Run the demo in ./demo, which is made anew."""
    inside = sys.argv[1:] == [INSIDE]
    missing = missing_for_bed(with_sshd=False)
    if missing == ["root"] and not (missing := missing_for_bed(with_sshd=False, in_user_namespace=True)):
        print("No root here: the hosts are in a user namespace, each with the test bed's own SSH server.", flush=True)
        again = (sys.executable, "-m", "tests.testbed.demo", INSIDE)
        os.execvpe(AS_ROOT[0], [*AS_ROOT, "sh", "-c", ENTER, "sh", *again], bed_environment())
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    if missing:
        print(f"No test bed here (missing: {', '.join(missing)}): four local processes stand in for the hosts.")
        print("Same commands, same code; no SSH, and one loopback instead of two kinds of network.")
        run_demo(local_site(FOLDER), networks_differ=False)
        return
    with_sshd = not inside and not missing_for_bed()
    if not inside and not with_sshd:
        print("No sshd here: each host runs the test bed's own SSH server.")
    with bed_site(FOLDER, with_sshd=with_sshd) as site:
        print("Two clusters of two hosts on this machine: network namespaces, reached by SSH; 2 Gbit/s inside a")
        print("cluster, 100 Mbit/s across. Recorded outputs of real machines stand in for the RDMA and GPU tools.")
        print(f"The commands below run in the controller's namespace: {' '.join(site.prefix)}")
        run_demo(site, networks_differ=True)


if __name__ == "__main__":
    try:
        main()
    except HolmesError as refused:
        show_error(refused)
        sys.exit(refused.exit_code)
    except subprocess.CalledProcessError as failed:
        sys.exit(failed.returncode)  # the command has said why
