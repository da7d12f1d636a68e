"""What the terminal shows: tables, sentences and the view of a run."""
