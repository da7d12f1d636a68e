"""The stored state of a run: its folder, its record, its steps, and the register of runs."""
