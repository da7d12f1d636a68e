"""Processes of a node other than the ranks: agent, relay, torchrun. Standard library only."""
