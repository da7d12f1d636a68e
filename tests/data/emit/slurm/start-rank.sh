#!/bin/sh
# plan sha256:421dbf77987115007b1a84a7b32343c8e771f4d23d6b82b34cea1a56403757ab
# Starts one rank for srun, mpirun or torchrun. The table `ranks` gives its number by host and local rank. With
# arguments, it runs these as a command in the place of the host's ranks, such as torchrun.
# The host is HOLMES_HOST, or else the host of the plan with this machine's name or address.
set -euf
umask 077
CDPATH= cd -- "$(dirname -- "$0")"
machine=$(uname -n)
addresses=$(hostname -I 2>/dev/null || true)
for name in ${HOLMES_HOST:-${SLURMD_NODENAME:-} $machine ${machine%%.*} $addresses}; do
    case $name in
        a1 | 10.0.0.1) HOLMES_HOST=a1 ;;
        b1 | 10.0.1.1) HOLMES_HOST=b1 ;;
        *) continue ;;
    esac
    break
done
LOCAL_RANK=${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-${LOCAL_RANK:-}}}
export HOLMES_HOST LOCAL_RANK
case ${HOLMES_HOST:-} in
    a1)
        [ $# -gt 0 ] || set -- /opt/py -m holmes_runtime.node.start_rank
        exec bash -lc 'source /opt/on && cd "$0" && exec "$@"' "$PWD" "$@" ;;
    b1)
        [ $# -gt 0 ] || set -- python3 -m holmes_runtime.node.start_rank
        exec docker run --rm --env HOLMES_HOST --env LOCAL_RANK --network host --ipc host --ulimit memlock=-1 --gpus all --device /dev/infiniband --user "$(id -u):$(id -g)" --env "HOME=$HOME" --volume "$PWD:$PWD" --workdir "$PWD" --volume /data:/data nvcr.io/pytorch:26.07 "$@" ;;
    *)
        echo "holmes: ${HOLMES_HOST:-$machine} is not in the plan: set HOLMES_HOST to a host in the file ranks" >&2
        exit 2 ;;
esac
