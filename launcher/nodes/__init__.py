"""The nodes of a run: shipping to them, starting, checking, stopping, and the connection to each."""
