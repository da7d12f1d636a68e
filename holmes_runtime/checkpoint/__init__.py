"""Checkpoints: saved, loaded with other degrees, read safely."""
