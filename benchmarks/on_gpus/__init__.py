"""What only GPUs can show, step by step, with a report: `make test-gpu`."""
