"""The records that stages pass to one another, as frozen models and as files."""
