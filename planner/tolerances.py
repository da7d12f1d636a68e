"""The tolerances within which two numbers of seconds count as equal."""

RELATIVE_TOLERANCE = 1e-6  # what solvers leave open: a placement or schedule is better only by more
ROUNDING = 1e-9  # relative: the difference of equal seconds that were added up in different orders
