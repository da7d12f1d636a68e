"""Checkpoints on the disk: names, descriptions, indices and complete sets, read without torch."""
