"""Starting a node's ranks in its pod: the pod unpacks its files, and this script finds the node in the plan."""

from __future__ import annotations

import shlex

from holmes_core.records.plan import Plan
from launcher.emit.torchrun_commands import torchrun_line

NODE_SCRIPT = "start-node.sh"
NODE_NAME = "NODE_NAME"  # the environment variable with the name of the pod's node
FOLDER = "/holmes"
SENT = "sent"  # the folder where the archive and the secrets are mounted
ARCHIVE = "files.tar.gz"
UNPACK = f"umask 077; cat {SENT}/{ARCHIVE}.* | tar -xzf - && exec /bin/sh {NODE_SCRIPT}"
"""The command of a pod, run in FOLDER. The names of the archive's parts sort in order."""

_SCRIPT = """\
#!/bin/sh
# plan {digest}
# Starts the ranks of one node in its pod. The host of that node in the plan has the name of the pod's Kubernetes node.
set -eu
umask 077
for file in {sent}/secret-*; do
    [ ! -e "$file" ] || cat "$file" >"${{file##*/}}"
done
case ${{{node_name}:-}} in
{starts}
    *)
        echo "holmes: node '${{{node_name}:-}}' is not in the plan: name hosts in hosts.yaml like their nodes" >&2
        exit 2 ;;
esac
"""


def node_script(plan: Plan) -> str:
    """Return the script, which has a torchrun line for each node."""
    starts = []
    for node in plan.nodes:
        host = shlex.quote(node.host)
        starts.append(f"    {host}) export HOLMES_HOST={host}; exec {torchrun_line(plan, node)} ;;")
    return _SCRIPT.format(digest=plan.digest(), sent=SENT, node_name=NODE_NAME, starts="\n".join(starts))
