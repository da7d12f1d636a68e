"""A launcher of one's own that asks Holmes which rank goes where: own_launcher.py INVENTORY JOB

It starts the command of `trainer` in job.yaml as every rank, by the way that it has to hosts, here Slurm's. See
docs/api.md.
"""

import subprocess
import sys
from pathlib import Path

from holmes_train.api import Inventory, Job, plan, read_file, read_user_file

placed = plan(read_file(Inventory, Path(sys.argv[1])), read_user_file(Job, Path(sys.argv[2])))
if placed.job.trainer is None:
    sys.exit("job.yaml has no trainer, whose command this starts")
nodes = {node.host: node for node in placed.nodes}
started = []
for rank in placed.ranks:
    node, master = nodes[rank.host], nodes[placed.ranks[0].host].shared_address
    variables = {each.name: each.value for each in node.environment}
    variables |= {"RANK": rank.rank, "WORLD_SIZE": placed.world_size, "LOCAL_RANK": rank.local_rank}
    variables |= {"LOCAL_WORLD_SIZE": node.num_ranks, "MASTER_ADDR": master, "MASTER_PORT": placed.job.master_port}
    if len({each.cluster for each in placed.nodes}) > 1:
        variables["NCCL_NET"] = "Socket"  # a group over clusters has no fabric in common
    words = [f"{name}={value}" for name, value in variables.items()]
    srun = ["srun", "--overlap", "--ntasks=1", "--nodelist", rank.host]
    started.append(subprocess.Popen([*srun, "env", *words, *placed.job.trainer.command]))
sys.exit(max(abs(process.wait()) for process in started))
