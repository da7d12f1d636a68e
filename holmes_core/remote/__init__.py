"""Connections to hosts: SSH sessions, local shells, host keys."""
