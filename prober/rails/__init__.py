"""The choice of a host's rails among its RDMA ports: by network, nearness to its GPUs, and hosts.yaml."""
