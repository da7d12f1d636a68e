"""Asking hosts: commands sent in one script, their answers cut apart again, recordings of both."""
