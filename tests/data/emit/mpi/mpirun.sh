#!/bin/sh
# plan sha256:421dbf77987115007b1a84a7b32343c8e771f4d23d6b82b34cea1a56403757ab
# Starts all ranks by mpirun, each on its host. Arguments are passed to mpirun as options.
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
