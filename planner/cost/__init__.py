"""The cost of work: parameters, bytes and FLOPs, seconds of compute and of collectives, one formula a function."""
