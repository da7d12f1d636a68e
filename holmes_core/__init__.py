"""The records every stage of Holmes shares, their files, units and errors, and the connection to a host."""
