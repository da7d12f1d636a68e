"""`holmes checkpoint`: list, check and combine checkpoint folders."""
