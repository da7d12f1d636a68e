"""Admission to a run: proof of its secret, and sockets that only its own processes can reach."""
