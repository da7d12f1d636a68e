"""The commands: each reads its files, calls a stage, and shows the result."""
