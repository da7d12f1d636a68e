"""The way to a host: SSH sessions and host keys."""
