"""The cost of work: parameters, bytes, FLOPs, and the seconds of compute and collectives. One formula per function."""
