"""A training that is going on: its processes watched on all hosts for some seconds, and a verdict on it."""
