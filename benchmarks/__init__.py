"""What Holmes claims, measured side by side in one run. Each file prints a table for people and `figure` lines."""
