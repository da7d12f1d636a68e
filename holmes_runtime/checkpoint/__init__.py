"""Checkpoints: saved, loaded with other degrees, and read safely."""
