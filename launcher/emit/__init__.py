"""The plan in the words of other tools, a file a format."""
