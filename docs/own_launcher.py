"""A launcher of one's own that asks Holmes which rank goes where: own_launcher.py INVENTORY JOB COMMAND...

It prints a line a rank for the way that it has to hosts, here Slurm's. See docs/api.md.
"""

import shlex
import sys
from pathlib import Path

from holmes.api import Inventory, Job, plan, read_file, read_user_file

placed = plan(read_file(Inventory, Path(sys.argv[1])), read_user_file(Job, Path(sys.argv[2])))
nodes = {node.host: node for node in placed.nodes}
for rank in placed.ranks:
    variables = {each.name: each.value for each in nodes[rank.host].environment}
    variables |= {"RANK": str(rank.rank), "LOCAL_RANK": str(rank.local_rank), "WORLD_SIZE": str(placed.world_size)}
    variables["MASTER_ADDR"] = placed.nodes[0].shared_address
    words = [f"{name}={value}" for name, value in variables.items()]
    print(shlex.join(["srun", "--overlap", "--nodelist", rank.host, "env", *words, *sys.argv[3:]]))
