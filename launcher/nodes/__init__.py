"""The nodes of a run: send files, start, check and stop, and the connection to each."""
