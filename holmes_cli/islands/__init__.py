"""The views and commands for a run of islands."""
