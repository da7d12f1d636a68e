"""Decide a launch without touching anything: files, environment, commands."""
