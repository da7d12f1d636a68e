"""Placements timed under pipeline schedules: simulation, its lower bound, and the choice of schedule."""
