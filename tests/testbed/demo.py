"""`make demo`: probe, plan, launch and train a small GPT on two clusters, then the same job in the usual rank order."""

from __future__ import annotations

import shutil
from pathlib import Path

from holmes_cli.demo.demo_run import run_demo
from tests.testbed.bed import missing_for_bed
from tests.testbed.rehearsal import bed_site, local_site

FOLDER = Path("demo")


def main() -> None:
    """Run the demo in ./demo, which is made anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    missing = missing_for_bed()
    if missing:
        print(f"No test bed here (missing: {', '.join(missing)}): four local processes stand in for the hosts.")
        print("Same commands, same code; no SSH, and one loopback instead of two kinds of network.")
        run_demo(local_site(FOLDER), networks_differ=False)
        return
    with bed_site(FOLDER) as site:
        print("Two clusters of two hosts on this machine: network namespaces with real sshd; 2 Gbit/s inside a")
        print("cluster, 100 Mbit/s across. Recorded outputs of real machines stand in for the RDMA and GPU tools.")
        print(f"The commands below run in the controller's namespace: {' '.join(site.prefix)}")
        run_demo(site, networks_differ=True)


if __name__ == "__main__":
    main()
