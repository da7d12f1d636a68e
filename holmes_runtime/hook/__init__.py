"""The hook in a trainer's own processes. It gives each process group of torch the network that its members share."""
