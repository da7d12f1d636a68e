"""The fate of a run: its events, its failures, hangs, lost hosts and new plans."""
