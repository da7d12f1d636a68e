"""Decide everything about a launch without touching anything: files, environment, commands."""
