"""`holmes checkpoint`: what saved folders hold, checked and put together."""
