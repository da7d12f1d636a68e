"""The hook in a trainer's own processes: each process group that torch makes gets the network its members share."""
