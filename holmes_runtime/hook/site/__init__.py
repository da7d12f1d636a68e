"""The folder in a rank's PYTHONPATH."""
