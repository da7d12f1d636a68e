"""Experts on the ranks that share them, placed by the routing in a trace."""
