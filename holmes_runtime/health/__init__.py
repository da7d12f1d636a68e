"""Measurements during a run, verdicts on slow hosts and links, and changes of edges between two steps."""
