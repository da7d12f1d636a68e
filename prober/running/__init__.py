"""A running training: its processes, watched on all hosts for some seconds, and a verdict on it."""
