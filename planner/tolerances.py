"""The tolerances within which two numbers of seconds count as equal."""

RELATIVE_TOLERANCE = 1e-6  # the gap that solvers leave: a placement or schedule must be better by more
ROUNDING = 1e-9  # relative difference of equal seconds that were added up in different orders
