"""What a run looks at while it runs, what it finds slow, and what it changes about it between two steps."""
