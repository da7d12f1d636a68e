"""What work costs: parameters, bytes and FLOPs, seconds of compute and of collectives, one formula a function."""
