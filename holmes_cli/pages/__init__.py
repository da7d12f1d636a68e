"""Self-contained HTML pages and their pictures."""
