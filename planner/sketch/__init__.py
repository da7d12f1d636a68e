"""Sketches: inventories of machines that one does not have, from a line of text or a small YAML file."""
