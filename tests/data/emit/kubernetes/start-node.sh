#!/bin/sh
# plan sha256:f1cb60018dd7aa0b52b7cc95a0f20ab7ab0a51d67adcf67e0685bf685b63f736
# Starts the ranks of one node in its pod. The host of that node in the plan has the name of the pod's Kubernetes node.
set -eu
umask 077
for file in sent/secret-*; do
    [ ! -e "$file" ] || cat "$file" >"${file##*/}"
done
case ${NODE_NAME:-} in
    a1) export HOLMES_HOST=a1; exec python3 -m torch.distributed.run --nnodes=2 --node-rank=0 --nproc-per-node=4 --master-addr=10.0.0.1 --master-port=29500 --max-restarts=0 -m holmes_runtime.node.start_rank ;;
    b1) export HOLMES_HOST=b1; exec python3 -m torch.distributed.run --nnodes=2 --node-rank=1 --nproc-per-node=4 --master-addr=10.0.0.1 --master-port=29500 --max-restarts=0 -m holmes_runtime.node.start_rank ;;
    *)
        echo "holmes: node '${NODE_NAME:-}' is not in the plan: name hosts in hosts.yaml like their nodes" >&2
        exit 2 ;;
esac
