"""Facts, one file a subject: the commands that show it and the parsers that read it."""
