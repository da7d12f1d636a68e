"""The module of a pipeline stage."""
