"""From a Plan to a running job: prepare (pure), ship, start, watch, stop."""
