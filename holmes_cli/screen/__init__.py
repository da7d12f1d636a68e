"""The terminal output: tables, sentences and the view of a run."""
