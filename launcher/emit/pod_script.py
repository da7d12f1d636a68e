"""The start of a node's ranks in its pod: the pod unpacks what was sent, and this script finds its node in the plan."""

from __future__ import annotations

import shlex

from holmes_core.records.plan import Node, Plan
from launcher.emit.torchrun_commands import torchrun_line

NODE_SCRIPT = "start-node.sh"
NODE_NAME = "NODE_NAME"  # in the pod's environment: the name of its node
FOLDER = "/holmes"
SENT = "sent"  # the folder in it where the archive and secrets are mounted
ARCHIVE = "files.tar.gz"
UNPACK = f"umask 077; cat {SENT}/{ARCHIVE}.* | tar -xzf - && exec /bin/sh {NODE_SCRIPT}"
"""The command of a pod, in FOLDER. Parts of the archive have names in their order."""

_SCRIPT = """\
#!/bin/sh
# plan {digest}
# Starts the ranks of one node in its pod. The node is the one of the plan whose host is named as the pod's node is.
set -eu
umask 077
for file in {sent}/secret-*; do
    [ ! -e "$file" ] || cat "$file" >"${{file##*/}}"
done
case ${{{node_name}:-}} in
{starts}
    *)
        echo "holmes: node '${{{node_name}:-}}' is no host of the plan: name hosts in hosts.yaml as their nodes" >&2
        exit 2 ;;
esac
"""


def node_script(plan: Plan) -> str:
    """Return the script, in which each node has its line of torchrun."""
    starts = "\n".join(_start(plan, node) for node in plan.nodes)
    return _SCRIPT.format(digest=plan.digest(), sent=SENT, node_name=NODE_NAME, starts=starts)


def _start(plan: Plan, node: Node) -> str:
    host = shlex.quote(node.host)
    return f"    {host}) export HOLMES_HOST={host}; exec {torchrun_line(plan, node)} ;;"
