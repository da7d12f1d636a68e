"""Which RDMA ports of a host are its rails: where they lead, how near they are to its GPUs, what hosts.yaml says."""
