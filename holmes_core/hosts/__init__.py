"""Lists of hosts: hosts.yaml, patterns of names, hostfiles and Slurm's lists."""
