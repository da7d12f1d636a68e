"""Write a plan as files for other launchers: plain files, torchrun, Slurm, MPI. A launch sends the same content."""
