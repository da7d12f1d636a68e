"""Training data on the disk: text and token files, checked and read without torch."""
