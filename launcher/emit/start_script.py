"""The script that starts the ranks of every emitted job: it finds its host in the plan and starts Python there."""

from __future__ import annotations

import shlex
from collections import Counter

from holmes_core.records.plan import Node, Plan
from launcher.prepare.container import container_words

START_SCRIPT = "start-rank.sh"
_HEAD = """\
#!/bin/sh
# plan {digest}
# Starts one rank for srun, mpirun or torchrun. The table `ranks` gives its number by host and local rank. With
# arguments, it runs these as a command in the place of the host's ranks, such as torchrun.
# The host is HOLMES_HOST, or else the host of the plan with this machine's name or address.
set -euf
umask 077
CDPATH= cd -- "$(dirname -- "$0")"
machine=$(uname -n)
addresses=$(hostname -I 2>/dev/null || true)
for name in ${{HOLMES_HOST:-${{SLURMD_NODENAME:-}} $machine ${{machine%%.*}} $addresses}}; do
    case $name in
{names}
        *) continue ;;
    esac
    break
done
"""
_TAIL = """\
LOCAL_RANK=${{OMPI_COMM_WORLD_LOCAL_RANK:-${{SLURM_LOCALID:-${{LOCAL_RANK:-}}}}}}
export HOLMES_HOST LOCAL_RANK
case ${{HOLMES_HOST:-}} in
{starts}
    *)
        echo "holmes: ${{HOLMES_HOST:-$machine}} is not in the plan: set HOLMES_HOST to a host in the file ranks" >&2
        exit 2 ;;
esac
"""


def start_script(plan: Plan) -> str:
    """Return the script. Nodes that start in the same way share their lines."""
    addresses = Counter(node.shared_address for node in plan.nodes)
    names = [_name_line(node, addresses[node.shared_address] == 1) for node in plan.nodes]
    alike: dict[str, list[str]] = {}
    for node in plan.nodes:
        alike.setdefault(_start(node), []).append(shlex.quote(node.host))
    starts = [f"    {' | '.join(hosts)})\n{start} ;;" for start, hosts in alike.items()]
    head = _HEAD.format(digest=plan.digest(), names="\n".join(names))
    return head + _TAIL.format(starts="\n".join(starts))


def _name_line(node: Node, has_own_address: bool) -> str:
    """Return the line that recognizes a node by any of its names. Its address counts only if no other node has it."""
    names = dict.fromkeys((node.host, slurm_name(node), *([node.shared_address] if has_own_address else [])))
    return f"        {' | '.join(map(shlex.quote, names))}) HOLMES_HOST={shlex.quote(node.host)} ;;"


def slurm_name(node: Node) -> str:
    """Return the node's name in Slurm."""
    return node.access.address or node.host if node.access.transport == "slurm" else node.host


def _start(node: Node) -> str:
    """Return the lines that become the rank, or the command given as arguments."""
    access = node.access
    python = f"{access.python_word} -m holmes_runtime.node.start_rank"
    before = ""
    if access.container is not None:
        before = container_words(node, "--env HOLMES_HOST --env LOCAL_RANK", "$PWD", "$PWD") + " "
    if access.activate is not None:
        script = f'{access.activate} && cd "$0" && exec "$@"'
        before = f'bash -lc {shlex.quote(script)} "$PWD" {before}'
    return f'        [ $# -gt 0 ] || set -- {python}\n        exec {before}"$@"'
