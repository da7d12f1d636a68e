#!/bin/sh
# plan sha256:0ebab9a19107eadcdc35e5ae3f4939616e274c5c38c8f56b4c091d3999561dc0
# Starts all ranks by mpirun, each on its host. Words behind it are options for mpirun.
set -eu
CDPATH= cd -- "$(dirname -- "$0")"
version=$(mpirun --version | head -n 1)
case $version in
    *"(Open MPI) 4.1."*) set -- --mca orte_keep_fqdn_hostnames 1 --hostfile sequence --mca rmaps seq "$@" ;;
    *"(Open MPI) 5."*)
        set -- --prtemca prte_keep_fqdn_hostnames 1 --hostfile hostfile --map-by seq:file=sequence "$@" ;;
    *) echo "holmes: this is for Open MPI 4.1 and 5; mpirun says: $version" >&2; exit 2 ;;
esac
exec mpirun -np 8 --bind-to none "$@" ./start-rank.sh
