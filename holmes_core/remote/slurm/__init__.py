"""Slurm: steps of its job as the way to hosts, and what it says of job and nodes."""
