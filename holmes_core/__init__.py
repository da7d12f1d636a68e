"""The records every stage of Holmes shares, their files, units, errors, and the way to a host."""
