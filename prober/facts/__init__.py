"""Facts by subject, each file with the commands that show them and the parsers that read them."""
