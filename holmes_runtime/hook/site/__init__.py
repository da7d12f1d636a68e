"""A folder for PYTHONPATH."""
