"""mpirun on the plan's nodes, for Open MPI 4.1 and for 5.0 with PRRTE.

It places each rank on its host and binds nothing: ranks pin themselves to their CPUs, as in a launch. A rankfile could
not name those CPUs: its slots are cores as hwloc numbers them, but the plan's CPUs are hardware threads as Linux
numbers them.
"""

from __future__ import annotations

from holmes_core.records.plan import Plan
from launcher.emit.start_script import START_SCRIPT

_SCRIPT = """\
#!/bin/sh
# plan {digest}
# Starts all ranks by mpirun, each on its host. Arguments are passed to mpirun as options.
set -eu
CDPATH= cd -- "$(dirname -- "$0")"
version=$(mpirun --version | head -n 1)
case $version in
    *"(Open MPI) 4.1."*) set -- --mca orte_keep_fqdn_hostnames 1 --hostfile sequence --mca rmaps seq "$@" ;;
    *"(Open MPI) 5."*)
        set -- --prtemca prte_keep_fqdn_hostnames 1 --hostfile hostfile --map-by seq:file=sequence "$@" ;;
    *) echo "holmes: this is for Open MPI 4.1 and 5; mpirun says: $version" >&2; exit 2 ;;
esac
exec mpirun -np {ranks} --bind-to none "$@" ./{start}
"""


def mpi_files(plan: Plan) -> dict[str, str]:
    """Return `mpirun.sh` and `sequence`, which has one host per rank in rank order."""
    lines = [f"# plan {plan.digest()}", *(rank.host for rank in plan.ranks)]
    script = _SCRIPT.format(digest=plan.digest(), ranks=len(plan.ranks), start=START_SCRIPT)
    return {"mpirun.sh": script, "sequence": "\n".join(lines) + "\n"}
