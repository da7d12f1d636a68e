"""A plan as files for what else starts jobs: plain files, torchrun, Slurm, MPI. What travels is what a launch sends."""
