"""Asking hosts: the script of all commands, the outputs cut from its answer, and recordings of both."""
