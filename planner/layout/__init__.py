"""Placements written out: hosts, ranks, groups and environment, predicted and verified."""
