"""NCCL variables that the host already sets: in the environment of a login, /etc/nccl.conf or ~/.nccl.conf."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holmes_core.records.inventory import NcclSetting
from prober.asking.commands import Command
from prober.asking.recording import Recorded
from prober.asking.sysfs_tree import Tree
from prober.facts.machine.confinement import VARIABLES

ENVIRONMENT = Command(f"env | grep -E '^(NCCL_[A-Z0-9_]*|{'|'.join(VARIABLES)})='")
CONF_FILES = Command('grep -Hs . /etc/nccl.conf "$HOME/.nccl.conf"', shown="grep -Hs . /etc/nccl.conf ~/.nccl.conf")

_SETTING = re.compile(r"\s*(NCCL_\w+)\s*=(.*)$")


def read_nccl_settings(outputs: Sequence[Recorded], tree: Tree) -> tuple[NcclSetting, ...]:
    """Return the settings. The environment's come first, because they win."""
    found = []
    for output in outputs:
        if output.tool in ("env", "printenv", "export"):
            found += [("environment", line) for line in output.lines]
    for path, lines in tree.values.items():
        if path.endswith("nccl.conf"):
            found += [(path, line) for line in lines]
    matches = [(where, _SETTING.match(line)) for where, line in found]
    return tuple(
        NcclSetting(where=where, name=match.group(1), value=match.group(2).strip()) for where, match in matches if match
    )
