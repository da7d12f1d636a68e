"""Slurm: job steps as the transport to hosts, and Slurm's state of job and nodes."""
