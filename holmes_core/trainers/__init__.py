"""Commands that start other trainers, read into keys of job.yaml."""
